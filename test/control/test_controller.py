import itertools
from dataclasses import replace

import numpy as np
import pytest
from control_rig import INFO, MS, PERIOD, Rig

from vla_edge_ros.control.decision import Decision
from vla_edge_ros.control.events import ClockJump, Enable, EngineReplaced, Instruction, ResetMemory
from vla_edge_ros.control.miss_account import most_misses
from vla_edge_ros.engine.interface import FrameWork, PromptWork
from vla_edge_ros.perception.frame_log import FrameLog
from vla_edge_ros.perception.signature import SIGNATURE_SIZE, patch_signature


def enabled_rig(**arguments) -> Rig:
    """A rig that has been enabled and whose joint states keep coming."""
    rig = Rig(**arguments)
    rig.observe_joints()
    rig.controller.post(Enable(True))
    return rig


def with_joints(rig: Rig):
    return lambda tick: rig.observe_joints()


# One decision a tick, and which


def test_the_record_has_when_the_wait_for_the_cutoff_ended_and_none_where_a_defect_ended_the_tick():
    rig = Rig()
    [record] = rig.run(1)
    assert record.woke_ns == rig.schedule.times(0).cutoff_ns
    rig.controller.planner.commands = None
    [record] = rig.run(2)
    assert (record.decision, record.woke_ns) == (Decision.FAULT, None)


def test_every_tick_publishes_exactly_one_decision_between_cutoff_and_effect():
    rig = Rig()
    rig.run(50)
    assert [tick for _, tick in rig.sink.ticks] == list(range(50))
    for at_ns, tick in rig.sink.ticks:
        times = rig.schedule.times(tick)
        assert times.cutoff_ns <= at_ns <= times.effect_ns


def test_what_a_tick_says_is_built_when_its_pass_has_ended_and_not_after_the_wait_for_the_cutoff():
    rig = Rig(service_ms=20.0)
    rig.run(10)
    fresh = [told for told in rig.sink.prepared if told[2] is Decision.FRESH]
    assert len(fresh) == 9
    for at_ns, tick, *_ in fresh:
        assert at_ns == rig.schedule.times(tick).start_ns + 20 * MS


def test_passes_that_fit_are_fresh_from_the_first_tick_that_has_prompt_and_frame():
    decisions = Rig().decisions(20)
    assert decisions[:2] == ["HOLD_NO_FRAME", "FRESH"]
    assert set(decisions[1:]) == {"FRESH"}


def test_without_a_camera_the_holds_end_in_a_safe_stop():
    decisions = Rig(frames_ms=[]).decisions(20)
    assert set(decisions[:9]) == {"HOLD_NO_FRAME"}
    assert set(decisions[9:]) == {"SAFE_STOP"}


def test_no_frame_is_used_twice():
    rig = Rig(frames_ms=np.arange(0, 2000, 66.0))
    records = rig.run(40)
    used = [record.frame_index for record in records if record.decision is Decision.FRESH]
    assert used == sorted(set(used))
    assert {record.decision.value for record in records[2:]} == {"FRESH", "HOLD_NO_FRAME"}


def test_a_frame_older_than_allowed_is_a_stale_hold():
    rig = Rig(frames_ms=[], max_frame_age_ns=100 * MS)
    rig.run(2)
    now = rig.clock.now_ns()
    rig.frames.write(np.zeros((64, 128, 3), np.uint8), 1, now - 500 * MS, now)
    [record] = rig.run(3)
    assert record.decision is Decision.HOLD_STALE_FRAME
    assert "502 ms old" in record.reason
    assert "100 ms" in record.reason


