"""The part of an evaluation's page that tells of success at a task that needs memory."""

from collections.abc import Sequence

from vla_edge_ros.evaluation.forgetting.figure_table import breakable, cell, in_interval, table
from vla_edge_ros.figures import in_words


def success_table(document: dict) -> list[str]:
    """Success at the task that needs memory, of the policies that were asked."""
    beside = document["remember"]
    heads = (*(f"{capacity} blocks" for capacity in beside["capacities"]), "all", "less fifo's")
    lines = []
    for name, figures in sorted(
        beside["policies"].items(), key=lambda item: -(item[1]["remember_success"] or 0.0)
    ):
        by_capacity = figures["remember_success_by_capacity"].values()
        found = [(success["value"], success["ci95"]) for success in by_capacity]
        found.append((figures["remember_success"], figures["remember_success_ci95"]))
        apart = figures.get("remember_minus_fifo", {"mean": None, "ci95": None})
        found.append((apart["mean"], apart["ci95"]))
        cells = "".join(cell(mean, interval, 2) for mean, interval in found)
        lines.append(f'<tr><th scope="row">{breakable(name)}</th>{cells}</tr>')
    references = ", ".join(
        f"{label} {_within(beside[key]['value'], beside[key]['ci95'])}"
        for key, label in (("full", "a memory that forgets nothing"), ("at_once", "no memory"))
    )
    return [
        "<h2>Success at a task that needs memory</h2>",
        table(heads, lines),
        f'<p class="quiet below">Share of {beside["seeds"]} simulated episodes of <em>remember</em> in which '
        "a trained model went where a light had been; the same episodes for every policy, with 95 % "
        f"intervals. For comparison: {references}, chance {beside['chance']:.2f}.</p>",
    ]


def _within(mean: float | None, interval: Sequence[float] | None) -> str:
    return f"{in_words(mean, 2)}{f' ({in_interval(interval, 2)})' if interval else ''}"
