"""What the figures of a record must be, and whether they are."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vla_edge_ros.figures import in_words

Record = Mapping[str, object]
Bound = float | Callable[[Record], float | None]

LATE_ALLOWED = 2
"""Late publishes of a run, or of a fault, beyond those of the bare loop beside it."""


@dataclass(frozen=True, slots=True)
class Must:
    """A figure with what it must be and what it is to become; a bound may follow from another figure."""

    what: str
    key: str
    sense: str
    must: Bound
    aim: Bound | None = None
    unit: str = ""
    scale: float = 1.0

    def words(self, value: float | None) -> str:
        """A value of this figure as people read it."""
        return in_words(None if value is None else value * self.scale, 2 if self.unit else 0, self.unit)


def late_allowed(record: Record) -> float | None:
    """Of late publishes; None where the bare loop's were not counted."""
    late = record.get("bare_loop_late")
    return None if late is None else late + LATE_ALLOWED


@dataclass(frozen=True, slots=True)
class Verdict:
    """is_met: of the must, None where the figure or its bound was not measured."""

    must: Must
    measured: float | None
    bound: float | None
    aim: float | None
    is_met: bool | None
    is_aim_met: bool | None


def judge(record: Record, musts: Sequence[Must]) -> list[Verdict]:
    return [_verdict(must, record) for must in musts]


def _verdict(must: Must, record: Record) -> Verdict:
    measured = record.get(must.key)
    bound, aim = (limit(record) if callable(limit) else limit for limit in (must.must, must.aim))
    compare = {"<=": operator.le, ">=": operator.ge, ">": operator.gt}[must.sense]

    def is_within(limit: float | None) -> bool | None:
        return None if measured is None or limit is None else compare(measured, limit)

    return Verdict(must, measured, bound, aim, is_within(bound), is_within(aim))


def verdict_table(record: Record, musts: Sequence[Must]) -> Table:
    """figure, must, aim, measured, verdict."""
    driver = f", driver {record['driver']}" if "driver" in record else ""
    table = Table(title=Text(record["device"] + driver))
    for column in ("figure", "must", "aim", "measured", "verdict"):
        table.add_column(column, justify="left" if column in ("figure", "verdict") else "right")
    for verdict in judge(record, musts):
        must = verdict.must
        word = {None: "not measured", True: "must met", False: "[red]MISSED[/red]"}[verdict.is_met]
        if verdict.is_met and verdict.is_aim_met:
            word = "aim met"
        bound = f"{must.sense} {must.words(verdict.bound)}"
        table.add_row(must.what, bound, must.words(verdict.aim), must.words(verdict.measured), word)
    return table


def markdown_table(record: Record, musts: Sequence[Must]) -> list[str]:
    """Lines of Markdown: figure, must, measured, verdict."""
    return [
        "| figure | must | measured | |",
        "|---|---|---|---|",
        *(_markdown_row(verdict) for verdict in judge(record, musts)),
    ]


def _markdown_row(verdict: Verdict) -> str:
    must = verdict.must
    said = {None: "not measured", True: "met", False: "**missed**"}[verdict.is_met]
    bound, measured = must.words(verdict.bound), must.words(verdict.measured)
    return f"| {must.what} | {must.sense} {bound} | {measured} | {said} |"


def report(record: Record, musts: Sequence[Must], console: Console) -> int:
    """Print every figure beside what it must be; 0 where all are met."""
    console.print(verdict_table(record, musts))
    return 0 if all(verdict.is_met for verdict in judge(record, musts)) else 1
