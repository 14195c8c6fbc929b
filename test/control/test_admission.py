from hypothesis import given, settings
from hypothesis import strategies as st

from vla_edge_ros.control.admission import Admission, AdmissionConfig
from vla_edge_ros.engine.interface import StageTimes

MS = 1_000_000
BUDGET = 31 * MS


def a_pass(total_ms: float) -> tuple[StageTimes, int]:
    total = int(total_ms * MS)
    return StageTimes(prefill_ns=total // 4, decode_ns=total // 2), total


def admission(**changes) -> Admission:
    values = {"estimator": "ema", "ema_alpha": 0.2, "decay": 0.95, "probe_after_ticks": 30}
    return Admission(AdmissionConfig(**{**values, **changes}))


def test_the_first_pass_is_admitted_without_an_estimate():
    verdict = admission().ask(0, BUDGET)
    assert verdict.is_admitted
    assert verdict.predicted_ns is None


def test_stages_are_averaged_with_the_reference_alpha():
    gate = admission()
    gate.observe(*a_pass(20))
    gate.observe(*a_pass(30))
    assert gate.predict() == 22 * MS


def test_a_weight_that_is_changed_while_ticks_run_takes_effect():
    gate = admission()
    gate.observe(*a_pass(10))
    gate.config = AdmissionConfig(1.0, 0.9, 8, "ema")
    gate.observe(*a_pass(30))
    assert gate.predict() == 30 * MS


def test_everything_between_submission_and_end_is_in_the_estimate():
    gate = admission()
    gate.observe(StageTimes(copy_ns=1 * MS, vision_ns=2 * MS, prefill_ns=5 * MS, decode_ns=10 * MS), 20 * MS)
    assert gate.predict() == 20 * MS


def test_a_pass_that_fits_a_whole_tick_is_refused_when_the_tick_began_late():
    gate = admission()
    gate.observe(*a_pass(20))
    assert gate.ask(0, BUDGET).is_admitted
    assert not gate.ask(12 * MS, BUDGET).is_admitted


def test_one_slow_pass_does_not_lock_out():
    gate = admission()
    for _ in range(10):
        gate.observe(*a_pass(20))
    gate.observe(*a_pass(80))
    assert [gate.ask(0, BUDGET).is_admitted for _ in range(4)].index(True) >= 1


@settings(deadline=None)
@given(slow_ms=st.floats(31.5, 10_000), probe_after=st.integers(1, 40), decay=st.floats(0.5, 0.999))
def test_refusals_in_a_row_are_bounded_whatever_was_seen(slow_ms, probe_after, decay):
    gate = admission(probe_after_ticks=probe_after, decay=decay)
    gate.observe(*a_pass(slow_ms))
    for _ in range(probe_after):
        if gate.ask(0, BUDGET).is_admitted:
            return
    assert gate.ask(0, BUDGET).is_admitted
    assert gate.longest_refusal <= probe_after


def at_least(total_ms: float) -> tuple[StageTimes, int]:
    """What a pass says that was stopped while decoding."""
    total = int(total_ms * MS)
    return StageTimes(prefill_ns=5 * MS, decode_ns=total - 6 * MS), total


def test_one_stopped_pass_counts_as_one_sample_and_lowers_nothing():
    gate = admission()
    gate.observe(*a_pass(20))
    gate.observe_aborted(*at_least(31.5))
    # decode: 10 + 0.2 (25.5 - 10); prefill and the rest stay at 5
    assert gate.predict() == int(23.1 * MS)
    gate.observe_aborted(StageTimes(), 0)
    assert gate.predict() == int(23.1 * MS)


@settings(deadline=None)
@given(before_ms=st.floats(1, 30), excess_ms=st.floats(0.1, 20), decay=st.floats(0.5, 0.95))
def test_passes_that_are_always_stopped_are_refused_and_probed_by_turns(before_ms, excess_ms, decay):
    """Each says only that it would have been late; their mean alone would admit every one of them."""
    gate = admission(decay=decay, probe_after_ticks=8)
    for _ in range(5):
        gate.observe(*a_pass(before_ms))
    verdicts = []
    for _ in range(400):
        verdicts.append(gate.ask(0, BUDGET).is_admitted)
        if verdicts[-1]:
            gate.observe_aborted(*at_least(31 + excess_ms))
    settled = "".join("A" if admitted else "r" for admitted in verdicts[100:])
    assert "AA" not in settled
    assert "r" * 9 not in settled


def test_after_stopped_passes_alone_the_first_whole_one_is_the_estimate():
    gate = admission()
    for _ in range(3):
        gate.observe_aborted(StageTimes(prefill_ns=32 * MS), 33 * MS)
    assert gate.predict() == 33 * MS
    gate.observe(*a_pass(20))
    assert gate.predict() == 20 * MS


def test_a_probe_says_that_it_is_one_and_is_counted():
    gate = admission(probe_after_ticks=2, decay=0.999)
    gate.observe(*a_pass(500))
    verdicts = [gate.ask(0, BUDGET) for _ in range(3)]
    assert [v.is_admitted for v in verdicts] == [False, False, True]
    assert [v.is_probe for v in verdicts] == [False, False, True]
    assert (gate.refusals, gate.probes) == (2, 1)


def test_another_engine_starts_without_an_estimate():
    gate = admission()
    gate.observe(*a_pass(500))
    gate.forget()
    assert gate.ask(0, BUDGET).is_admitted
