"""Passes that cannot end in time are stopped: the tick holds, the next one finds the engine free."""

import numpy as np
import pytest
from control_rig import ABORT_NS, INFO, MS, Aborts, Rig

from vla_edge_ros.control.decision import Decision
from vla_edge_ros.control.events import Enable, EngineReplaced, ResetMemory
from vla_edge_ros.engine.interface import FrameWork, StageTimes

TTL = 200 * MS


def frame_works(rig: Rig) -> list[FrameWork]:
    return [work for work in rig.engine.submitted if isinstance(work, FrameWork)]


# What a pass is given


def test_a_pass_has_until_the_cut_off_of_its_tick():
    rig = Rig()
    records = rig.run(10)
    cutoffs = [rig.schedule.times(record.tick).cutoff_ns for record in records if record.submitted_work]
    assert [work.deadline_ns for work in frame_works(rig)] == cutoffs


def test_where_a_late_result_may_be_used_a_pass_has_until_the_end_of_its_time_to_live():
    rig = Rig(uses_late_result=True)
    records = [record for record in rig.run(10) if record.submitted_work]
    wanted = [record.frame_capture_ns + TTL for record in records]
    assert [work.deadline_ns for work in frame_works(rig)] == wanted


def test_and_at_least_until_the_cut_off_however_old_its_frame_is():
    rig = Rig(frames_ms=[], uses_late_result=True, max_frame_age_ns=1000 * MS)
    rig.run(2)
    rig.frames.write(np.zeros((64, 128, 3), np.uint8), 1, rig.clock.now_ns() - 500 * MS, rig.clock.now_ns())
    rig.run(3)
    assert frame_works(rig)[-1].deadline_ns == rig.schedule.times(2).cutoff_ns


# A deadline that counts from capture


def of_age(age_ms: float, **given) -> Rig:
    """A rig in whose tick 2 the newest frame is `age_ms` old and the memory has one frame."""
    rig = Rig(frames_ms=[32.0], counts_from_capture=True, max_frame_age_ns=1000 * MS, **given)
    rig.run(2)
    start_ns = rig.schedule.times(2).start_ns
    rig.clock.sleep_until(start_ns)
    rig.frames.write(np.zeros((64, 128, 3), np.uint8), 1, start_ns - round(age_ms * MS), start_ns)
    return rig


def test_then_an_older_frame_leaves_its_pass_less_time():
    rig = of_age(7.0, service_ms=20.0)
    [record] = rig.run(3)
    assert record.decision is Decision.FRESH
    assert frame_works(rig)[-1].deadline_ns == record.pass_cutoff_ns == record.frame_capture_ns + 31 * MS


def test_a_pass_that_would_have_ended_in_time_for_the_tick_is_late_for_its_frame_and_a_miss():
    rig = of_age(10.0, service_ms=20.0)
    rig.engine.script_next(22.0)
    records = rig.run(4)
    assert records[0].decision is Decision.HOLD_LATE
    assert records[0].is_miss
    assert records[1].work[0].finished_ns == records[0].started_ns + 22 * MS < rig.schedule.times(2).cutoff_ns


def test_what_its_frame_leaves_no_time_for_is_refused_and_with_a_younger_one_admitted():
    for age_ms, decision in (12.0, Decision.HOLD_REFUSED), (10.0, Decision.FRESH):
        rig = of_age(age_ms, service_ms=20.5, admission="ema")
        assert rig.run(3)[0].decision is decision


def test_a_frame_whose_deadline_was_over_before_the_tick_is_stale_and_begins_no_pass():
    rig = of_age(31.0)
    n_before = len(rig.engine.submitted)
    [record] = rig.run(3)
    assert record.decision is Decision.HOLD_STALE_FRAME
    assert record.reason == (
        "the newest frame is 31 ms old: its deadline, counted from capture, was over before the tick began"
    )
    assert len(rig.engine.submitted) == n_before


def test_the_record_has_no_such_cut_off_where_there_is_no_frame_to_act_on():
    assert [record.pass_cutoff_ns for record in Rig(frames_ms=[]).run(3)] == [None] * 3


@pytest.mark.parametrize("age_ms", [0.0, 7.0, 12.0, 40.0])
def test_ticks_are_published_at_the_same_moment_whatever_the_frame(age_ms):
    rig = of_age(age_ms)
    rig.run(3)
    assert rig.sink.ticks[2][0] == rig.schedule.times(2).cutoff_ns


def test_a_late_result_that_may_be_used_lives_as_long_as_its_action_all_the_same():
    rig = of_age(10.0, uses_late_result=True)
    rig.engine.script_next(22.0)
    records = rig.run(4)
    assert [record.decision.value for record in records] == ["HOLD_LATE", "FRESH_LATE"]
    assert frame_works(rig)[-1].deadline_ns == records[0].frame_capture_ns + TTL


