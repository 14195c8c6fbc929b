"""One tick as it was recorded, beside what its run says of it; and how figures are told."""

from vla_edge_ros.control import settings
from vla_edge_ros.control.decision import Decision
from vla_edge_ros.evaluation.explain.recorded_ticks import RecordedTicks

_LONGEST_MS = 1e9
"""What a parameter may be at most; it comes from a file."""


class ToldTick:
    """A record beside what the run says of its times; what it lacks is None."""

    def __init__(self, run: RecordedTicks, place: int) -> None:
        self.record = run.ticks[place]
        self.before, self.after = run.ticks[:place], run.ticks[place + 1 :]
        self.ttl_ns = _parameter_ns(run, "actions.ttl_ms")
        max_hold_ns = _parameter_ns(run, "actions.max_hold_ms")
        self.max_hold_ns = _newest(run, place, "control", "max_hold_ns", int, max_hold_ns)
        self.estimator = run.parameters.get("admission.estimator")
        target_rate = run.parameters.get("admission.target_miss_rate")
        self.target_miss_rate = _newest(run, place, "admission", "target_miss_rate", float, target_rate)
        self.scheduled_ns, self.started_ns = self["scheduled_ns"], self["started_ns"]
        deadline_ns = _parameter_ns(run, "control.deadline_ms")
        margin_ns = _parameter_ns(run, "control.margin_ms")
        self.effect_ns = self.cutoff_ns = None
        if None not in (self.scheduled_ns, deadline_ns):
            self.effect_ns = self.scheduled_ns + deadline_ns
            if margin_ns is not None:
                self.cutoff_ns = self.effect_ns - margin_ns

    def __getitem__(self, name: str):
        return self.record.get(name)

    @property
    def decision(self) -> Decision:
        return Decision(self.record["decision"])

    @property
    def pass_cutoff_ns(self) -> int | None:
        """That of the tick, or an earlier one of its frame."""
        recorded_ns = self["pass_cutoff_ns"]
        return self.cutoff_ns if recorded_ns is None else recorded_ns

    @property
    def own(self) -> dict | None:
        """What this tick saw of the work that it began itself."""
        submitted = self["submitted_work"]
        own = (work for work in self["work"] or [] if work["work_id"] == submitted)
        return None if submitted is None else next(own, None)


def _parameter_ns(run: RecordedTicks, name: str) -> int | None:
    """None where it was not recorded, or is no time that a parameter may have."""
    value_ms = run.parameters.get(name)
    return None if value_ms is None or not 0 <= value_ms <= _LONGEST_MS else settings.ns(value_ms)


def _newest(run: RecordedTicks, place: int, part: str, name: str, kind: type, found: object):
    """At that tick: the parameter as `found`, or what it was changed to while ticks ran."""
    for tick in run.ticks[: place + 1]:
        for event in tick.get("events", []):
            changed = event.get(part, {}).get(name)
            found = changed if type(changed) is kind else found
    return found


def between_ns(work: dict, first: str, last: str) -> int | None:
    return work[last] - work[first] if first in work and last in work else None


def in_ms(ns: int) -> str:
    return f"{ns / 1e6:.2f} ms" if abs(ns) < 100_000_000 else f"{ns / 1e6:,.0f} ms"


def in_seconds(ns: int) -> str:
    """Exactly, as `ros2 topic echo` and a recording have it."""
    return f"{ns // 10**9}.{ns % 10**9:09d} s"


def were(n: int) -> str:
    return "was" if n == 1 else "were"


def they(n: int) -> str:
    return "it" if n == 1 else "they"
