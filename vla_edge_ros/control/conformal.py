"""The admission rule that keeps a promise: misses per tick stay at or below a stated rate.

A pass is begun where its predicted time and an allowance fit the time left. The allowance is what is charged
of the account of misses times the spread of the prediction: beyond a few that are free a miss widens it by
one spread, a tick narrows it by the target rate of one, and a full account refuses everything.
docs/admission.md derives the bound that this keeps.
"""

from vla_edge_ros.control.latency_model import LatencyModel, durations_by_stage
from vla_edge_ros.control.miss_account import MOST_CHARGED, MissAccount
from vla_edge_ros.control.rule import AdmissionConfig, Verdict, want_of_time
from vla_edge_ros.engine.interface import StageTimes

SHORTEST_HALF_LIFE_TICKS = 8.0
"""Half-life of the ageing while nothing is on the account; 0.27 s, within the default hold timeout."""
PATIENCE_HALF_LIVES = 32.0
"""So many refused in a row, or as many as earn one miss, and a pass is tried whatever is predicted."""
_UNSEEN = 1.5
_ROUNDING = 1e-9
"""Ten tenths taken from one leave 1e-16: that is no patience either."""
_SPENT = "the misses that the target allows are spent"


class ConformalRule:
    """While passes are refused, prediction and allowance age, so that nothing can refuse for ever.

    They age the more slowly the fuller the account is: a try that fails is a miss like any other.
    """

    def __init__(self) -> None:
        self._account = MissAccount()
        self._model = LatencyModel()
        self._patience = 1.0

    def judge(
        self,
        budget_ns: int,
        context_tokens: int,
        n_refused: int,
        config: AdmissionConfig,
        fewer_tokens: int = 0,
        decode_share: float = 1.0,
    ) -> Verdict:
        target_rate = config.target_miss_rate
        allowance_ns = round(self._account.charged(target_rate) * self._model.spread_ns)
        predicted = self._model.predict(context_tokens, fewer_tokens, decode_share)
        needed_ns = 0 if predicted is None else sum(predicted.values())
        fits = needed_ns + allowance_ns <= budget_ns or self._patience <= 0 <= budget_ns
        if (is_spent := self._account.is_full(target_rate)) or not fits:
            why = _SPENT if is_spent else want_of_time(needed_ns, allowance_ns, budget_ns)
            return Verdict(False, False, predicted, allowance_ns, why)
        level_ns = 0.0
        if predicted is not None and n_refused:
            level_ns = self._model.level_ns(context_tokens, fewer_tokens, decode_share)
        return Verdict(True, level_ns + allowance_ns > budget_ns, predicted, allowance_ns)

    def spares_a_try(self, lacks_ns: int, config: AdmissionConfig) -> bool:
        """While there are misses to spare, a pass that lacks no more than the prediction is wrong by.

        Where all passes together would miss less than the target, hardly one is refused.
        """
        return self._account.has_spare(config.target_miss_rate) and lacks_ns <= self._model.spread_ns

    def age(self, config: AdmissionConfig) -> None:
        earning_ticks = max(SHORTEST_HALF_LIFE_TICKS, 1 / config.target_miss_rate)
        fullness = self._account.charged(config.target_miss_rate) / MOST_CHARGED
        # The cube keeps tries frequent up to half an account and rare beyond: found by simulation.
        slack_ticks = (earning_ticks - SHORTEST_HALF_LIFE_TICKS) * fullness * fullness * fullness
        half_life_ticks = SHORTEST_HALF_LIFE_TICKS + slack_ticks
        self._model.age(half_life_ticks)
        self._patience -= 1 / min(earning_ticks, PATIENCE_HALF_LIVES * half_life_ticks)
        if self._patience < _ROUNDING:
            self._patience = 0.0

    def observe(
        self,
        stages: StageTimes,
        total_ns: int,
        context_tokens: int,
        config: AdmissionConfig,
        is_shortened: bool = False,
    ) -> None:
        self._patience = 1.0
        self._model.observe(durations_by_stage(stages, total_ns), context_tokens, is_shortened)

    def observe_aborted(
        self,
        at_least: StageTimes,
        at_least_ns: int,
        context_tokens: int,
        config: AdmissionConfig,
        is_shortened: bool = False,
    ) -> None:
        """Half as long again as the bound: nobody saw its end, and the bound is just past the deadline."""
        self._patience = 1.0
        durations = durations_by_stage(at_least, at_least_ns)
        self._model.observe_bound(durations, _UNSEEN, context_tokens, is_shortened)

    def settle(self, is_miss: bool, config: AdmissionConfig) -> None:
        self._account.settle(is_miss, config.target_miss_rate)

    def forget(self) -> None:
        """Misses stay on the account: the promise is one about ticks, whichever engine runs."""
        self._patience = 1.0
        self._model.forget()