# What becomes of one that is stopped


def test_a_late_pass_is_stopped_and_the_next_tick_is_fresh_and_not_busy():
    rig = Rig(heeds_deadlines=True)
    rig.run(5)
    rig.engine.script_next(80.0)
    records = rig.run(8)
    assert [record.decision.value for record in records] == ["HOLD_LATE", "FRESH", "FRESH"]
    assert records[0].reason == "the pass had not finished at the cut-off, which stops it"
    assert records[0].work == []
    stopped = records[1].work[0]
    assert (stopped.work_id, stopped.is_aborted) == (records[0].submitted_work, True)
    assert stopped.finished_ns == rig.schedule.times(5).cutoff_ns + ABORT_NS
    assert stopped.retained_frame is stopped.frame_index is None


def test_a_pass_that_the_engine_gives_up_early_is_late_at_once_and_published_at_the_cut_off():
    rig = Rig()
    rig.run(5)
    rig.engine.script_next(Aborts(after_ns=3 * MS, remaining_ns=30 * MS))
    record, following = rig.run(7)
    assert record.decision is Decision.HOLD_LATE
    assert record.reason == "the engine stopped the pass after 0 tokens: it could not end in time"
    assert record.work[0].received_ns == record.started_ns + 3 * MS
    assert record.own_pass is None, "its times are not those of a pass"
    assert rig.sink.ticks[5][0] == rig.schedule.times(5).cutoff_ns
    assert following.decision is Decision.FRESH


def test_a_stopped_pass_is_a_miss_is_counted_and_is_never_used_late():
    rig = Rig(heeds_deadlines=True, uses_late_result=True, max_hold_ns=10**12)
    rig.run(5)
    misses = rig.controller.totals.misses
    rig.engine.script_next(1000.0)
    records = rig.run(25)
    assert rig.controller.totals.misses == misses + sum(r.is_miss for r in records) > misses
    assert records[0].is_miss
    assert rig.controller.totals.aborted_passes == sum(w.is_aborted for r in records for w in r.work) == 1
    assert "FRESH_LATE" not in {record.decision.value for record in records}
    assert records[-1].decision is Decision.FRESH


def test_what_a_stopped_pass_was_to_remember_is_not_and_its_slots_and_frame_serve_the_next_one():
    rig = Rig(frames_ms=[*np.arange(1, 150, 16.67), 166.0], heeds_deadlines=True)
    rig.run(6)
    before = [frame.meta.index for frame in rig.controller.memory.frames]
    rig.engine.script_next(80.0)
    late, fresh = rig.run(8)
    assert (late.decision, fresh.decision) == (Decision.HOLD_LATE, Decision.FRESH)
    assert fresh.frame_index == late.frame_index == late.seen_frame
    stopped, whole = frame_works(rig)[-2:]
    np.testing.assert_array_equal(stopped.frame_slots, whole.frame_slots)
    assert [frame.meta.index for frame in rig.controller.memory.frames] == [*before, fresh.frame_index]
    assert late.journal == fresh.journal == []


def test_a_full_memory_gives_up_one_frame_for_a_pass_however_often_it_is_stopped():
    rig = Rig(n_slots=10 + 8 + 3 * 32, heeds_deadlines=True)
    rig.run(8)
    assert len(rig.controller.memory.frames) == 3
    for _ in range(3):
        rig.engine.script_next(80.0)
        rig.run(rig._tick + 1)
        assert len(rig.controller.memory.frames) == 2
    records = rig.run(rig._tick + 6)
    assert records[-1].decision is Decision.FRESH
    assert len(rig.controller.memory.frames) == 3


def test_a_reset_while_a_pass_is_being_stopped_changes_nothing_of_what_follows():
    rig = Rig(heeds_deadlines=True)
    rig.run(5)
    rig.engine.script_next(80.0)
    rig.run(6)
    rig.controller.post(ResetMemory())
    records = rig.run(9)
    assert records[0].work[0].is_aborted
    assert [record.decision.value for record in records] == ["HOLD_BUSY", "FRESH", "FRESH"]


# What admission makes of it


def test_admission_learns_at_least_how_long_a_stopped_pass_would_have_taken():
    rig = Rig()
    rig.run(5)
    for _ in range(2):
        rig.engine.script_next(Aborts(after_ns=10 * MS, remaining_ns=30 * MS))
        rig.run(rig._tick + 1)
    assert rig.controller.admission.predict() >= 40 * MS


