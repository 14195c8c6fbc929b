"""Whether the node did under a fault what the table of faults says, judged by what `~/tick` told. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from statistics import median

from vla_edge_ros.control.decision import Decision
from vla_edge_ros.evaluation.faults import Fault


@dataclass(frozen=True, slots=True)
class ToldTick:
    """A message of `~/tick`, received at `received_ns` (steady); None where the tick has no such thing."""

    received_ns: int
    tick: int
    decision: Decision
    effect_stamp_ns: int
    is_enabled: bool
    frame_index: int | None
    frame_stamp_ns: int | None
    frame_age_ms: float | None
    retained_frames: int
    hold_ms: float
    skipped_ticks: int
    events: tuple[str, ...]

    @classmethod
    def from_values(cls, values: Mapping[str, str], received_ns: int) -> "ToldTick":
        """From the message's values by key. Raises KeyError and ValueError for one that is none."""
        return cls(
            received_ns=received_ns,
            tick=int(values["tick"]),
            decision=Decision(values["decision"]),
            effect_stamp_ns=int(values["effect_stamp_ns"]),
            is_enabled=values["is_enabled"] == "True",
            frame_index=int(values["frame_index"]) if values["frame_index"] else None,
            frame_stamp_ns=int(values["frame_stamp_ns"]) if values["frame_stamp_ns"] else None,
            frame_age_ms=float(values["frame_age_ms"]) if values["frame_age_ms"] else None,
            retained_frames=int(values["retained_frames"]),
            hold_ms=float(values["hold_ms"] or 0),
            skipped_ticks=int(values["skipped_ticks"]),
            events=tuple(values["events"].split()),
        )

    @property
    def is_moving(self) -> bool:
        return self.is_enabled and self.decision.is_fresh


@dataclass(frozen=True, slots=True)
class Injection:
    """What was seen around one fault.

    ticks: from the settling before to the end of the watch after; the fault lasted from `began_ns` to
    `ended_ns`. observed: what the injector itself looked at, in words, and whether it was so.
    """

    fault: Fault
    ticks: Sequence[ToldTick]
    began_ns: int
    ended_ns: int
    observed: Mapping[str, bool]

    @property
    def before(self) -> list[ToldTick]:
        return [tick for tick in self.ticks if tick.received_ns < self.began_ns]

    @property
    def during(self) -> list[ToldTick]:
        return [tick for tick in self.ticks if self.began_ns <= tick.received_ns < self.ended_ns]

    @property
    def after(self) -> list[ToldTick]:
        return [tick for tick in self.ticks if tick.received_ns >= self.ended_ns]


def judge(injection: Injection, max_hold_ms: float) -> dict:
    """As JSON: each part's decisions, the longest hold, the recovery, and each check with its outcome."""
    fault, ticks, after = injection.fault, injection.ticks, injection.after
    recovery_s = fault.recovery_s
    recovery = next((index for index, tick in enumerate(after) if tick.is_moving), None)
    checks = {
        "every tick was told once, or counted as skipped": _is_complete(ticks),
        f"no hold beyond {max_hold_ms:g} ms": all(
            tick.hold_ms <= max_hold_ms for tick in ticks if tick.decision.is_hold
        ),
        "no frame used twice or after a later one": _uses_rising_frames(ticks),
        f"FRESH again within {recovery_s:g} s": recovery is not None
        and after[recovery].received_ns - injection.ended_ns <= recovery_s * 1e9,
    }
    # A fault that ends in the middle of a tick shows in the one that follows.
    affected = injection.during + after[: 2 if recovery is None else recovery + 1]
    checks |= _as_the_table_says(injection, affected)
    if not any(Decision.FAULT in wanted for wanted in fault.must_see):
        checks["no FAULT"] = all(tick.decision is not Decision.FAULT for tick in ticks)
    checks |= injection.observed
    return {
        "fault": fault.name,
        "began_ns": injection.began_ns,
        "ended_ns": injection.ended_ns,
        "before": _counts(injection.before),
        "during": _counts(injection.during),
        "after": _counts(after),
        "skipped_ticks": sum(tick.skipped_ticks for tick in ticks),
        "longest_without_fresh": _longest_without_fresh(ticks),
        "longest_hold_ms": max((tick.hold_ms for tick in ticks if tick.decision.is_hold), default=0.0),
        "recovery_ticks": recovery,
        "checks": checks,
        "is_kept": all(checks.values()),
    }


