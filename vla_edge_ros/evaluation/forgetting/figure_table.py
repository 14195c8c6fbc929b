"""The figures of each policy as a table that fits on a page."""

import html
from collections.abc import Sequence
from typing import NamedTuple

from vla_edge_ros.figures import in_words

STYLE = """
.figures td, .figures th { padding: 5px 0 5px 12px; text-align: right; }
.figures th:first-child { text-align: left; padding-left: 0; position: sticky; left: 0;
  background: var(--card); }
.figures small { display: block; color: var(--muted); font-size: 12px; line-height: 1.3; }
.figures td { line-height: 1.3; } .figures thead th { vertical-align: bottom; line-height: 1.3; }
.figures th[scope=row] { color: var(--ink); }
@media (min-width: 900px) { .figures wbr { display: none; } }
"""


class Column(NamedTuple):
    """mean, ci: keys of a policy's figures. better: -1 where less is better, 1 where more is, else 0."""

    label: str
    mean: str
    ci: str | None
    digits: int
    better: int


COLUMNS = (
    Column("regret by rank", "regret_rank_mean", "regret_rank_ci95", 3, -1),
    Column("regret, nats", "regret_mean", "regret_ci95", 3, -1),
    Column("KL to all frames, nats", "kl_mean", "kl_ci95", 3, -1),
    Column("action L1", "action_l1_mean", "action_l1_ci95", 3, -1),
    Column("needle recall", "needle_recall", "needle_recall_ci95", 2, 1),
    Column("coverage of time", "coverage_mean", "coverage_ci95", 2, 0),
    Column("eviction, us, p99", "eviction_us_p99", None, 0, -1),
)
_ARROWS = {-1: "\u00a0↓", 0: "", 1: "\u00a0↑"}


def figure_table(policies: dict[str, dict], names: Sequence[str]) -> str:
    """A line a policy in the order of `names`; the best of a column is bold."""
    lines = []
    best = {column: _best([policies[name][column.mean] for name in names], column) for column in COLUMNS}
    for name in names:
        figures = policies[name]
        cells = "".join(
            cell(
                figures[column.mean],
                figures[column.ci] if column.ci else None,
                column.digits,
                is_best=in_words(figures[column.mean], column.digits) == best[column],
            )
            for column in COLUMNS
        )
        lines.append(f'<tr><th scope="row">{breakable(name)}</th>{cells}</tr>')
    return table([f"{column.label}{_ARROWS[column.better]}" for column in COLUMNS], lines)


def table(heads: Sequence[str], lines: Sequence[str]) -> str:
    """heads: of all columns but the first, as text. lines: rows as HTML."""
    head = "".join(f'<th scope="col">{html.escape(label)}</th>' for label in heads)
    return (
        f'<div class="table wide"><table class="figures"><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def cell(mean: float | None, interval: Sequence[float] | None, digits: int, is_best: bool = False) -> str:
    """A mean, and its interval below it."""
    value = in_words(mean, digits)
    below = f"<small>{in_interval(interval, digits)}</small>" if interval else ""
    return f"<td>{f'<b>{value}</b>' if is_best else value}{below}</td>"


def breakable(name: str) -> str:
    """HTML of a name that may be broken after its underscores, where room is scarce."""
    return html.escape(name).replace("_", "_<wbr>")


def in_interval(interval: Sequence[float], digits: int) -> str:
    return " to ".join(f"{end:.{digits}f}" for end in interval)


def _best(values: Sequence[float | None], column: Column) -> str | None:
    """The best as it is written, so that policies that look equal are equally bold."""
    found = [column.better * value for value in values if value is not None]
    return in_words(abs(max(found)), column.digits) if found and column.better else None