def test_a_pass_that_misses_its_cutoff_is_late_then_busy_and_its_frame_is_remembered_once():
    rig = Rig()
    rig.run(5)
    remembered = len(rig.controller.memory.frames)
    rig.engine.script_next(80.0)
    records = rig.run(9)
    assert [r.decision.value for r in records[:3]] == ["HOLD_LATE", "HOLD_BUSY", "HOLD_BUSY"]
    late = next(w for r in records[1:] for w in r.work if w.work_id == records[0].submitted_work)
    assert late.retained_frame == records[0].frame_index
    indexes = [frame.meta.index for frame in rig.controller.memory.frames]
    assert indexes == sorted(set(indexes))
    assert len(indexes) == remembered + 1 + sum(r.decision is Decision.FRESH for r in records)


def test_a_slow_engine_is_refused_and_probed_again_within_a_bound():
    rig = Rig(service_ms=40.0, max_hold_ns=10**12)
    records = rig.run(200)
    refused = [record.decision is Decision.HOLD_REFUSED for record in records]
    assert any(refused)
    longest = max(len(run) for run in "".join("R" if r else "." for r in refused).split("."))
    assert longest <= 8
    assert rig.controller.totals.misses == sum(r.submitted_work is not None for r in records) > 3
    assert all("ms are left" in r.reason for r in records if r.decision is Decision.HOLD_REFUSED)


def test_refused_ticks_begin_no_work():
    rig = Rig(service_ms=40.0)
    for record in rig.run(60):
        if record.decision is Decision.HOLD_REFUSED:
            assert record.submitted_work is None


def test_a_tick_that_woke_late_counts_the_time_that_is_gone():
    rig = Rig(service_ms=20.0)
    rig.run(5)
    rig.clock.sleep_until(rig.schedule.times(5).start_ns + 15 * MS)
    [record] = rig.run(6)
    assert record.decision is Decision.HOLD_REFUSED
    assert record.started_ns - record.scheduled_ns == 15 * MS


def test_wholly_missed_ticks_are_skipped_counted_and_not_made_up_for():
    rig = Rig()
    rig.run(5)
    rig.clock.sleep_until(rig.schedule.times(9).start_ns + 1)
    rig._tick = rig.schedule.following(4, rig.clock.now_ns())
    [record] = rig.run(10)
    assert record.tick == 9
    assert record.skipped_ticks == 4
    assert rig.controller.totals.skipped_ticks == 4


def test_a_late_result_serves_the_next_tick_only_if_asked_to():
    for uses, expected in ((False, "HOLD_NO_FRAME"), (True, "FRESH_LATE")):
        rig = Rig(frames_ms=np.arange(0, 170, 16.0), uses_late_result=uses)
        rig.run(5)
        rig.engine.script_next(31.5)
        late, following = rig.run(7)
        assert late.decision is Decision.HOLD_LATE
        assert following.decision.value == expected


def test_a_frame_that_the_engine_cannot_read_whole_is_no_frame_and_leaves_memory_as_it_was():
    rig = Rig()
    rig.run(5)
    before = [frame.meta for frame in rig.controller.memory.frames]
    rig.engine.script_next("no_frame")
    [record] = rig.run(6)
    assert record.decision is Decision.HOLD_NO_FRAME
    assert [frame.meta for frame in rig.controller.memory.frames] == before
    assert rig.decisions(7) == ["FRESH"]


def test_the_frame_used_is_the_newest_and_the_others_are_skipped():
    rig = Rig(frames_ms=np.arange(0, 2000, 5.0))
    for record in rig.run(30):
        if record.decision is Decision.FRESH:
            assert record.frame_receipt_ns <= record.started_ns < record.frame_receipt_ns + 5 * MS
    used = [record.frame_index for record in rig.sink.records if record.decision is Decision.FRESH]
    assert rig.controller.totals.skipped_frames == used[-1] - len(used)


def test_a_pass_whose_steps_are_all_too_old_is_late_and_says_so():
    rig = Rig(frames_ms=[], max_frame_age_ns=10**9)
    rig.run(3)
    old = rig.clock.now_ns() - 400 * MS
    rig.frames.write(np.zeros((64, 128, 3), np.uint8), 1, old, old)
    [record] = rig.run(4)
    assert record.decision is Decision.HOLD_LATE
    assert record.reason == "every action step was due too soon or is too old"


