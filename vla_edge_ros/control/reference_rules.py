"""Admission as others do it, to compare with: moving averages, and a figure measured once.

Both refuse by a mean, promise nothing about misses, and are opened again by a probe.
"""

from dataclasses import dataclass

from vla_edge_ros.control.latency_model import durations_by_stage
from vla_edge_ros.control.verdict import Verdict, in_words
from vla_edge_ros.engine.interface import StageTimes

WARM_UP_PASSES = 31
"""The passes whose medians the rule `fixed` keeps for ever."""


class Ema:
    """An exponential moving average that is unknown (None) until its first sample."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float | None = None

    def observe(self, sample: float, alpha: float) -> None:
        self.value = sample if self.value is None else self.value + alpha * (sample - self.value)

    def decay(self, factor: float) -> None:
        if self.value is not None:
            self.value *= factor


class EmaRule:
    """The reference architecture's (vla-edge-backend): averages of prefill and decode, the first sample admitted.

    Two things differ, because the reference refuses for ever after one slow sample: the elapsed time is the real
    one, and the estimate ages. A third average, `transfer`, has all else between submitting a pass and its end.
    """

    def __init__(self) -> None:
        self.forget()

    def predict(self) -> dict[str, int] | None:
        if self._prefill.value is None:
            return None
        averages = {"prefill": self._prefill, "decode": self._decode, "transfer": self._other}
        return {stage: round(average.value) for stage, average in averages.items()}

    def observe(self, stages: StageTimes, total_ns: int, alpha: float) -> None:
        self._prefill.observe(stages.prefill_ns, alpha)
        self._decode.observe(stages.decode_ns, alpha)
        self._other.observe(max(0, total_ns - stages.prefill_ns - stages.decode_ns), alpha)

    def age(self, factor: float) -> None:
        for average in (self._other, self._prefill, self._decode):
            average.decay(factor)

    def forget(self) -> None:
        self._other, self._prefill, self._decode = Ema(), Ema(), Ema()
