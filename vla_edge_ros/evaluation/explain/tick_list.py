"""Which ticks of a run one may want to look at: found by name, and listed with those alike together."""

import re
from collections.abc import Callable
from typing import NamedTuple

from vla_edge_ros.control.decision import Decision
from vla_edge_ros.errors import UserError, printable
from vla_edge_ros.evaluation.explain.recorded_ticks import RecordedTicks, is_miss

_STOPS = (Decision.FAULT.value, Decision.SAFE_STOP.value)

NAMED: dict[str, tuple[str, Callable[[dict], bool]]] = {
    "last": ("tick", lambda tick: True),
    "last-miss": ("miss", is_miss),
    "last-late": ("late publish", lambda tick: tick.get("is_late", False)),
    "last-refused": ("refused tick", lambda tick: tick["decision"] == Decision.HOLD_REFUSED.value),
    "last-stop": ("stop", lambda tick: tick["decision"] in _STOPS),
}
"""What `--tick` takes beside a number: the last of these."""


class Alike(NamedTuple):
    """Ticks in a row of one decision, for reasons that differ in their figures at most.

    reason: of the last one. skipped: ticks before and between them that were missed whole.
    """

    first: int
    last: int
    n_ticks: int
    decision: str
    reason: str
    n_late: int
    n_misses: int
    skipped: int


def number_in(name: str | None) -> int | None:
    """The tick's number that `name` is, None where it is something else."""
    return int(name) if name and re.fullmatch(r"\d{1,18}", name, re.ASCII) else None


def place_of(run: RecordedTicks, name: str) -> int:
    """The place in `run.ticks` of the tick that `name` says, a number or one of NAMED.

    Of several with that number, which there are where the node was activated again, the last.
    Raises UserError where it is not there.
    """
    if name in NAMED:
        what, is_wanted = NAMED[name]
        found = [place for place, tick in enumerate(run.ticks) if is_wanted(tick)]
        if not found:
            raise UserError(f"no {what} was recorded: {run.range_in_words}")
    else:
        number = number_in(name)
        if number is None:
            raise UserError(f"--tick {name}: wanted is a tick's number or one of {', '.join(NAMED)}")
        found = [place for place, tick in enumerate(run.ticks) if tick["tick"] == number]
        if not found:
            raise UserError(f"tick {number} was not recorded: {run.range_in_words}")
    return found[-1]


def notable(run: RecordedTicks) -> list[Alike]:
    """Ticks that were not FRESH, were published late or came after missed ones, in the order of the run."""
    groups: list[Alike] = []
    before: tuple | None = None
    for tick in run.ticks:
        is_late, skipped = tick.get("is_late", False), tick.get("skipped_ticks", 0)
        if tick["decision"] == Decision.FRESH.value and not is_late and not skipped:
            before = None
            continue
        number, reason = tick["tick"], tick.get("reason", "")
        kind = (tick["decision"], re.sub(r"\d+", "", reason))
        one = Alike(number, number, 1, tick["decision"], reason, int(is_late), int(is_miss(tick)), skipped)
        if kind == before and number > groups[-1].last:
            so_far = groups.pop()
            one = Alike(
                so_far.first,
                number,
                so_far.n_ticks + 1,
                one.decision,
                reason,
                so_far.n_late + is_late,
                so_far.n_misses + one.n_misses,
                so_far.skipped + skipped,
            )
        groups.append(one)
        before = kind
    return groups


def list_lines(run: RecordedTicks) -> list[str]:
    """One line for each of `notable`, then what the run was as a whole."""
    groups = notable(run)
    n_fresh = sum(tick["decision"] == Decision.FRESH.value for tick in run.ticks)
    names = [_name(group) for group in groups]
    width = max(map(len, names), default=0)
    lines = [f"{name:<{width}}  {_words(group)}" for name, group in zip(names, groups, strict=True)]
    whole = f"{len(run.ticks):,} ticks, {n_fresh:,} of them FRESH; {run.range_in_words}"
    return [printable(line) for line in [*lines, whole]]


def _name(group: Alike) -> str:
    return f"tick {group.first}" if group.first == group.last else f"ticks {group.first}-{group.last}"


def _words(group: Alike) -> str:
    times = f"{group.n_ticks} x " if group.n_ticks > 1 else ""
    counts = {"late": group.n_late, "misses": group.n_misses, "skipped before": group.skipped}
    noted = ", ".join(f"{name}: {n}" for name, n in counts.items() if n)
    because = f", the last: {group.reason}" if group.n_ticks > 1 else f": {group.reason}"
    return f"{times}{group.decision}{f' ({noted})' if noted else ''}{because if group.reason else ''}"
