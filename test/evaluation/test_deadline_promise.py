"""The tightest deadline that measured ticks show."""

import numpy as np
import pytest

from vla_edge_ros.evaluation import deadline_promise, doctor_promise
from vla_edge_ros.evaluation.check import OK, WARN, Check
from vla_edge_ros.evaluation.deadline_promise import measure, promisable, ticks_to_certify
from vla_edge_ros.parameters import validate_all

MS = 1_000_000
FAKE = {
    "engine.backend": "fake",
    "engine.model": "fake:service_ms=2",
    "control.priority": 0,
    "memory.slots": 64,
}


def test_three_thousand_clean_ticks_show_one_in_a_thousand():
    assert ticks_to_certify(0.001) == 2995
    assert (1 - 0.001) ** 2995 <= 0.05 < (1 - 0.001) ** 2994


def test_with_too_few_ticks_the_longest_holds_for_the_rate_that_they_show():
    found = promisable([20 * MS] * 299 + [25 * MS], 0.001)
    assert (found.time_ns, found.exceeded) == (25 * MS, 0)
    assert found.rate == pytest.approx(3 / 300, rel=0.01)


def test_with_ticks_to_spare_the_longest_are_left_out_as_far_as_the_rate_is_still_shown():
    times_ns = list(range(1, 10_001))
    found = promisable(times_ns, 0.001)
    assert found.time_ns == 10_000 - found.exceeded
    # Clopper and Pearson's upper end is below 0.001 for 4 of 10,000 (9.15e-4) and above for 5 (1.05e-3).
    assert found.exceeded == 4


def test_what_is_promised_is_kept_nineteen_times_in_twenty():
    rng = np.random.default_rng(3)
    broken = 0
    for _ in range(300):
        found = promisable(rng.exponential(1e6, 400).astype(int).tolist(), 0.02)
        broken += np.exp(-found.time_ns / 1e6) > found.rate
    # Binomial with p = 0.05 exceeds 26 of 300 in 1 of 200 studies; the seed is fixed.
    assert broken <= 26


def test_without_ticks_there_is_nothing_to_promise():
    with pytest.raises(ValueError, match="no tick"):
        promisable([], 0.001)


def test_passes_of_the_real_engine_process_are_measured_from_their_ticks_start():
    times_ns = measure(validate_all(FAKE), 0.4)
    assert 1 < len(times_ns) <= 13
    assert min(times_ns) >= 2 * MS


def test_an_engine_that_does_not_run_is_one_line_of_advice():
    check = doctor_promise.measure_promise(validate_all(FAKE | {"engine.model": "fake:steps=0"}), 0.1, [])
    assert check.level == WARN
    assert "steps=0" in check.found and check.advice


@pytest.mark.parametrize(("took_ms", "level"), [(20, OK), (40, WARN)])
def test_the_deadline_is_judged_and_what_is_in_the_way_is_named(monkeypatch, took_ms, level):
    monkeypatch.setattr(deadline_promise, "measure", lambda parameters, seconds: [took_ms * MS] * 3000)
    rows = [Check("memory lock", WARN, ""), Check("ROS 2", WARN, ""), Check("CPU governor", OK, "")]
    check = doctor_promise.measure_promise(validate_all({}), 100.0, rows)
    assert check.level == level
    assert check.found.startswith(f"{took_ms + 2}.0 ms, missed in at most 0.1 % of ticks")
    assert check.advice.endswith("in the way of a better one: memory lock")


def test_other_processes_on_the_gpu_are_named():
    assert doctor_promise.check_gpu_processes(False, "").level == OK
    assert doctor_promise.check_gpu_processes(True, "").level == OK
    found = doctor_promise.check_gpu_processes(True, "4711, python\n")
    assert (found.level, found.found) == (WARN, "4711, python")
