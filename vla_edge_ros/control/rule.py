"""What a rule of admission is asked, what it answers, and what it is told."""

from dataclasses import dataclass
from typing import Protocol

from vla_edge_ros.control.ladder import Step
from vla_edge_ros.engine.interface import StageTimes


@dataclass(frozen=True, slots=True)
class AdmissionConfig:
    """
    ema_alpha: rule `ema`: weight of a new sample, in (0, 1].
    decay: rule `ema`: factor on the estimate for each refused tick, in (0, 1].
    probe_after_ticks: rules `ema` and `fixed`: after this many refusals in a row one pass is admitted
        whatever the estimate says.
    estimator: the rule: conformal, ema or fixed. It is chosen once, not in a running loop.
    target_miss_rate: rule `conformal`: misses per tick that are kept, in (0, 0.5).
    """

    ema_alpha: float
    decay: float
    probe_after_ticks: int
    estimator: str = "conformal"
    target_miss_rate: float = 0.001


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a pass may start, and why.

    is_probe: admitted although what was last measured does not fit.
    predicted_by_stage: nanoseconds of each stage, None before there is an estimate.
    allowance_ns: kept free beside the predicted time.
    refusal: one line where the pass is refused, else empty.
    step: of the ladder; the prediction is of the pass that it begins, or of a whole one where it begins none.
    forgets_frames: how many the step FEWER_FRAMES forgets first.
    holds_tokens: how many the step FEWER_TOKENS leaves out.
    prices_ns: where a whole pass does not fit, the time that each step was found to need, allowance included.
    """

    is_admitted: bool
    is_probe: bool = False
    predicted_by_stage: dict[str, int] | None = None
    allowance_ns: int = 0
    refusal: str = ""
    step: Step = Step.FULL
    forgets_frames: int = 0
    holds_tokens: int = 0
    prices_ns: dict[str, int] | None = None

    @property
    def price_ns(self) -> int:
        """What must be left for the pass, 0 where there is no estimate."""
        return (self.predicted_ns or 0) + self.allowance_ns

    @property
    def predicted_ns(self) -> int | None:
        """From submitting a pass to its end."""
        return None if self.predicted_by_stage is None else sum(self.predicted_by_stage.values())


class Rule(Protocol):
    """Decides whether a pass fits; it is told of every tick's end, and of every pass's."""

    def judge(
        self,
        budget_ns: int,
        context_tokens: int,
        n_refused: int,
        config: AdmissionConfig,
        fewer_tokens: int = 0,
        decode_share: float = 1.0,
    ) -> Verdict:
        """Of a pass that attends to `context_tokens`, with `budget_ns` left, after `n_refused` in a row.

        fewer_tokens: how many of these would be forgotten first.
        decode_share: of the decode steps, those that would be done.
        """

    def spares_a_try(self, lacks_ns: int, config: AdmissionConfig) -> bool:
        """Whether a pass that lacks so much may be begun as a try, where nothing else fits either."""

    def age(self, config: AdmissionConfig) -> None:
        """A pass was refused."""

    def observe(
        self,
        stages: StageTimes,
        total_ns: int,
        context_tokens: int,
        config: AdmissionConfig,
        is_shortened: bool = False,
    ) -> None:
        """A pass ended, in time or late; `total_ns` runs from its submission.

        is_shortened: frames were forgotten for time, and memory has not filled up again since.
        """

    def observe_aborted(
        self,
        at_least: StageTimes,
        at_least_ns: int,
        context_tokens: int,
        config: AdmissionConfig,
        is_shortened: bool = False,
    ) -> None:
        """A pass was stopped that would have taken at least this long."""

    def settle(self, is_miss: bool, config: AdmissionConfig) -> None:
        """A tick ended."""

    def forget(self) -> None:
        """Another engine process took over."""


def want_of_time(needed_ns: int, allowance_ns: int, budget_ns: int) -> str:
    """The line of a refusal."""
    allowance = f" and an allowance of {allowance_ns / 1e6:.1f} ms" if allowance_ns else ""
    return f"a pass needs {needed_ns / 1e6:.1f} ms{allowance}, {budget_ns / 1e6:.1f} ms are left"
