"""The whole controller on a virtual clock: what it decides follows from the times that passes are given."""

import pytest

from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation import virtual_ticks
from vla_edge_ros.evaluation.admission_traces import TRACES
from vla_edge_ros.evaluation.virtual_ticks import accelerated, recovery, run


def decisions(services_ms) -> list[str]:
    return [record["decision"] for record in run(services_ms)]


def test_passes_that_fit_are_fresh_and_an_enabled_arm_is_sent_them():
    records = run([20.0] * 60)
    assert [record["decision"] for record in records[2:]] == ["FRESH"] * 58
    assert all(record["is_enabled"] and record["trajectory_ns"] for record in records[2:])
    assert not any(record["is_late"] for record in records)


def test_a_pass_takes_the_time_of_the_tick_that_begins_it():
    services_ms = [20.0] * 60
    services_ms[30] = services_ms[40] = 80.0
    late = [tick for tick, decision in enumerate(decisions(services_ms)) if decision == "HOLD_LATE"]
    assert late == [30, 40]


def test_one_hiccup_costs_its_own_tick_and_refuses_nothing():
    assert recovery() == {"ticks": 400, "hiccup_ms": 80.0, "recovery_ticks": 1, "refused": 0}


def test_of_every_trace_an_equal_part_is_run_and_no_publish_is_late():
    found = accelerated(360)
    assert found["ticks"] == sum(found["decision_counts"].values()) == 30 * len(TRACES)
    assert (found["late_publishes"], found["skipped_ticks"]) == (0, 0)
    assert 0 < found["misses"] < found["ticks"]


def test_a_publish_that_is_late_is_counted(monkeypatch):
    def slow_tick(self, record):
        # Handing the message over takes longer than the time between cut-off and effect.
        controller_clock[0]._now += 5_000_000

    controller_clock = []
    real = virtual_ticks.VirtualClock

    def remember(*words):
        controller_clock.append(real(*words))
        return controller_clock[0]

    monkeypatch.setattr(virtual_ticks, "VirtualClock", remember)
    monkeypatch.setattr(virtual_ticks.RecordingSink, "tick", slow_tick)
    assert all(record["is_late"] for record in run([20.0] * 5))


def test_a_controller_that_fails_is_an_error_and_no_figure(monkeypatch):
    class Failing(virtual_ticks.VirtualEngine):
        def wait(self, until_ns):
            raise RuntimeError("no such engine")

    monkeypatch.setattr(virtual_ticks, "VirtualEngine", Failing)
    with pytest.raises(UserError, match="no such engine"):
        run([20.0] * 5)
