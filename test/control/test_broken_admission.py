"""Admission broken on purpose in three ways: each breaks a bound that the rule as it is keeps."""

import pytest

from vla_edge_ros.control.admission import Admission, AdmissionConfig
from vla_edge_ros.control.miss_account import most_misses
from vla_edge_ros.engine.interface import StageTimes

MS = 1_000_000
BUDGET = 31 * MS
TARGET = 0.01


class ElapsedIsAlwaysZero(Admission):
    """Takes every tick for one that woke up in time."""

    def ask(self, now_ns, cutoff_ns, context_tokens=0):
        return super().ask(0, cutoff_ns, context_tokens)


class NoDecay(Admission):
    """What was predicted stays predicted, however many ticks were refused for it."""

    def __init__(self, config):
        super().__init__(config)
        self._rule.age = lambda config: None


class CountsAdmittedTicksAlone(Admission):
    """The rate of misses among the passes that were begun: a refused tick earns nothing."""

    def ask(self, now_ns, cutoff_ns, context_tokens=0):
        verdict = super().ask(now_ns, cutoff_ns, context_tokens)
        self._began = verdict.is_admitted
        return verdict

    def settle(self, is_miss):
        if self._began:
            super().settle(is_miss)


def run(kind: type[Admission], ticks) -> str:
    """F(resh), M(issed) or R(efused) of each tick, which is told as (woken up late by ms, service ms)."""
    gate = kind(AdmissionConfig(0.2, 0.9, 8, "conformal", TARGET))
    found = []
    for late_ms, service_ms in ticks:
        start_ns, service_ns = round(late_ms * MS), round(service_ms * MS)
        is_miss = False
        if gate.ask(start_ns, BUDGET, 1000).is_admitted:
            is_miss = start_ns + service_ns > BUDGET
            gate.observe(StageTimes(decode_ns=service_ns), service_ns)
            found.append("M" if is_miss else "F")
        else:
            found.append("R")
        gate.settle(is_miss)
    return "".join(found)


def longest_refusal(ticks: str) -> int:
    return max(map(len, ticks.replace("M", "F").split("F")))


WAKES_LATE = [(15.0 if tick % 4 == 3 else 0.0, 20.0) for tick in range(4000)]
"""Every fourth tick has no room for its pass, and says so by the clock alone."""
SLOW_SPELL = [(0.0, 20.0)] * 100 + [(0.0, 45.0)] * 300 + [(0.0, 20.0)] * 1000
HOPELESS = [(0.0, 45.0)] * 6000


def test_the_true_elapsed_time_keeps_every_miss_away():
    found = run(Admission, WAKES_LATE)
    assert found.count("M") <= 1  # the first pass, of which nothing is known
    assert found.count("F") >= 0.74 * len(found)


def test_with_an_elapsed_time_of_zero_misses_exceed_the_target():
    found = run(ElapsedIsAlwaysZero, WAKES_LATE)
    assert found.count("M") > 1.1 * TARGET * len(found)
    assert found.count("F") < 0.74 * len(found)


@pytest.mark.parametrize("ticks", [SLOW_SPELL, HOPELESS], ids=["slow spell", "hopeless"])
def test_no_refusal_outlasts_what_earns_a_miss(ticks):
    found = run(Admission, ticks)
    assert longest_refusal(found) <= 1 / TARGET
    assert found.count("M") <= TARGET * len(found) + most_misses(TARGET)


def test_without_decay_a_slow_spell_locks_out_for_ever():
    found = run(NoDecay, SLOW_SPELL)
    assert longest_refusal(found) > 1 / TARGET
    assert found.endswith("R" * 1000)
    assert run(Admission, SLOW_SPELL).endswith("F" * 800)


def test_where_only_admitted_ticks_count_a_full_account_is_never_paid_off():
    found = run(CountsAdmittedTicksAlone, HOPELESS)
    assert longest_refusal(found) > 1 / TARGET
    assert found.endswith("R" * 1000)
    assert run(Admission, HOPELESS)[-1000:].count("M") > 5
