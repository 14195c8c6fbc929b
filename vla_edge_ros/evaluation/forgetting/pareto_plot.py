"""Quality against capacity, and the Pareto front: what no other policy reaches with as little memory."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from vla_edge_ros.evaluation.forgetting.metrics import bootstrap_ci95
from vla_edge_ros.evaluation.forgetting.policy_style import add_legend, style_of
from vla_edge_ros.evaluation.forgetting.results import by_seed
from vla_edge_ros.evaluation.plot_style import COLOUR, RC_PARAMS, to_svg

CAPTION = (
    "KL and action L1 are distances from the actions of a memory that forgets nothing: lower is better. "
    "Recall is the share of needles still in memory at the end: higher is better. Ringed and named is the "
    "Pareto front of the means: no policy does better with as few frames, nor as well with fewer. The step "
    "line is the best that can be had so far. Bars: 95 % bootstrap intervals over seeds; a policy whose bar "
    "reaches the line may be as good."
)
_PANELS = (
    ("kl_nats", "KL to all frames,\nnats (lower is better)", False),
    ("action_l1", "action L1\n(lower is better)", False),
    ("needle_recall", "needle recall\n(higher is better)", True),
)
_GROUP_WIDTH = 0.84
_MOST_NAMES = 2


def pareto_front(capacities: Sequence[float], qualities: Sequence[float]) -> list[int]:
    """Places of the points that none dominates, in the order of capacity: more quality is better.

    A point dominates another if it has no more capacity and no less quality, and differs in one of them.
    """
    points = list(zip(capacities, qualities, strict=True))
    front = [
        place
        for place, (capacity, quality) in enumerate(points)
        if not any(c <= capacity and q >= quality and (c, q) != (capacity, quality) for c, q in points)
    ]
    return sorted(front, key=lambda place: points[place])


def pareto_plot(rows: Sequence[dict], policies: Sequence[str]) -> str:
    """A panel a figure of quality; at each capacity the policies side by side, in the order given."""
    capacities = sorted({row["capacity"] for row in rows})
    with matplotlib.rc_context(RC_PARAMS):
        figure = Figure(figsize=(10, 7.6), layout="constrained")
        panels = figure.subplots(len(_PANELS), 1, sharex=True)
        for axes, (key, label, is_higher_better) in zip(panels, _PANELS, strict=True):
            _draw(axes, rows, policies, capacities, key, is_higher_better)
            axes.set_ylabel(label)
            if key == "needle_recall":
                axes.set_ylim(-0.08, 1.22)
                axes.set_yticks((0, 0.25, 0.5, 0.75, 1))
            for border in range(1, len(capacities)):
                axes.axvline(border - 0.5, color=COLOUR["grid"], linewidth=0.8)
        panels[-1].set_xticks(range(len(capacities)), [f"{n} frames of memory" for n in capacities])
        panels[-1].set_xlim(-0.5, len(capacities) - 0.5)
        styles = [style_of(name) for name in policies]
        handles = [Line2D([], [], color=s.colour, marker=s.marker, linestyle="") for s in styles]
        add_legend(figure, handles, list(policies))
        return to_svg(figure, "capacity")


def _draw(
    axes: Axes,
    rows: Sequence[dict],
    policies: Sequence[str],
    capacities: Sequence[int],
    key: str,
    is_higher_better: bool,
) -> None:
    points = []
    for group, capacity in enumerate(capacities):
        for place, name in enumerate(policies):
            own = [row for row in rows if row["policy"] == name and row["capacity"] == capacity]
            values = list(by_seed(own, key).values())
            if not values:
                continue
            x = group + ((place + 0.5) / len(policies) - 0.5) * _GROUP_WIDTH
            style, interval = style_of(name), bootstrap_ci95(values)
            if interval:
                axes.plot([x, x], interval, color=style.colour, linewidth=2)
            points.append((group, x, float(np.mean(values)), name))
            axes.plot(x, points[-1][2], style.marker, color=style.colour, markersize=6)
    sign = 1 if is_higher_better else -1
    front = [points[at] for at in pareto_front([p[0] for p in points], [sign * p[2] for p in points])]
    _draw_front(axes, front, len(capacities), is_higher_better)


def _draw_front(
    axes: Axes, front: Sequence[tuple[int, float, float, str]], n_groups: int, is_higher_better: bool
) -> None:
    """front: (group, x, value, policy) of each of its points."""
    if not front:
        return
    best = {group: value for group, _, value, _ in front}
    x = [group - 0.5 for group in best] + [n_groups - 0.5]
    values = [*best.values(), list(best.values())[-1]]
    axes.plot(x, values, color=COLOUR["ink"], linewidth=0.9, linestyle=":", drawstyle="steps-post", zorder=1)
    rings = [[point[place] for point in front] for place in (1, 2)]
    axes.plot(*rings, "o", markersize=12, markerfacecolor="none", markeredgecolor=COLOUR["ink"], zorder=4)
    axes.margins(y=0.2)
    at, side = (0.98, "top") if is_higher_better else (0.02, "bottom")
    for group in best:
        names = [name for found, _, _, name in front if found == group]
        more = [f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else []
        axes.text(
            group,
            at,
            f"front: {', '.join(names[:_MOST_NAMES] + more)}",
            transform=axes.get_xaxis_transform(),
            ha="center",
            va=side,
            fontsize=8.5,
        )
