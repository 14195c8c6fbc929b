"""Regret by policy and capacity: how far from the oracle each choice of a victim was."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vla_edge_ros.evaluation.forgetting.metrics import bootstrap_ci95
from vla_edge_ros.evaluation.forgetting.policy_style import style_of
from vla_edge_ros.evaluation.forgetting.results import by_seed
from vla_edge_ros.evaluation.plot_style import COLOUR, RC_PARAMS, panels_of, to_svg

CAPTION = (
    "Share of the other frames whose absence would have changed the next actions less than that of the frame "
    "that was forgotten; further left is better: 0 is the oracle, the dashed line at 0.5 is chance. Bars: "
    "95 % bootstrap intervals over seeds."
)
_COLUMNS = 4


def regret_plot(rows: Sequence[dict], policies: Sequence[str]) -> str:
    """A panel a capacity, a line a policy in the order of `policies`: mean and interval."""
    capacities = sorted({row["capacity"] for row in rows})
    lines = -(-len(capacities) // _COLUMNS)
    with matplotlib.rc_context(RC_PARAMS | {"axes.grid.axis": "both"}):
        figure = Figure(figsize=(10, lines * (0.8 + 0.23 * len(policies))), layout="constrained")
        panels = panels_of(figure, len(capacities), _COLUMNS)
        for axes, capacity in zip(panels, capacities, strict=True):
            axes.axvline(0.5, color=COLOUR["muted"], linewidth=1, linestyle="--")
            for place, name in enumerate(policies):
                own = [row for row in rows if row["policy"] == name and row["capacity"] == capacity]
                _draw(axes, place, name, list(by_seed(own, "regret_rank").values()))
            axes.set_title(f"{capacity} frames of memory", fontsize=9.5, color=COLOUR["ink"])
            axes.set_xlim(-0.04, 1.04)
        panels[0].set_yticks(range(len(policies)), policies)
        panels[0].set_ylim(len(policies) - 0.5, -0.5)
        figure.supxlabel("regret by rank", fontsize=9, color=COLOUR["muted"])
        return to_svg(figure, "regret")


def _draw(axes: Axes, place: int, name: str, values: list[float]) -> None:
    if not values:
        return
    style = style_of(name)
    interval = bootstrap_ci95(values)
    if interval:
        axes.plot(interval, [place, place], color=style.colour, linewidth=2.2)
    axes.plot(float(np.mean(values)), place, style.marker, color=style.colour, markersize=6.5)
