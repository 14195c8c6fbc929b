"""Admission as others do it, to compare with: by moving averages, and by a figure measured once.

Both compare a middle value with the time left, promise nothing about misses, and are opened by a probe.
"""

from vla_edge_ros.control.latency_model import durations_by_stage
from vla_edge_ros.control.rule import AdmissionConfig, Verdict, want_of_time
from vla_edge_ros.engine.interface import StageTimes

WARM_UP_PASSES = 31


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
    """The rule of the reference architecture (vla-edge-backend): running means of prefill and decode.

    Two things differ, because the reference refuses for ever after one slow sample: the elapsed time is the
    real one, and the estimate ages. A third mean, `transfer`, is of everything else between submitting a pass
    and its end. The way back of a result is a matter of the margin.
    """

    def __init__(self) -> None:
        self.forget()

    def judge(
        self,
        budget_ns: int,
        context_tokens: int,
        n_refused: int,
        config: AdmissionConfig,
        fewer_tokens: int = 0,
        decode_share: float = 1.0,
    ) -> Verdict:
        predicted = None
        if self._means["prefill"].value is not None:
            predicted = {stage: round(mean.value) for stage, mean in self._means.items()}
        return _judge(predicted, budget_ns, n_refused, config, decode_share)

    def spares_a_try(self, lacks_ns: int, config: AdmissionConfig) -> bool:
        return False

    def age(self, config: AdmissionConfig) -> None:
        for mean in self._means.values():
            mean.decay(config.decay)

    def observe(
        self,
        stages: StageTimes,
        total_ns: int,
        context_tokens: int,
        config: AdmissionConfig,
        is_shortened: bool = False,
    ) -> None:
        if not self._has_finished:
            # Bounds alone tell nothing of stages that no pass has come to.
            self.forget()
            self._has_finished = True
        self._aborted_in_a_row = 0
        for stage, ns in _three(stages, total_ns).items():
            self._means[stage].observe(ns, config.ema_alpha)

    def observe_aborted(
        self,
        at_least: StageTimes,
        at_least_ns: int,
        context_tokens: int,
        config: AdmissionConfig,
        is_shortened: bool = False,
    ) -> None:
        """Such bounds raise the averages and never lower them.

        One is weighted as any sample, since it may be a hiccup; from the second in a row on, the averages
        rise to the bounds at once: weighted, they would stay below the deadline that the bounds come from,
        and admit for ever what never fits.
        """
        alpha = config.ema_alpha if self._aborted_in_a_row == 0 else 1.0
        self._aborted_in_a_row += 1
        for stage, bound_ns in _three(at_least, at_least_ns).items():
            mean = self._means[stage]
            mean.observe(max(bound_ns, mean.value or 0), alpha)

    def settle(self, is_miss: bool, config: AdmissionConfig) -> None:
        """Misses teach it nothing."""

    def forget(self) -> None:
        self._means = {stage: Ema() for stage in ("prefill", "decode", "transfer")}
        self._has_finished = False
        self._aborted_in_a_row = 0


class FixedRule:
    """A figure for ever: the median of each stage over the first WARM_UP_PASSES passes, all admitted."""

    def __init__(self) -> None:
        self.forget()

    def judge(
        self,
        budget_ns: int,
        context_tokens: int,
        n_refused: int,
        config: AdmissionConfig,
        fewer_tokens: int = 0,
        decode_share: float = 1.0,
    ) -> Verdict:
        return _judge(self._medians, budget_ns, n_refused, config, decode_share)

    def spares_a_try(self, lacks_ns: int, config: AdmissionConfig) -> bool:
        return False

    def age(self, config: AdmissionConfig) -> None:
        """It is fixed."""

    def observe(
        self,
        stages: StageTimes,
        total_ns: int,
        context_tokens: int,
        config: AdmissionConfig,
        is_shortened: bool = False,
    ) -> None:
        if self._medians is not None:
            return
        self._seen.append(durations_by_stage(stages, total_ns))
        if len(self._seen) == WARM_UP_PASSES:
            middle = WARM_UP_PASSES // 2
            self._medians = {
                stage: sorted(seen[stage] for seen in self._seen)[middle] for stage in self._seen[0]
            }

    def observe_aborted(
        self,
        at_least: StageTimes,
        at_least_ns: int,
        context_tokens: int,
        config: AdmissionConfig,
        is_shortened: bool = False,
    ) -> None:
        """It counts whole passes."""

    def settle(self, is_miss: bool, config: AdmissionConfig) -> None:
        """Misses teach it nothing."""

    def forget(self) -> None:
        self._seen: list[dict[str, int]] = []
        self._medians: dict[str, int] | None = None


def _three(stages: StageTimes, total_ns: int) -> dict[str, int]:
    """What the moving averages are of."""
    rest_ns = max(0, total_ns - stages.prefill_ns - stages.decode_ns)
    return {"prefill": stages.prefill_ns, "decode": stages.decode_ns, "transfer": rest_ns}


def _judge(
    predicted: dict[str, int] | None,
    budget_ns: int,
    n_refused: int,
    config: AdmissionConfig,
    decode_share: float,
) -> Verdict:
    if predicted is not None and decode_share < 1:
        predicted = predicted | {"decode": round(decode_share * predicted["decode"])}
    needed_ns = 0 if predicted is None else sum(predicted.values())
    fits = predicted is None or needed_ns <= budget_ns
    is_probe = not fits and n_refused >= config.probe_after_ticks
    refusal = "" if fits or is_probe else want_of_time(needed_ns, 0, budget_ns)
    return Verdict(not refusal, is_probe, predicted, 0, refusal)
