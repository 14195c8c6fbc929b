"""The part of an evaluation's page that tells of success at a task that needs memory."""

import html
from collections.abc import Sequence

from vla_edge_ros.figures import in_words


def success_table(document: dict) -> list[str]:
    """Success at the task that needs memory, of the policies that were asked."""
    beside = document["remember"]
    heads = (*(f"{capacity} blocks" for capacity in beside["capacities"]), "all", "less fifo's")
    head = "".join(f'<th scope="col">{label}</th>' for label in heads)
    lines = []
    for name, figures in sorted(
        beside["policies"].items(), key=lambda item: -(item[1]["remember_success"] or 0.0)
    ):
        by_capacity = figures["remember_success_by_capacity"].values()
        found = [(success["value"], success["ci95"]) for success in by_capacity]
        found.append((figures["remember_success"], figures["remember_success_ci95"]))
        apart = figures.get("remember_minus_fifo", {"mean": None, "ci95": None})
        found.append((apart["mean"], apart["ci95"]))
        cells = "".join(f"<td>{within(mean, interval, 2)}</td>" for mean, interval in found)
        lines.append(f'<tr><th scope="row">{html.escape(name)}</th>{cells}</tr>')
    references = ", ".join(
        f"{label} {within(beside[key]['value'], beside[key]['ci95'], 2)}"
        for key, label in (("full", "a memory that forgets nothing"), ("at_once", "no memory"))
    )
    return [
        "<h2>Success at a task that needs memory</h2>",
        f'<div class="table wide"><table class="figures"><tr><th></th>{head}</tr>',
        f"{''.join(lines)}</table></div>",
        f'<p class="quiet">Share of {beside["seeds"]} simulated episodes of <em>remember</em> in which a '
        "trained model went where a light had been; the same episodes for every policy, with 95 % intervals. "
        f"For comparison: {references}, chance {beside['chance']:.2f}.</p>",
    ]


def within(mean: float | None, interval: Sequence[float] | None, digits: int) -> str:
    """A mean and its interval."""
    text = f" ({interval[0]:.{digits}f}–{interval[1]:.{digits}f})" if interval else ""
    return f"{in_words(mean, digits)}{text}"
