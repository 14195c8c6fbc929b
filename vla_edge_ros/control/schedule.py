"""When ticks start, when inference must have finished, and when an action takes effect."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TickTimes:
    """The three moments of tick k on the steady clock: S_k, C_k = S_k + D - margin, E_k = S_k + D."""

    tick: int
    start_ns: int
    cutoff_ns: int
    effect_ns: int


@dataclass(frozen=True, slots=True)
class TickSchedule:
    """S_k = S_0 + k * period, with a deadline D <= period. Raises ValueError where these cannot hold.

    counts_from_capture: whether D counts from the capture of a pass's frame as well, in `pass_cutoff_ns`.
    """

    origin_ns: int
    period_ns: int
    deadline_ns: int
    margin_ns: int
    counts_from_capture: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.deadline_ns <= self.period_ns:
            raise ValueError(
                f"deadline of {self.deadline_ns / 1e6:g} ms must be above 0 and at most the period of "
                f"{self.period_ns / 1e6:g} ms"
            )
        if not 0 <= self.margin_ns < self.deadline_ns:
            raise ValueError(
                f"margin of {self.margin_ns / 1e6:g} ms must be at least 0 and below the deadline of "
                f"{self.deadline_ns / 1e6:g} ms"
            )

    def times(self, tick: int) -> TickTimes:
        start = self.origin_ns + tick * self.period_ns
        effect = start + self.deadline_ns
        return TickTimes(tick, start, effect - self.margin_ns, effect)

    def pass_cutoff_ns(self, times: TickTimes, capture_ns: int) -> int:
        """When a pass over a frame of `capture_ns` must have finished: C_k, or earlier for an older frame.

        E_k and the moment of publishing stay: a controller that keeps its last command has to be given the
        next one a period later, neither sooner nor after, for limits of velocity to mean anything.
        """
        if not self.counts_from_capture:
            return times.cutoff_ns
        return min(times.cutoff_ns, capture_ns + self.deadline_ns - self.margin_ns)

    def quiet(self, now_ns: int) -> tuple[int, int]:
        """When the process had best be quiet, now or next: from a margin before C_k until E_k.

        Then a tick's last messages go out, and what began shortly before has ended.
        """
        tick = max(0, (now_ns - self.origin_ns) // self.period_ns)
        times = self.times(tick)
        if now_ns >= times.effect_ns:
            times = self.times(tick + 1)
        return times.cutoff_ns - self.margin_ns, times.effect_ns

    def following(self, tick: int, now_ns: int) -> int:
        """The tick to run after `tick`, as `next_tick` says."""
        return next_tick(tick, now_ns, self.origin_ns, self.period_ns)


def next_tick(tick: int, now_ns: int, start_ns: int, period_ns: int) -> int:
    """The tick after `tick`: the following one, or the one whose period it now is; those between are missed.

    Tick k's period is [start_ns + k * period_ns, start_ns + (k + 1) * period_ns). Never a burst: a tick is
    skipped once its whole period has passed.
    """
    return max(tick + 1, (now_ns - start_ns) // period_ns)