# Faults


def test_a_failed_engine_is_a_fault_on_every_tick_and_is_left_alone():
    rig = Rig()
    rig.run(5)
    rig.engine.script_next("fail")
    records = rig.run(15)
    assert {record.decision.value for record in records} == {"FAULT"}
    assert records[-1].reason == "the engine process ended"
    assert rig.faults == ["the engine process ended"]
    assert rig.engine.submitted[-1].work_id == records[0].submitted_work


def test_after_a_fault_the_stop_latches_until_enabled_again():
    rig = Rig()
    rig.run(5)
    rig.engine.script_next("fail")
    rig.run(8)
    rig.engine.is_dead = False
    rig.controller.post(EngineReplaced(INFO))
    assert set(rig.decisions(20)) == {"SAFE_STOP"}
    rig.observe_joints()
    rig.controller.post(Enable(True))
    assert "FRESH" in rig.decisions(24, each=with_joints(rig))


def test_enabling_during_a_fault_does_not_move_the_arm_once_the_engine_is_replaced():
    rig = Rig()
    rig.run(5, each=with_joints(rig))
    rig.engine.script_next("fail")
    rig.run(8, each=with_joints(rig))
    rig.controller.post(Enable(True))
    assert set(rig.decisions(10, each=with_joints(rig))) == {"FAULT"}
    rig.engine.is_dead = False
    rig.controller.post(EngineReplaced(INFO))
    assert set(rig.decisions(20, each=with_joints(rig))) == {"SAFE_STOP"}


def test_a_replaced_engine_gets_the_prompt_again_before_any_frame():
    rig = Rig()
    rig.run(5)
    rig.engine.script_next("fail")
    rig.run(8)
    rig.engine.is_dead = False
    submitted = len(rig.engine.submitted)
    rig.controller.post(EngineReplaced(INFO))
    rig.observe_joints()
    rig.controller.post(Enable(True))
    rig.run(12, each=with_joints(rig))
    first, second = rig.engine.submitted[submitted : submitted + 2]
    assert isinstance(first, PromptWork)
    assert isinstance(second, FrameWork)
    assert second.context_slots.size == 10


def test_a_defect_in_a_tick_ends_in_one_fault_decision():
    rig = Rig()
    rig.run(5)
    rig.controller.memory.make_room = None
    [record] = rig.run(6)
    assert record.decision is Decision.FAULT
    assert "internal error" in record.reason
    assert "Traceback" in rig.faults[0]
    assert rig.decisions(8) == ["FAULT", "FAULT"]


def test_a_defect_stops_an_enabled_arm_and_latches_as_any_fault_does():
    rig = enabled_rig()
    rig.run(10, each=with_joints(rig))
    make_room, rig.controller.memory.make_room = rig.controller.memory.make_room, None
    rig.sink.trajectories.clear()
    rig.run(13, each=with_joints(rig))
    [(_, stop)] = rig.sink.trajectories
    assert list(stop.points[0].velocities) == [0.0] * 6
    assert len(rig.faults) == 1, "whoever replaces the engine is told once"
    rig.controller.memory.make_room = make_room
    rig.controller.post(EngineReplaced(INFO))
    assert set(rig.decisions(20, each=with_joints(rig))) == {"SAFE_STOP"}


def test_a_defect_that_repeats_brings_an_enabled_arm_to_rest_once_and_keeps_it_there():
    rig = enabled_rig(policy="panda_ee_delta")
    rig.run(10, each=with_joints(rig))
    rig.controller._decide = None
    rig.run(14, each=with_joints(rig))
    assert rig.decisions(16, each=with_joints(rig)) == ["FAULT", "FAULT"]
    _, _, last = rig.sink.commands[-1]
    assert last[:6] == [0.0] * 6


