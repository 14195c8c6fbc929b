"""What was forgotten when: each frame's stay in memory."""

import math
from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vla_edge_ros.evaluation.plot_style import COLOUR, RC_PARAMS, panels_of, to_svg

_COLUMNS = 4


def eviction_caption(row: dict) -> str:
    return (
        f"{row['bag']}, {row['capacity']} frames of memory, seed {row['seed']}. A bar is a frame, from the "
        "pass that saw it to the pass that evicted it, the first frame at the bottom; bars that reach the "
        "right edge are in memory at the end. Needles are thick and in red."
    )


def eviction_plot(rows: Sequence[dict]) -> str:
    """A panel for each of `rows`, which are one bag, seed and capacity under different policies."""
    lines = -(-len(rows) // _COLUMNS)
    with matplotlib.rc_context(RC_PARAMS):
        figure = Figure(figsize=(10, 0.4 + 1.9 * lines), layout="constrained")
        panels = panels_of(figure, len(rows), _COLUMNS)
        for axes, row in zip(panels, rows, strict=True):
            gone_at = {frame: at for at, frame in row["evicted"]}
            needles = set(row["needles"])
            _draw(axes, set(range(row["frames"])) - needles, gone_at, row["frames"], COLOUR["accent"], 1.6)
            _draw(axes, needles, gone_at, row["frames"], COLOUR["late"], 3.2)
            axes.set_title(row["policy"], fontsize=9.5, color=COLOUR["ink"])
            axes.set_xlim(0, row["frames"])
        figure.supxlabel("passes", fontsize=9, color=COLOUR["muted"])
        figure.supylabel("frame", fontsize=9, color=COLOUR["muted"])
        return to_svg(figure, "timeline")


def _draw(axes: Axes, frames: set[int], gone_at: dict[int, int], end: int, colour: str, width: float) -> None:
    """Bars as one path, with a lift of the pen (NaN) after each."""
    x = [at for frame in sorted(frames) for at in (frame, gone_at.get(frame, end), math.nan)]
    y = [at for frame in sorted(frames) for at in (frame, frame, math.nan)]
    axes.plot(x, y, color=colour, linewidth=width, solid_capstyle="butt")
