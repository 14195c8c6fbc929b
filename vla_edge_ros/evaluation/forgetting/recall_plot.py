"""How long a frame that was shown once stays in memory."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from vla_edge_ros.evaluation.forgetting.policy_style import add_legend, style_of
from vla_edge_ros.evaluation.plot_style import COLOUR, RC_PARAMS, panels_of, to_svg

LEAST_NEEDLES = 10
"""Ages that fewer needles could have reached are left out: one needle would move the curve by 10 %."""

CAPTION = (
    "Share of the needles still in memory so many frames after they were shown, by frames of memory (Kaplan "
    "and Meier's estimate, since a needle that is still held at the end may have lasted longer); higher is "
    f"better. A curve ends at the age that fewer than {LEAST_NEEDLES} needles could have reached."
)
TOO_FEW = (
    f"Not drawn: of each policy and capacity fewer than {LEAST_NEEDLES} needles were shown. Ask for more "
    "seeds or recordings."
)
_LINE_STYLES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
_COLUMNS = 4


def retention(lives: Sequence[int], watched: Sequence[int]) -> np.ndarray:
    """By age in frames, the share of needles still in memory after it, by Kaplan and Meier (1958).

    lives: frames for which each needle was held. watched: frames from when it was shown to the end of its
    trial; a needle with a life as long was never seen to go. Ends before the age that fewer than
    `LEAST_NEEDLES` were watched for.
    """
    lives, watched = np.asarray(lives, int), np.asarray(watched, int)
    shares: list[float] = []
    share = 1.0
    while (watched > len(shares)).sum() >= LEAST_NEEDLES:
        age = len(shares)
        at_risk = (lives >= age) & (watched > age)
        if at_risk.any():
            share *= 1 - (lives[at_risk] == age).mean()
        shares.append(float(share))
    return np.array(shares)


def recall_plot(rows: Sequence[dict], policies: Sequence[str]) -> str | None:
    """A panel a policy, a line a capacity; None where there are too few needles for any curve."""
    capacities = sorted({row["capacity"] for row in rows})
    curves = {
        (name, capacity): _curve([r for r in rows if (r["policy"], r["capacity"]) == (name, capacity)])
        for name in policies
        for capacity in capacities
    }
    longest = max(map(len, curves.values()))
    if longest == 0:
        return None
    lines = -(-len(policies) // _COLUMNS)
    with matplotlib.rc_context(RC_PARAMS):
        figure = Figure(figsize=(10, 0.7 + 1.6 * lines), layout="constrained")
        panels = panels_of(figure, len(policies), _COLUMNS)
        for axes, name in zip(panels, policies, strict=True):
            for place, capacity in enumerate(capacities):
                _draw(axes, curves[name, capacity], style_of(name).colour, place)
            axes.set_title(name, fontsize=9.5, color=COLOUR["ink"])
        panels[0].set_ylim(-0.03, 1.05)
        panels[0].set_xlim(0, longest)
        panels[0].xaxis.set_major_locator(MaxNLocator(6, integer=True))
        figure.supxlabel("frames since it was shown", fontsize=9, color=COLOUR["muted"])
        figure.supylabel("share still in memory", fontsize=9, color=COLOUR["muted"])
        handles = [
            Line2D([], [], color=COLOUR["ink"], linestyle=_line_style(place))
            for place in range(len(capacities))
        ]
        add_legend(figure, handles, [f"{capacity} frames of memory" for capacity in capacities], "upper")
        return to_svg(figure, "recall")


def _curve(rows: Sequence[dict]) -> np.ndarray:
    lives = [life for row in rows for life in row["needle_life"]]
    return retention(lives, [row["frames"] - needle for row in rows for needle in row["needles"]])


def _draw(axes: Axes, shares: np.ndarray, colour: str, place: int) -> None:
    if len(shares):
        edges = np.arange(len(shares) + 1)
        values = np.append(shares, shares[-1])
        axes.plot(
            edges, values, color=colour, linestyle=_line_style(place), linewidth=1.8, drawstyle="steps-post"
        )


def _line_style(place: int) -> str | tuple:
    return _LINE_STYLES[place % len(_LINE_STYLES)]