def test_a_pass_that_ends_after_the_cutoff_and_is_seen_at_once_is_late_and_kept_for_the_next_tick():
    for uses, expected in ((False, "HOLD_NO_FRAME"), (True, "FRESH_LATE")):
        rig = Rig(frames_ms=np.arange(0, 140, 16.0), uses_late_result=uses)
        rig.run(4)
        wait = rig.engine.wait

        def late_by_a_hair(until_ns, wait=wait, rig=rig):
            result = wait(until_ns)
            if result is not None and result.frame is not None:
                result.finished_ns = rig.schedule.times(4).cutoff_ns + 1
            return result

        rig.engine.wait = late_by_a_hair
        assert rig.decisions(6) == ["HOLD_LATE", expected]


# Memory


def test_a_new_instruction_empties_memory_and_is_filled_in_before_the_next_pass():
    rig = Rig()
    rig.run(10)
    rig.controller.post(Instruction("put it down", np.arange(20, dtype=np.int32)))
    records = rig.run(14)
    assert records[0].decision is Decision.HOLD_BUSY
    assert records[0].retained_frames == 0
    assert [record.retained_frames for record in records[1:]] == [1, 2, 3]
    prompt = [work for work in rig.engine.submitted if isinstance(work, PromptWork)][-1]
    assert prompt.tokens.size == prompt.slots.size == 20


def test_a_reset_in_the_middle_of_a_pass_lets_its_frame_not_into_the_new_memory():
    rig = Rig()
    rig.run(5)
    rig.engine.script_next(50.0)
    rig.run(6)
    rig.controller.post(ResetMemory())
    rig.run(8)
    assert rig.controller.memory.frames == []
    records = rig.run(12)
    assert records[-1].decision is Decision.FRESH
    assert len(rig.controller.memory.frames) == sum(r.decision is Decision.FRESH for r in records)


def test_evicted_slots_are_told_to_the_engine_and_journalled():
    rig = Rig(n_slots=10 + 8 + 3 * 32)
    records = rig.run(10)
    journal = [line for record in records for line in record.journal]
    assert [line["frame"] for line in journal] == [r.frame_index for r in records if r.submitted_work][
        : len(journal)
    ]
    assert len(rig.engine.evicted) == len(journal) == 6
    assert rig.controller.totals.evictions == 6
    assert all(record.retained_frames <= 3 for record in records)


def test_a_clock_jump_voids_frames_memory_and_the_hold_timer():
    rig = Rig(frames_ms=np.arange(0, 330, 16.0), max_hold_ns=100 * MS)
    rig.run(10)
    rig.controller.post(ClockJump(-(10**9)))
    records = rig.run(13)
    assert [r.decision.value for r in records] == ["HOLD_NO_FRAME"] * 3
    assert records[0].retained_frames == 0
    assert records[0].hold_ns == 0


# What is sent


def test_disabled_it_decides_and_sends_nothing():
    rig = Rig()
    assert rig.decisions(10)[-1] == "FRESH"
    assert rig.sink.trajectories == rig.sink.commands == []


def test_a_fresh_trajectory_goes_out_at_once_and_the_command_at_the_cutoff():
    rig = enabled_rig(service_ms=20.0)
    rig.run(10, each=with_joints(rig))
    at_ns, trajectory = rig.sink.trajectories[-1]
    times = rig.schedule.times(9)
    assert at_ns == times.start_ns + 20 * MS
    assert trajectory.stamp_ns == 10**18 + times.effect_ns
    assert rig.sink.commands[-1][0] == times.cutoff_ns


def test_a_hold_sends_no_trajectory_and_a_full_command():
    rig = enabled_rig(frames_ms=np.arange(0, 140, 16.0))
    rig.run(5, each=with_joints(rig))
    sent = len(rig.sink.trajectories)
    commands = len(rig.sink.commands)
    records = rig.run(8, each=with_joints(rig))
    assert {record.decision.value for record in records} == {"HOLD_NO_FRAME"}
    assert len(rig.sink.trajectories) == sent
    assert len(rig.sink.commands) == commands + 3


