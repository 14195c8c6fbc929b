"""Refuse work that cannot finish: separate running means of each stage against the time that is left.

The rule is the reference architecture's (vla-edge-backend): exponential moving averages of prefill and decode
with alpha 0.2, the first sample admitted, a safety margin before the deadline. Two things differ, because the
reference refuses for ever after one slow sample: the elapsed time is the real one, and the estimate ages.
"""

from dataclasses import dataclass

from vla_edge_ros.engine.interface import StageTimes


@dataclass(frozen=True, slots=True)
class AdmissionConfig:
    """
    ema_alpha: weight of a new sample, in (0, 1].
    decay: factor on the estimate for each refused tick, in (0, 1].
    probe_after_ticks: after this many refusals in a row one pass is admitted whatever the estimate says.
    """

    ema_alpha: float
    decay: float
    probe_after_ticks: int


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


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a pass may start; `predicted_ns` is None before the first sample."""

    is_admitted: bool
    is_probe: bool
    predicted_ns: int | None


class Admission:
    """Decides from measured passes whether another one fits before the cut-off.

    Three averages are kept: prefill, decode, and everything else between submitting a pass and its end
    (transfer to the engine, frame copy, vision). The way back of a result is a matter of the margin.
    """

    def __init__(self, config: AdmissionConfig) -> None:
        self.config = config
        self._other, self._prefill, self._decode = Ema(), Ema(), Ema()
        self._has_finished = False
        self._aborted_in_a_row = 0
        self.refusals = 0
        self.refusals_in_a_row = 0
        self.longest_refusal = 0
        self.probes = 0

    def predict(self) -> int | None:
        """Nanoseconds from submitting a pass to its end, or None before the first sample."""
        if self._prefill.value is None:
            return None
        return round(self._other.value + self._prefill.value + self._decode.value)

    def ask(self, now_ns: int, cutoff_ns: int) -> Verdict:
        """Judge a pass that would start at `now_ns` (the true time, late wake-ups included)."""
        predicted = self.predict()
        fits = predicted is None or now_ns + predicted <= cutoff_ns
        is_probe = not fits and self.refusals_in_a_row >= self.config.probe_after_ticks
        is_admitted = fits or is_probe
        if is_admitted:
            self.refusals_in_a_row = 0
            self.probes += is_probe
        else:
            self.refusals += 1
            self.refusals_in_a_row += 1
            self.longest_refusal = max(self.longest_refusal, self.refusals_in_a_row)
            for ema in (self._other, self._prefill, self._decode):
                ema.decay(self.config.decay)
        return Verdict(is_admitted, is_probe, predicted)

    def observe(self, stages: StageTimes, total_ns: int) -> None:
        """Learn from a finished pass, late ones included; `total_ns` runs from submission to its end."""
        if not self._has_finished:
            # Bounds alone tell nothing of stages that no pass has come to.
            self.forget()
            self._has_finished = True
        self._aborted_in_a_row = 0
        alpha = self.config.ema_alpha
        self._prefill.observe(stages.prefill_ns, alpha)
        self._decode.observe(stages.decode_ns, alpha)
        self._other.observe(max(0, total_ns - stages.prefill_ns - stages.decode_ns), alpha)

    def observe_aborted(self, at_least: StageTimes, at_least_ns: int) -> None:
        """Learn from a pass that was stopped and would have taken at least this long, as `observe` counts.

        Such bounds raise the averages and never lower them. One is weighted as any sample, since it may be a
        hiccup; from the second in a row on, the averages rise to the bounds at once: weighted, they would
        stay below the deadline that the bounds come from, and admit for ever what never fits.
        """
        alpha = self.config.ema_alpha if self._aborted_in_a_row == 0 else 1.0
        self._aborted_in_a_row += 1
        other_ns = max(0, at_least_ns - at_least.prefill_ns - at_least.decode_ns)
        for ema, bound_ns in (
            (self._prefill, at_least.prefill_ns),
            (self._decode, at_least.decode_ns),
            (self._other, other_ns),
        ):
            ema.observe(max(bound_ns, ema.value or 0), alpha)

    def forget(self) -> None:
        """Start again without an estimate (another engine process)."""
        for ema in (self._other, self._prefill, self._decode):
            ema.value = None
        self._has_finished = False
        self._aborted_in_a_row = 0
        self.refusals_in_a_row = 0
