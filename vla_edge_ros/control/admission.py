"""Refuse work that cannot finish: whether a pass is begun at all, by one of three rules.

`conformal` keeps a stated rate of misses, `ema` and `fixed` are what others do. Where a whole pass does not
fit, the ladder says what is done in its place.
"""

from collections.abc import Callable
from dataclasses import replace

from vla_edge_ros.control.conformal import ConformalRule
from vla_edge_ros.control.ladder import (
    NO_STEPS,
    LadderConfig,
    Step,
    choose,
    most_to_forget,
    most_to_hold,
)
from vla_edge_ros.control.mean_rules import EmaRule, FixedRule
from vla_edge_ros.control.rule import AdmissionConfig, Rule, Verdict
from vla_edge_ros.engine.interface import FRAME_TOKENS, StageTimes

RULES: dict[str, type[Rule]] = {"conformal": ConformalRule, "ema": EmaRule, "fixed": FixedRule}
"""By the name that `admission.estimator` has."""


class Admission:
    """Asks the rule, counts what it answers, and tells it what came of it.

    Each tick that may begin a pass asks once, and every tick settles. Passes are observed when they end: only
    one is in flight, so it is the one that the last verdict admitted.

    config: may be replaced at any time, but for `estimator`.
    """

    def __init__(self, config: AdmissionConfig, ladder: LadderConfig = NO_STEPS) -> None:
        self.config = config
        self._ladder = ladder
        self._rule = RULES[config.estimator]()
        self._context_tokens = 0
        self._whole_tokens = 0
        self._n_tokens = self._n_decoded = 1
        self.refusals = 0
        self.refusals_in_a_row = 0
        self.longest_refusal = 0
        self.probes = 0

    def predict(self, context_tokens: int = 0) -> int | None:
        """Nanoseconds from submitting a pass to its end, or None before there is an estimate."""
        return self._rule.judge(0, context_tokens, 0, self.config).predicted_ns

    def ask(
        self,
        now_ns: int,
        cutoff_ns: int,
        context_tokens: int = 0,
        n_frames: int = 0,
        can_reuse: Callable[[], bool] = lambda: False,
        n_tokens: int = 0,
    ) -> Verdict:
        """Judge a pass that would start at `now_ns` (the true time, late wake-ups included).

        context_tokens: prompt and retained frames that it attends to.
        n_frames: retained frames, of which some may be forgotten.
        can_reuse: whether the picture is still that of the last pass; asked where no pass fits.
        n_tokens: action tokens of a whole pass, of which some may be left out; 0 where none may.
        """
        verdicts: dict[tuple[Step, int], Verdict] = {}

        budget_ns = cutoff_ns - now_ns

        def lacks_ns(step: Step, n: int) -> int:
            verdict = self._rule.judge(
                budget_ns,
                context_tokens,
                self.refusals_in_a_row,
                self.config,
                FRAME_TOKENS * n if step is Step.FEWER_FRAMES else 0,
                (n_tokens - n) / n_tokens if step is Step.FEWER_TOKENS else 1.0,
            )
            verdicts[step, n] = verdict
            # To give something up takes a measurement that fits, not an aged one: a try is of a whole pass.
            if verdict.is_admitted and not (n and verdict.is_probe):
                return min(0, verdict.price_ns - budget_ns)
            return max(1, verdict.price_ns - budget_ns)

        most = {
            Step.FEWER_TOKENS: most_to_hold(self._ladder, n_tokens),
            Step.FEWER_FRAMES: most_to_forget(self._ladder, n_frames, self.refusals_in_a_row),
        }
        step, n = choose(most, lacks_ns, can_reuse)
        n_forgotten = n if step is Step.FEWER_FRAMES else 0
        n_held = n if step is Step.FEWER_TOKENS else 0
        if n_forgotten:
            self._whole_tokens = max(self._whole_tokens, context_tokens)
        elif context_tokens >= self._whole_tokens:
            self._whole_tokens = 0
        verdict = verdicts[(step, n) if n else (Step.FULL, 0)]
        lacks_whole_ns = verdict.price_ns - budget_ns
        if step is Step.HOLD and budget_ns > 0 and self._rule.spares_a_try(lacks_whole_ns, self.config):
            step, verdict = Step.FULL, replace(verdict, is_admitted=True, is_probe=True, refusal="")
        if step is not Step.FULL:
            verdict = replace(
                verdict,
                step=step,
                forgets_frames=n_forgotten,
                holds_tokens=n_held,
                prices_ns=_prices(verdicts, step, n),
            )
        if verdict.is_admitted:
            self._n_tokens, self._n_decoded = (n_tokens, n_tokens - n_held) if n_held else (1, 1)
            self._context_tokens = context_tokens - FRAME_TOKENS * n_forgotten
            self.refusals_in_a_row = 0
            self.probes += verdict.is_probe
        else:
            self.refusals += 1
            self.refusals_in_a_row += 1
            self.longest_refusal = max(self.longest_refusal, self.refusals_in_a_row)
            self._rule.age(self.config)
        return verdict

    @property
    def _is_shortened(self) -> bool:
        """Frames were forgotten for time, and memory has not filled up again since."""
        return self._whole_tokens > 0

    def observe(self, stages: StageTimes, total_ns: int) -> None:
        """Learn from the pass that was admitted last, in time or late; `total_ns` from submission to end."""
        stages, total_ns = self._as_of_all_tokens(stages, total_ns)
        self._rule.observe(stages, total_ns, self._context_tokens, self.config, self._is_shortened)

    def settle(self, is_miss: bool) -> None:
        """End a tick, of whatever decision; `is_miss`: it began a pass that was late, aborted or failed."""
        self._rule.settle(is_miss, self.config)

    def observe_aborted(self, at_least: StageTimes, at_least_ns: int) -> None:
        """Learn from a pass that was stopped and would have taken at least this long, as `observe` counts."""
        at_least, at_least_ns = self._as_of_all_tokens(at_least, at_least_ns)
        self._rule.observe_aborted(
            at_least, at_least_ns, self._context_tokens, self.config, self._is_shortened
        )

    def _as_of_all_tokens(self, stages: StageTimes, total_ns: int) -> tuple[StageTimes, int]:
        """What the pass would have taken with every token decoded: one step is as long as another."""
        if self._n_decoded == self._n_tokens:
            return stages, total_ns
        decode_ns = stages.decode_ns * self._n_tokens // self._n_decoded
        return replace(stages, decode_ns=decode_ns), total_ns + decode_ns - stages.decode_ns

    def forget(self) -> None:
        """Start again without an estimate (another engine process)."""
        self._rule.forget()
        self.refusals_in_a_row = 0
        self._whole_tokens = 0

    def memory_emptied(self) -> None:
        """Every frame is gone, and not for want of time: memory is short of nothing."""
        self._whole_tokens = 0


def _prices(verdicts: dict[tuple[Step, int], Verdict], taken: Step, n: int) -> dict[str, int]:
    """Of the steps looked at, by name; of one that was not enough at its end, where it gives up the most."""
    prices_ns: dict[str, int] = {}
    for (step, _), verdict in verdicts.items():
        # The end of a step is asked for first.
        prices_ns.setdefault(step.value, verdict.price_ns)
    if n:
        prices_ns[taken.value] = verdicts[taken, n].price_ns
    if taken is Step.REUSE:
        prices_ns[taken.value] = 0
    return prices_ns