def test_a_hold_that_lasts_ends_in_one_braking_point_with_zero_velocity():
    rig = enabled_rig(frames_ms=np.arange(0, 140, 16.0))
    rig.run(5, each=with_joints(rig))
    sent = len(rig.sink.trajectories)
    records = rig.run(25, each=with_joints(rig))
    assert records[-1].decision is Decision.SAFE_STOP
    [(_, stop)] = rig.sink.trajectories[sent:]
    [point] = stop.points
    assert list(point.velocities) == [0.0] * len(stop.joints)
    assert point.time_from_start_ns > 0


@pytest.mark.parametrize(
    "event", [Enable(False), ResetMemory(), ClockJump(5), Instruction("x", np.arange(3, dtype=np.int32))]
)
def test_what_cancels_motion_sends_the_braking_point_in_its_tick(event):
    rig = enabled_rig()
    rig.run(10, each=with_joints(rig))
    sent = len(rig.sink.trajectories)
    rig.controller.post(event)
    rig.run(11, each=with_joints(rig))
    at_ns, stop = rig.sink.trajectories[sent]
    assert at_ns == rig.schedule.times(10).start_ns
    assert list(stop.points[0].velocities) == [0.0] * len(stop.joints)


def test_enabling_what_is_enabled_does_not_stop_it():
    rig = enabled_rig()
    rig.run(10, each=with_joints(rig))
    sent = len(rig.sink.trajectories)
    rig.controller.post(Enable(True))
    rig.run(11, each=with_joints(rig))
    [(_, trajectory)] = rig.sink.trajectories[sent:]
    assert not list(trajectory.points[0].velocities)


def test_enabled_without_fresh_joint_states_it_stops_and_says_why():
    rig = enabled_rig()
    rig.run(5, each=with_joints(rig))
    records = rig.run(15)
    assert records[-1].decision is Decision.SAFE_STOP
    assert "joint" in records[-1].reason
    rig.observe_joints()
    assert rig.decisions(17, each=with_joints(rig))[-1] == "FRESH"


def test_stopping_for_good_sends_the_braking_point_and_last_commands_once():
    rig = enabled_rig()
    rig.run(10, each=with_joints(rig))
    trajectories, commands = len(rig.sink.trajectories), len(rig.sink.commands)
    rig.controller.stop(rig.sink)
    rig.controller.stop(rig.sink)
    assert len(rig.sink.trajectories) == trajectories + 1
    assert len(rig.sink.commands) == commands + 1


def test_a_chunk_of_eight_is_followed_through_holds_and_dropped_by_a_new_instruction():
    rig = enabled_rig(frames_ms=np.arange(0, 140, 16.0), steps=8)
    rig.run(5, each=with_joints(rig))
    assert rig.sink.records[-1].steps_left > 1
    assert len(rig.sink.trajectories[-1][1].points) == rig.sink.records[-1].steps_left
    before = rig.controller.planner.steps_dropped
    rig.controller.post(Instruction("other", np.arange(4, dtype=np.int32)))
    rig.run(6, each=with_joints(rig))
    assert rig.controller.planner.steps_dropped > before


def test_beginning_again_voids_earlier_frames_and_is_disabled():
    rig = enabled_rig()
    rig.run(10, each=with_joints(rig))
    rig.controller.begin(rig.schedule)
    assert not rig.controller.is_enabled
    rig._tick = 10
    [record] = rig.run(11)
    assert record.retained_frames == 0
    assert record.decision is not Decision.FRESH