def test_an_engine_that_is_always_too_slow_is_refused_and_probed_and_never_keeps_a_tick_busy():
    rig = Rig(service_ms=40.0, heeds_deadlines=True, max_hold_ns=10**12)
    records = rig.run(150)[2:]
    decisions = "".join("R" if r.decision is Decision.HOLD_REFUSED else "L" for r in records)
    assert {r.decision.value for r in records} == {"HOLD_REFUSED", "HOLD_LATE"}
    assert "LL" not in decisions[10:]
    assert "R" * 9 not in decisions


@pytest.mark.parametrize("slow_ms", [33.0, 40.0, 500.0])
def test_an_engine_that_has_become_fast_again_is_used_again_soon(slow_ms):
    rig = Rig(service_ms=slow_ms, heeds_deadlines=True, max_hold_ns=10**12)
    rig.run(60)
    rig.engine.service_ms = 10.0
    decisions = rig.decisions(60 + 20)
    assert "FRESH" in decisions[:10]
    assert set(decisions[10:]) == {"FRESH"}


def test_one_hiccup_that_was_stopped_costs_its_own_tick_and_no_other():
    rig = Rig(heeds_deadlines=True)
    rig.run(30)
    rig.engine.script_next(80.0)
    assert rig.decisions(40) == ["HOLD_LATE", *["FRESH"] * 9]


# An engine that hangs


@pytest.fixture
def hanging():
    """An engine that was given a pass in tick 5 and says nothing more."""
    rig = Rig(stall_timeout_ns=1000 * MS)
    rig.run(5)
    rig.engine.script_next("hang")
    return rig


def test_an_engine_that_hangs_is_a_fault_after_the_timeout_and_is_left_alone(hanging):
    records = hanging.run(60)
    decisions = [record.decision.value for record in records]
    assert decisions[:2] == ["HOLD_LATE", "HOLD_BUSY"]
    first = decisions.index("FAULT")
    overdue_ns = records[first].started_ns - hanging.schedule.times(5).cutoff_ns
    # The timeout, then the grace of a machine that was stopped, each up to the tick that follows.
    assert 1100 * MS <= overdue_ns <= 1166 * MS
    assert set(decisions[first:]) == {"FAULT"}
    [fault] = hanging.faults
    assert fault == records[-1].reason
    assert "the engine hangs: a frame should have been answered" in fault
    assert "engine.stall_timeout_ms" in fault
    assert hanging.engine.submitted[-1].work_id == records[0].submitted_work
    assert [record.tick for record in records] == list(range(5, 60)), "ticks go on meanwhile"


def test_once_replaced_it_is_as_after_any_fault(hanging):
    hanging.run(60)
    hanging.engine._pending = None
    hanging.controller.post(EngineReplaced(INFO))
    assert set(hanging.decisions(65)) == {"SAFE_STOP"}
    hanging.observe_joints()
    hanging.controller.post(Enable(True))
    assert "FRESH" in hanging.decisions(70, each=lambda tick: hanging.observe_joints())


def test_a_prompt_has_the_timeout_for_each_of_its_tokens():
    rig = Rig(stall_timeout_ns=100 * MS)
    rig.engine.script_next("hang")
    records = rig.run(60)
    first = next(record for record in records if record.decision is Decision.FAULT)
    assert 1100 * MS <= first.started_ns <= 1166 * MS
    assert "a prompt should have been answered" in first.reason


def test_an_engine_that_answers_when_a_stopped_machine_goes_on_has_not_hung():
    rig = Rig(stall_timeout_ns=1000 * MS)
    rig.run(5)
    rig.engine.script_next(3040.0)
    rig.run(7)
    # Neither the node nor the engine ran: the first tick finds the answer still to come.
    rig.clock.sleep_until(rig.schedule.times(5).start_ns + 3000 * MS)
    rig._tick = rig.schedule.following(6, rig.clock.now_ns())
    records = rig.run(rig._tick + 40)
    assert "still runs" in records[0].reason
    assert records[-1].decision is Decision.FRESH
    assert rig.faults == []


def test_an_engine_that_is_late_by_less_than_the_timeout_has_not_hung():
    rig = Rig(stall_timeout_ns=1000 * MS)
    rig.run(5)
    rig.engine.script_next(1000.0)
    assert rig.run(45)[-1].decision is Decision.FRESH
    assert rig.faults == []


def test_the_record_of_a_stopped_pass_says_how_far_it_came_and_what_was_to_come():
    rig = Rig()
    rig.run(5)
    rig.engine.script_next(Aborts(after_ns=8 * MS, remaining_ns=30 * MS))
    [record] = rig.run(6)
    [work] = record.to_json()["work"]
    assert (work["is_aborted"], work["steps_done"]) == (True, 0)
    assert work["remaining"]["decode_ns"] == 30 * MS
    assert record.work[0].stages == StageTimes(prefill_ns=2 * MS, decode_ns=4 * MS)
