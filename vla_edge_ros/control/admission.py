"""Refuse work that cannot finish: whether a pass is begun at all, by one of three rules.

`conformal` keeps a stated rate of misses, `ema` and `fixed` are what others do.
"""

from vla_edge_ros.control.conformal import ConformalRule
from vla_edge_ros.control.mean_rules import EmaRule, FixedRule
from vla_edge_ros.control.rule import AdmissionConfig, Rule, Verdict
from vla_edge_ros.engine.interface import StageTimes

RULES: dict[str, type[Rule]] = {"conformal": ConformalRule, "ema": EmaRule, "fixed": FixedRule}
"""By the name that `admission.estimator` has."""


class Admission:
    """Asks the rule, counts what it answers, and tells it what came of it.

    Each tick that may begin a pass asks once, and every tick settles. Passes are observed when they end: only
    one is in flight, so it is the one that the last verdict admitted.

    config: may be replaced at any time, but for `estimator`.
    """

    def __init__(self, config: AdmissionConfig) -> None:
        self.config = config
        self._rule = RULES[config.estimator]()
        self._context_tokens = 0
        self.refusals = 0
        self.refusals_in_a_row = 0
        self.longest_refusal = 0
        self.probes = 0

    def predict(self, context_tokens: int = 0) -> int | None:
        """Nanoseconds from submitting a pass to its end, or None before there is an estimate."""
        return self._rule.judge(0, context_tokens, 0, self.config).predicted_ns

    def ask(self, now_ns: int, cutoff_ns: int, context_tokens: int = 0) -> Verdict:
        """Judge a pass that would start at `now_ns` (the true time, late wake-ups included).

        context_tokens: prompt and retained frames that it attends to.
        """
        verdict = self._rule.judge(cutoff_ns - now_ns, context_tokens, self.refusals_in_a_row, self.config)
        if verdict.is_admitted:
            self._context_tokens = context_tokens
            self.refusals_in_a_row = 0
            self.probes += verdict.is_probe
        else:
            self.refusals += 1
            self.refusals_in_a_row += 1
            self.longest_refusal = max(self.longest_refusal, self.refusals_in_a_row)
            self._rule.age(self.config)
        return verdict

    def observe(self, stages: StageTimes, total_ns: int) -> None:
        """Learn from the pass that was admitted last, in time or late; `total_ns` from submission to end."""
        self._rule.observe(stages, total_ns, self._context_tokens, self.config)

    def settle(self, is_miss: bool) -> None:
        """End a tick, of whatever decision; `is_miss`: it began a pass that was late, aborted or failed."""
        self._rule.settle(is_miss, self.config)

    def observe_aborted(self, at_least: StageTimes, at_least_ns: int) -> None:
        """Learn from a pass that was stopped and would have taken at least this long, as `observe` counts."""
        self._rule.observe_aborted(at_least, at_least_ns, self._context_tokens, self.config)

    def forget(self) -> None:
        """Start again without an estimate (another engine process)."""
        self._rule.forget()
        self.refusals_in_a_row = 0
