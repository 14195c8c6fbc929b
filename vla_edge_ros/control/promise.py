"""What became of the promise: misses per tick so far, and what to blame for them."""

from collections import Counter
from typing import NamedTuple

from vla_edge_ros.control.decision import Decision
from vla_edge_ros.control.latency_model import durations_by_stage
from vla_edge_ros.control.miss_account import most_misses
from vla_edge_ros.control.record import TickRecord, WorkTimes
from vla_edge_ros.figures import wilson_interval


class Rates(NamedTuple):
    """What `Promise` comes to at one tick; rates per tick, the streak in ticks."""

    hold_streak: int
    miss_rate: float
    refusal_rate: float
    goodput: float


class Promise:
    """Counts ticks since it was made, or since the target last changed.

    fresh: decisions FRESH. longest_refusal, hold_streak, longest_hold: in ticks; a hold streak is of ticks
        without a fresh action.
    steps: ticks by the step of the ladder that they took.
    blame: by stage, how many misses it had the largest share in: it took longer than predicted by more than
        any other, or, where nothing was predicted, longest. `engine`: the pass never ended.
    """

    def __init__(self) -> None:
        self._target: float | None = None
        self._start()

    def _start(self) -> None:
        self.ticks = self.misses = self.fresh = self.refusals = 0
        self.longest_refusal = self.hold_streak = self.longest_hold = 0
        self.steps: Counter[str] = Counter()
        self.blame: Counter[str] = Counter()
        self._refused_in_a_row = 0
        self._missed: tuple[int, dict[str, int]] | None = None

    @property
    def target(self) -> float:
        return self._target or 0.0

    def count(self, record: TickRecord, target: float) -> None:
        """Add a tick whose decision stands."""
        if target != self._target:
            self._target = target
            self._start()
        self.ticks += 1
        self.misses += record.is_miss
        self.fresh += record.decision is Decision.FRESH
        if record.step is not None:
            self.steps[record.step.value] += 1
        is_refused = record.decision is Decision.HOLD_REFUSED
        self.refusals += is_refused
        self._refused_in_a_row = self._refused_in_a_row + 1 if is_refused else 0
        self.longest_refusal = max(self.longest_refusal, self._refused_in_a_row)
        self.hold_streak = 0 if record.decision.is_fresh else self.hold_streak + 1
        self.longest_hold = max(self.longest_hold, self.hold_streak)
        self._find_blame(record)

    def _find_blame(self, record: TickRecord) -> None:
        if self._missed is not None:
            work_id, predicted = self._missed
            ended = next((work for work in record.work if work.work_id == work_id), None)
            if ended is not None:
                self.blame[_slowest_stage(ended, predicted)] += 1
                self._missed = None
            elif record.submitted_work is not None or record.decision is Decision.FAULT:
                self.blame["engine"] += 1
                self._missed = None
        if record.is_miss:
            predicted = record.predicted_by_stage or {}
            ended = next((work for work in record.work if work.work_id == record.submitted_work), None)
            if ended is not None:
                self.blame[_slowest_stage(ended, predicted)] += 1
            elif record.decision is Decision.FAULT:
                self.blame["engine"] += 1
            else:
                self._missed = record.submitted_work, predicted

    @property
    def miss_rate(self) -> float:
        return self._share(self.misses)

    @property
    def refusal_rate(self) -> float:
        return self._share(self.refusals)

    @property
    def goodput(self) -> float:
        """FRESH per tick."""
        return self._share(self.fresh)

    def rates(self) -> Rates:
        """As of the tick that was counted last."""
        return Rates(self.hold_streak, self.miss_rate, self.refusal_rate, self.goodput)

    def _share(self, n: int) -> float:
        return n / self.ticks if self.ticks else 0.0

    def miss_interval(self) -> tuple[float, float]:
        """95 % confidence interval of the misses per tick (Wilson's score interval)."""
        return wilson_interval(self.misses, self.ticks)

    @property
    def is_broken(self) -> bool:
        """More misses than the conformal rule can let through; another rule may break it any time."""
        return self.misses > self.target * self.ticks + most_misses(self.target)

    def in_words(self) -> str:
        """`3 misses in 9,000 ticks: 0.033 % (95 % Wilson interval 0.011 to 0.098 %), target 0.1 %`."""
        low, high = self.miss_interval()
        blamed = f", most by {self.blame.most_common(1)[0][0]}" if self.blame else ""
        return (
            f"{self.misses:,} misses in {self.ticks:,} ticks: {100 * self.miss_rate:.3f} % (95 % Wilson "
            f"interval {100 * low:.3f} to {100 * high:.3f} %), target {100 * self.target:g} %{blamed}"
        )


def _slowest_stage(work: WorkTimes, predicted: dict[str, int]) -> str:
    took = durations_by_stage(work.stages + work.remaining, work.total_ns + work.remaining.total_ns)
    return max(took, key=lambda stage: took[stage] - predicted.get(stage, 0))
