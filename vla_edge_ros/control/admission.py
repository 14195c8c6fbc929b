"""Refuse work that cannot finish: whether a pass is begun at all, by one of three rules.

`conformal` keeps a stated rate of misses, `ema` and `fixed` are what others do. Where a whole pass does not
fit, the ladder says what is done in its place.
"""

from collections.abc import Callable
from dataclasses import replace

from vla_edge_ros.control.conformal import ConformalRule
from vla_edge_ros.control.ladder import NO_STEPS, LadderConfig, Step, choose, most_to_forget
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
    ) -> Verdict:
        """Judge a pass that would start at `now_ns` (the true time, late wake-ups included).

        context_tokens: prompt and retained frames that it attends to.
        n_frames: retained frames, of which some may be forgotten.
        can_reuse: whether the picture is still that of the last pass; asked where no pass fits.
        """
        verdicts: dict[int, Verdict] = {}

        def fits(n_forgotten: int) -> bool:
            verdict = self._rule.judge(
                cutoff_ns - now_ns,
                context_tokens,
                self.refusals_in_a_row,
                self.config,
                FRAME_TOKENS * n_forgotten,
            )
            verdicts[n_forgotten] = verdict
            # What is forgotten stays forgotten: that takes a measurement that fits, not an aged one.
            return verdict.is_admitted and not (n_forgotten and verdict.is_probe)

        most = most_to_forget(self._ladder, n_frames, self.refusals_in_a_row)
        step, n_forgotten = choose(most, fits, can_reuse)
        if n_forgotten:
            self._whole_tokens = max(self._whole_tokens, context_tokens)
        elif context_tokens >= self._whole_tokens:
            self._whole_tokens = 0
        verdict = verdicts[n_forgotten]
        if step is not Step.FULL:
            verdict = replace(
                verdict,
                step=step,
                forgets_frames=n_forgotten,
                prices_ns=_prices(verdicts, n_forgotten, step),
            )
        if verdict.is_admitted:
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
        self._rule.observe(stages, total_ns, self._context_tokens, self.config, self._is_shortened)

    def settle(self, is_miss: bool) -> None:
        """End a tick, of whatever decision; `is_miss`: it began a pass that was late, aborted or failed."""
        self._rule.settle(is_miss, self.config)

    def observe_aborted(self, at_least: StageTimes, at_least_ns: int) -> None:
        """Learn from a pass that was stopped and would have taken at least this long, as `observe` counts."""
        self._rule.observe_aborted(
            at_least, at_least_ns, self._context_tokens, self.config, self._is_shortened
        )

    def forget(self) -> None:
        """Start again without an estimate (another engine process)."""
        self._rule.forget()
        self.refusals_in_a_row = 0
        self._whole_tokens = 0

    def memory_emptied(self) -> None:
        """Every frame is gone, and not for want of time: memory is short of nothing."""
        self._whole_tokens = 0


def _prices(verdicts: dict[int, Verdict], n_forgotten: int, step: Step) -> dict[str, int]:
    """Of the steps looked at, by name; of forgetting at its end, where even that is not enough."""
    prices_ns = {Step.FULL.value: verdicts[0].price_ns}
    most = n_forgotten or max(verdicts)
    if most:
        prices_ns[Step.FEWER_FRAMES.value] = verdicts[most].price_ns
    if step is Step.REUSE:
        prices_ns[Step.REUSE.value] = 0
    return prices_ns