def _as_the_table_says(injection: Injection, affected: Sequence[ToldTick]) -> dict[str, bool]:
    """The checks of the fault's own row; `affected` are the ticks in which it can show."""
    fault = injection.fault
    fresh = [tick for tick in injection.during if tick.decision.is_fresh]
    checks = _seen_in_order(affected, fault.must_see)
    happened = Counter(event for tick in affected for event in tick.events)
    for event, times in Counter(fault.must_happen).items():
        often = "once" if times == 1 else f"{times} times"
        checks[f"{event} took effect {often}"] = happened[event] == times
    if fault.least_fresh:
        share = _fresh_share(injection.during)
        checks[f"FRESH in {100 * fault.least_fresh:g} % of the ticks"] = share >= fault.least_fresh
    if fault.fresh_hz:
        least = fault.fresh_hz * (injection.ended_ns - injection.began_ns) / 1e9 - 2
        checks[f"FRESH {fault.fresh_hz:g} times a second, but for 2"] = len(fresh) >= least
    if fault.most_age_ms is not None:
        ages_ms = [tick.frame_age_ms for tick in fresh]
        is_newest = bool(ages_ms) and median(ages_ms) <= fault.most_age_ms
        checks[f"median age of the pictures used at most {fault.most_age_ms:g} ms"] = is_newest
    if fault.most_late is not None:
        begun = takewhile(lambda tick: tick.decision is not Decision.HOLD_REFUSED, affected)
        n_late = sum(tick.decision is Decision.HOLD_LATE for tick in begun)
        checks[f"HOLD_LATE at most {fault.most_late} times before HOLD_REFUSED"] = n_late <= fault.most_late
    if fault.skips_ticks:
        checks["skipped ticks counted"] = any(tick.skipped_ticks for tick in affected)
    return checks


def _seen_in_order(ticks: Sequence[ToldTick], sets: Sequence[frozenset[Decision]]) -> dict[str, bool]:
    """Whether each set was seen, and whether the first ticks of those that were are in this order."""
    names = [" or ".join(sorted(map(str, wanted))) for wanted in sets]
    firsts = [next((i for i, tick in enumerate(ticks) if tick.decision in wanted), None) for wanted in sets]
    checks = {f"{name} seen": first is not None for name, first in zip(names, firsts, strict=True)}
    if len(sets) > 1:
        found = [first for first in firsts if first is not None]
        checks[f"first {', then '.join(names)}"] = found == sorted(found)
    return checks


def broken(fault: Fault, reason: str) -> dict:
    """The verdict where the node could not even be watched to the end, in the shape of `judge`."""
    return {
        "fault": fault.name,
        "began_ns": None,
        "ended_ns": None,
        "before": {},
        "during": {},
        "after": {},
        "skipped_ticks": None,
        "longest_without_fresh": None,
        "longest_hold_ms": None,
        "recovery_ticks": None,
        "checks": {reason: False},
        "is_kept": False,
    }


def lives(ticks: Iterable[ToldTick]) -> list[list[ToldTick]]:
    """The ticks of each activation: their numbers begin again."""
    parts: list[list[ToldTick]] = []
    for tick in ticks:
        if not parts or tick.tick <= parts[-1][-1].tick:
            parts.append([])
        parts[-1].append(tick)
    return parts


def _is_complete(ticks: Sequence[ToldTick]) -> bool:
    return all(
        later.tick == earlier.tick + 1 + later.skipped_ticks
        for life in lives(ticks)
        for earlier, later in pairwise(life)
    )


def _uses_rising_frames(ticks: Sequence[ToldTick]) -> bool:
    for life in lives(ticks):
        fresh = [tick for tick in life if tick.decision.is_fresh]
        for earlier, later in pairwise(fresh):
            if later.frame_index <= earlier.frame_index or later.frame_stamp_ns == earlier.frame_stamp_ns:
                return False
    return True


def _fresh_share(ticks: Sequence[ToldTick]) -> float:
    """Of ticks with those that were skipped; 0 where there are none."""
    n_ticks = sum(1 + tick.skipped_ticks for tick in ticks)
    return sum(tick.decision.is_fresh for tick in ticks) / max(1, n_ticks)


def _longest_without_fresh(ticks: Sequence[ToldTick]) -> int:
    longest = streak = 0
    for tick in ticks:
        streak = 0 if tick.decision.is_fresh else streak + 1
        longest = max(longest, streak)
    return longest


def _counts(ticks: Sequence[ToldTick]) -> dict[str, int]:
    return {str(decision): count for decision, count in Counter(t.decision for t in ticks).most_common()}