def test_an_enabling_that_no_tick_has_seen_does_not_outlive_its_run():
    rig = Rig()
    rig.run(5, each=with_joints(rig))
    rig.controller.post(Enable(True))
    rig.controller.post(ResetMemory())
    rig.controller.stop(rig.sink)
    rig.controller.begin(rig.schedule)
    [record] = rig.run(6, each=with_joints(rig))
    assert not record.is_enabled
    assert [event["event"] for event in record.events] == ["reset_memory"]


def test_times_in_a_record_agree():
    rig = Rig()
    for record in rig.run(20):
        assert record.scheduled_ns == record.tick * PERIOD
        assert record.published_ns >= rig.schedule.times(record.tick).cutoff_ns
        assert not record.is_late
        assert record.own_pass is None or record.own_pass.finished_ns <= record.published_ns


def test_under_the_conformal_rule_one_hiccup_costs_no_refusal():
    rig = Rig(admission="conformal")
    rig.run(20)
    rig.engine.script_next(80.0)
    decisions = [record.decision.value for record in rig.run(40)]
    assert decisions[0] == "HOLD_LATE"
    assert decisions[3:] == ["FRESH"] * 17
    assert "HOLD_REFUSED" not in decisions


def test_a_slow_engine_is_kept_to_the_promise_and_its_records_say_what_was_predicted():
    frames_ms = np.arange(1, 11_000, 16.67)
    rig = Rig(frames_ms, service_ms=40.0, max_hold_ns=10**12, admission="conformal")
    for _ in range(4):
        rig.controller.admission.settle(True)
    records = rig.run(300)
    assert rig.controller.promise.misses == sum(record.is_miss for record in records)
    assert not rig.controller.promise.is_broken
    last = records[-1]
    assert last.decision is Decision.HOLD_REFUSED
    assert sum(last.predicted_by_stage.values()) == last.predicted_ns
    assert any(record.allowance_ns for record in records)


@pytest.mark.parametrize("held", ["HOLD_REFUSED", "HOLD_NO_FRAME"])
def test_ticks_that_begin_no_pass_pay_spent_misses_off(held):
    first_ms = 1.0 if held == "HOLD_REFUSED" else 100 * PERIOD / MS
    rig = Rig(np.arange(first_ms, 5000, 16.67), max_hold_ns=10**12, admission="conformal")
    admission = rig.controller.admission
    admission.config = replace(admission.config, target_miss_rate=0.01)
    for _ in range(round(most_misses(0.01)) + 1):
        admission.settle(True)
    # At most the account, less the tick's own: full until a whole miss is paid off.
    decisions = rig.decisions(102)
    assert decisions[1:98] == [held] * 97
    assert "FRESH" in decisions[98:102]


def test_frames_are_compared_by_their_signatures_where_there_are_some():
    log = FrameLog(patch_signature, (SIGNATURE_SIZE,), np.float32)
    rig = Rig(signatures=log, eviction="semantic", n_slots=3 * 32 + 10 + 8)
    publish = rig.publish

    def publish_signed():
        rig._pixels[:, :64] = 10 * (rig.frames.next_index % 7)
        log.put(rig.frames.next_index, rig._pixels)
        publish()

    rig.publish = publish_signed
    rig.run(3)
    kept = [frame.meta.index for frame in rig.controller.memory.frames]
    assert len(kept) >= 2
    wanted = [log.of(index).astype(float) for index in kept]
    alike = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in itertools.pairwise(wanted)]
    np.testing.assert_allclose(rig.controller.memory.policy.cosines, alike)


def test_a_record_says_when_its_trajectory_was_handed_over():
    rig = enabled_rig(service_ms=5.0)
    records = rig.run(12, each=with_joints(rig))
    sent = {at_ns for at_ns, _ in rig.sink.trajectories}
    fresh = [record for record in records if record.decision is Decision.FRESH and record.is_enabled]
    assert len(fresh) > 5
    for record in fresh:
        assert record.trajectory_ns in sent
        assert record.own_pass.finished_ns <= record.trajectory_ns < record.published_ns
    assert all(record.trajectory_ns is None for record in Rig().run(12))
