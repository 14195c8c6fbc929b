"""Replays give the same bytes again, and a recorded run gives its own decisions again."""

import heapq
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from recorded import SAMPLE, TOPIC, write_rosbag2

from vla_edge_ros.control import settings
from vla_edge_ros.control.events import Enable
from vla_edge_ros.control.record import WorkTimes, work_times
from vla_edge_ros.engine.interface import StageTimes
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation import run_document, virtual_run
from vla_edge_ros.evaluation.bags import open_bag
from vla_edge_ros.evaluation.recorded_run import RecordedRun
from vla_edge_ros.evaluation.virtual_run import replay, replay_recorded
from vla_edge_ros.memory.policies import POLICIES
from vla_edge_ros.parameters import validate_all
from vla_edge_ros.share import share_directory

SAMPLE_TOPIC = "/camera/image_raw/compressed"
SMALL = {"memory.slots": 320, "camera.is_compressed": True}


def outcome_of(parameters: dict, service_ms: float = 20.0, seconds: float = 2.0) -> dict:
    with open_bag(SAMPLE) as bag:
        replayed = replay(bag, SAMPLE_TOPIC, validate_all(parameters), service_ms, seconds, True)
    return run_document.outcome([record.to_json() for record in replayed.records])


def decisions(outcome: dict) -> list[str]:
    return [decision for _, decision in outcome["decisions"]]


def test_the_same_bag_and_seed_give_the_same_bytes():
    assert json.dumps(outcome_of(SMALL)) == json.dumps(outcome_of(SMALL))


def test_another_seed_gives_other_actions_and_the_same_decisions():
    first, second = outcome_of(SMALL), outcome_of(SMALL | {"engine.seed": 1})
    assert first["actions_sha256"] != second["actions_sha256"]
    assert first["decisions_sha256"] == second["decisions_sha256"]


def test_another_policy_gives_another_journal():
    journals = {
        outcome_of(SMALL | {"memory.policy": policy})["journal_sha256"] for policy in ("fifo", "semantic")
    }
    assert len(journals) == 2


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_replays_to_the_same_bytes(policy):
    parameters = SMALL | {"memory.policy": policy, "memory.window_frames": 5}
    first, second = (outcome_of(parameters, seconds=1.0) for _ in range(2))
    assert first == second
    assert len(first["journal"]) > 10


def test_service_beyond_the_budget_is_never_fresh_and_is_refused():
    slow = decisions(outcome_of(SMALL, service_ms=40.0))
    assert "FRESH" not in slow
    assert {"HOLD_LATE", "HOLD_REFUSED"} <= set(slow)
    assert "SAFE_STOP" in slow


def test_the_bags_instruction_is_heard_unless_another_is_given():
    with open_bag(SAMPLE) as bag:
        for plays, heard in ((True, 1), (False, 0)):
            replayed = replay(bag, SAMPLE_TOPIC, validate_all(SMALL), 20.0, 0.5, plays)
            texts = [e["text"] for record in replayed.records for e in record.events]
            assert texts.count("put everything into the blue tray") == heard


def test_every_frame_used_is_the_newest_when_its_inference_starts(tmp_path):
    """Frames at 100 Hz and inference of 500 ms under a deadline of 600 ms."""
    slow = {"control.period_ms": 600.0, "control.deadline_ms": 600.0, "actions.ttl_ms": 2000.0}
    parameters = validate_all(slow | {"actions.max_hold_ms": 5000.0})
    with open_bag(write_rosbag2(tmp_path / "bag", n_images=180)) as bag:
        replayed = replay(bag, TOPIC, parameters, 500.0, 10.0, True)
    passes = [record for record in replayed.records if record.decision.value == "FRESH"]
    assert len(passes) == 3
    for record in passes:
        newest = min(180, record.started_ns // 10_000_000 + 1)
        assert record.frame_index == newest
    used = [record.frame_index for record in passes]
    skipped = replayed.camera.published - len(used)
    assert skipped == 177


@pytest.mark.parametrize("stamps", ["zero", "hours_old", "simulator"])
def test_stamps_of_no_use_do_not_cost_the_frames(tmp_path, stamps, monkeypatch):
    import recorded

    offset = {"zero": None, "hours_old": -13_260 * 10**9, "simulator": 8 * 10**9 - recorded.BASE_NS}[stamps]
    plain = recorded.image

    def image(index):
        stamp_ns = recorded.BASE_NS + index * recorded.PERIOD_NS
        return plain(index, 0 if offset is None else stamp_ns + offset)

    monkeypatch.setattr(recorded, "image", image)
    with open_bag(write_rosbag2(tmp_path / "bag", n_images=60)) as bag:
        replayed = replay(bag, TOPIC, validate_all(SMALL), 20.0, 10.0, True)
    fresh = [record for record in replayed.records if record.decision.value == "FRESH"]
    assert len(fresh) >= 15
    assert {record.frame_stamp_ns == 0 for record in fresh} == {stamps == "zero"}
    assert all(0 <= record.frame_age_ns < 33_333_000 for record in fresh)


# Recorded runs


class UncertainService:
    """Service times as a busy machine gives them, seeded by the work's id; late passes are stopped."""

    def times(self, work, now_ns: int) -> WorkTimes:
        work_id = work.work_id
        rng = np.random.default_rng((9, work_id))
        started = now_ns + int(rng.integers(0, 3_000_000))
        prefill, decode = int(rng.integers(2e6, 12e6)), int(rng.integers(2e6, 22e6))
        finished = started + prefill + decode
        received = finished + int(rng.integers(0, 200_000))
        deadline = getattr(work, "deadline_ns", 0)
        if not 0 < deadline < finished:
            stages = StageTimes(prefill_ns=prefill, decode_ns=decode)
            return WorkTimes(work_id, "", now_ns, started, finished, received, stages)
        # Known early, met at the deadline, or only noticed in the tick that follows.
        stopped = max(started, deadline + int(rng.integers(-9_000_000, 3_000_000)))
        return WorkTimes(
            work_id,
            "",
            now_ns,
            started,
            stopped,
            stopped + received - finished,
            StageTimes(prefill_ns=stopped - started),
            is_aborted=True,
            remaining=StageTimes(prefill_ns=1, decode_ns=max(0, finished - stopped)),
        )


def a_live_run(
    parameters: dict,
    n_ticks: int,
    joints: Sequence[tuple[int, list[float]]] = (),
    instructions=((40, "another one"),),
) -> RecordedRun:
    """A run whose ticks wake late and whose passes take as long as they like.

    joints: the steady ns at which they come, and positions of those that the policy needs; where there are
        any, motion is enabled.
    instructions: by tick.
    """
    frames, begin_ns, origin_ns = [], 5_000_000_000, 5_033_000_000
    decoding_ns = 7_000_000

    def published(rig, message, ordinal):
        """The end of a callback that took a while to decode: the receipt is that long ago."""
        before = rig._camera.published
        steady, ros = rig.clock.pair()
        rig._camera.on_image(message, steady - decoding_ns, ros - decoding_ns)
        if rig._camera.published > before:
            frames.append(rig._frames.peek())
            rig._ordinals[frames[-1].index] = ordinal

    with open_bag(SAMPLE) as bag:
        first = next(bag.images(SAMPLE_TOPIC))

        def images(rig):
            for ordinal, image in enumerate(bag.images(SAMPLE_TOPIC)):
                at_ns = begin_ns - 50_000_000 + image.log_ns - first.log_ns
                yield at_ns, partial(published, rig, image.message, ordinal)

        def arrivals(rig):
            states = ((at_ns, partial(rig.feel, at, at_ns)) for at_ns, at in joints)
            return heapq.merge(images(rig), states, key=lambda arrival: arrival[0])

        offset = first.log_ns - begin_ns + 50_000_000
        with virtual_run._Rig(parameters, SAMPLE_TOPIC, UncertainService(), arrivals, offset) as rig:
            rig.clock.sleep_until(begin_ns)
            schedule = settings.tick_schedule(parameters, origin_ns)
            rig.controller.begin(schedule)
            begin = {"at_ns": begin_ns, "frame": rig.controller.last_used_frame}
            rig.instruct("")
            rng = np.random.default_rng(4)
            tick = 0
            while tick < n_ticks:
                late_ns = int(rng.choice([50_000, 300_000, 9_000_000, 70_000_000], p=[0.8, 0.1, 0.07, 0.03]))
                rig.clock.sleep_until(schedule.times(tick).start_ns + late_ns)
                if tick == 20 and joints:
                    rig.controller.post(Enable(True))
                for at_tick, text in instructions:
                    if tick == at_tick:
                        rig.instruct(text)
                rig.controller.tick(tick, rig.sink)
                tick = schedule.following(tick, rig.clock.now_ns())
            ticks = json.loads(json.dumps([record.to_json() for record in rig.sink.records]))
    run = {"parameters": json.loads(json.dumps(parameters))}
    return RecordedRun(run, frames, ticks, begin)


@pytest.fixture(scope="module")
def recorded_live() -> RecordedRun:
    return a_live_run(validate_all(SMALL | {"actions.late_result": "next_tick"}), 120)


@pytest.fixture(scope="module")
def recorded_stopped() -> RecordedRun:
    # The rule that promises something refuses most of what would be stopped.
    return a_live_run(validate_all(SMALL | {"admission.estimator": "ema"}), 120)


def again(recorded: RecordedRun, **changes) -> dict:
    with open_bag(SAMPLE) as bag:
        parameters = recorded.run["parameters"] | changes
        replayed = replay_recorded(bag, SAMPLE_TOPIC, parameters, recorded)
    return run_document.outcome([record.to_json() for record in replayed.records])


def test_the_live_run_of_these_tests_is_an_eventful_one(recorded_live):
    seen = {tick["decision"] for tick in recorded_live.ticks}
    assert {"FRESH", "FRESH_LATE", "HOLD_LATE", "HOLD_BUSY", "HOLD_REFUSED"} <= seen
    assert any(tick["skipped_ticks"] for tick in recorded_live.ticks)


def test_a_recorded_run_reproduces_its_own_decisions_actions_and_journal(recorded_live):
    assert again(recorded_live) == run_document.outcome(recorded_live.ticks)


def test_a_recorded_run_reproduces_what_admission_predicted_and_allowed(recorded_live):
    with open_bag(SAMPLE) as bag:
        records = replay_recorded(bag, SAMPLE_TOPIC, recorded_live.run["parameters"], recorded_live).records
    for name in ("predicted_by_stage", "allowance_ns", "reason", "is_probe"):
        assert [getattr(record, name) for record in records] == [tick[name] for tick in recorded_live.ticks]
    assert any(record.allowance_ns for record in records)


@pytest.mark.parametrize("policy", ["fifo", "sliding_window", "semantic"])
def test_a_recorded_run_with_strides_reproduces_itself(policy):
    chosen = {"memory.policy": policy, "memory.window_frames": 3, "memory.stride_ticks": 7}
    # Of rule `ema`, since the default refuses most passes of this engine.
    chosen |= {"actions.late_result": "next_tick", "admission.estimator": "ema"}
    recorded = a_live_run(validate_all(SMALL | chosen), 120)
    assert again(recorded) == run_document.outcome(recorded.ticks)
    retained = [tick["tick"] for tick in recorded.ticks for work in tick["work"] if work["retained_frame"]]
    passes = [tick["tick"] for tick in recorded.ticks for work in tick["work"] if work["frame_index"]]
    assert len(passes) > 4 * len(retained) > 0
    # Tick 40 brings a new instruction, and with it an empty memory.
    gaps = [after - before for before, after in itertools.pairwise(retained) if not before < 40 <= after]
    assert min(gaps) >= 7


@pytest.mark.parametrize("on_instruction", ["reset", "keep"])
def test_a_recorded_run_that_goes_back_to_a_cached_prompt_reproduces_itself(on_instruction):
    chosen = {"memory.slots": 400, "memory.prompt_slots": 200, "memory.on_instruction": on_instruction}
    chosen |= {"admission.estimator": "ema", "engine.model": "tiny"}
    parameters = validate_all(SMALL | chosen)
    recorded = a_live_run(parameters, 90, instructions=((20, "another one"), (40, ""), (60, "another one")))
    assert again(recorded) == run_document.outcome(recorded.ticks)
    kinds = [work["kind"] for tick in recorded.ticks for work in tick["work"]]
    assert kinds.count("prompt") == 2, "the first two instructions"
    retained = {tick["tick"]: tick["retained_frames"] for tick in recorded.ticks}
    after = min(tick for tick in retained if tick >= 60)
    assert (retained[after] > 1) == (on_instruction == "keep")


def test_a_recorded_run_with_recalls_reproduces_itself(monkeypatch):
    # The sample's scene never comes back: a sum of pixels, which is any number, stands for twelve scenes.
    twelve = np.eye(12, settings.SIGNATURE_SIZE, dtype=np.float32)
    monkeypatch.setattr(settings, "patch_signature", lambda frame: twelve[int(frame.sum()) % 12])
    chosen = {"memory.policy": "fifo", "memory.embedding": "patch_signature", "memory.slots": 260}
    chosen |= {"memory.host_bytes": 8_000_000, "memory.recall_similarity": 0.9}
    chosen |= {"admission.estimator": "ema", "engine.model": "tiny", "engine.backend": "numpy"}
    recorded = a_live_run(validate_all(SMALL | chosen), 120)
    lines = [line["reason"] for tick in recorded.ticks for line in tick["journal"]]
    assert any("which the scene resembles again" in line for line in lines)
    assert any("no longer resembles" in line for line in lines)
    assert again(recorded) == run_document.outcome(recorded.ticks)


def test_a_run_with_stopped_passes_reproduces_its_own_decisions_times_and_journal(recorded_stopped, tmp_path):
    path = tmp_path / "demo.json"
    path.write_text(json.dumps(recorded_stopped.to_document()))
    recorded = RecordedRun.load(path)
    assert recorded == recorded_stopped
    with open_bag(SAMPLE) as bag:
        replayed = replay_recorded(bag, SAMPLE_TOPIC, recorded.run["parameters"], recorded)
    records = json.loads(json.dumps([record.to_json() for record in replayed.records]))
    assert run_document.outcome(records) == run_document.outcome(recorded.ticks)
    for name in ("work", "predicted_ns", "reason", "retained_frames"):
        assert [record[name] for record in records] == [tick[name] for tick in recorded.ticks]


def test_the_run_with_stopped_passes_has_them_in_their_own_tick_and_in_the_next(recorded_stopped):
    ticks = recorded_stopped.ticks
    stopped = [(tick, work) for tick in ticks for work in tick["work"] if work["is_aborted"]]
    in_own_tick = {work["work_id"] == tick["submitted_work"] for tick, work in stopped}
    assert in_own_tick == {True, False}
    document = run_document.summarise(ticks)
    assert document["aborted_passes"] == len(stopped) >= 10
    n_finished = sum(run_document.row(tick)["pass_ms"] is not None for tick in ticks)
    assert document["latency_ms"]["pass"]["n"] == n_finished <= len(ticks) - len(stopped)


def test_a_stated_service_beyond_the_deadline_is_stopped_there_and_keeps_no_tick_busy():
    with open_bag(SAMPLE) as bag:
        records = replay(bag, SAMPLE_TOPIC, validate_all(SMALL), 40.0, 2.0, True).records
    stopped = [(record, work) for record in records for work in record.work if work.is_aborted]
    assert stopped
    for record, work in stopped:
        assert record.decision.value in ("HOLD_LATE", "SAFE_STOP")
        assert work.finished_ns - work.submitted_ns + work.remaining.total_ns == 40_000_000
    assert not any("an earlier frame" in record.reason for record in records)


def test_a_recorded_run_survives_its_document(recorded_live, tmp_path):
    path = tmp_path / "demo.json"
    path.write_text(json.dumps(recorded_live.to_document()))
    assert RecordedRun.load(path) == recorded_live


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda run: run.pop("begin"), "begin is missing"),
        (lambda run: run["records"][7].pop("journal"), "records[7].journal is missing"),
        (
            lambda run: run["records"][1]["work"][0].update(stages=[]),
            "records[1].work[0].stages is [], wanted",
        ),
        (lambda run: run["records"][7].update(decision="MAYBE"), "decision is 'MAYBE', wanted a Decision"),
        (
            lambda run: run["records"][7].update(action=[math.inf]),
            "records[7].action[0] is inf, wanted a finite",
        ),
        (lambda run: run["records"][7].update(events=[{}]), "records[7].events[0].event is missing"),
        (
            lambda run: run["records"][7].update(events=[{"event": "instruction", "text": 3}]),
            "records[7].events[0].text is 3, wanted a text",
        ),
        (lambda run: run["received"][3].append(1), "TypeError"),
        (lambda run: run["received"][3].__setitem__(0, 10**30), "received[3][0] is 1000"),
        (lambda run: run["run"].update(laps=[{"base_ns": 3}]), "run.laps[0].origin_stamp_ns is missing"),
        (lambda run: run["run"]["parameters"].clear(), "run.parameters.memory.policy is missing"),
    ],
)
def test_times_that_are_incomplete_or_of_another_version_are_refused_by_place(
    recorded_live, tmp_path, damage, line
):
    document = json.loads(json.dumps(recorded_live.to_document()))
    damage(document)
    path = tmp_path / "demo.json"
    path.write_text(json.dumps(document))
    with pytest.raises(UserError, match="holds no times of a recorded run") as refused:
        RecordedRun.load(path)
    assert line in str(refused.value)


def test_a_recorded_run_under_another_policy_keeps_its_times_and_changes_its_memory(recorded_live):
    live, fifo = run_document.outcome(recorded_live.ticks), again(recorded_live, **{"memory.policy": "fifo"})
    assert fifo["decisions"] == live["decisions"]
    assert fifo["journal"] != live["journal"]


def test_a_recording_of_something_else_is_refused_by_the_frame_that_it_lacks(recorded_live, tmp_path):
    with (
        open_bag(write_rosbag2(tmp_path / "bag")) as bag,
        pytest.raises(UserError, match="recorded frame 1: is this the recording"),
    ):
        replay_recorded(bag, TOPIC, recorded_live.run["parameters"], recorded_live)


@pytest.mark.parametrize("event", ["instruction", "clock_jump", "retune", "landing"])
def test_an_event_that_says_too_little_or_is_not_known_is_refused(recorded_live, event):
    ticks = [recorded_live.ticks[0] | {"events": [{"event": event}]}]
    with pytest.raises(UserError, match=f"event that is not (complete|known here): {event}"):
        again(replace(recorded_live, ticks=ticks))


def test_a_frame_that_is_missed_while_a_pass_starts_is_refused_too(recorded_live):
    works = {work["work_id"]: work for tick in recorded_live.ticks for work in tick["work"]}
    read_later = next(
        works[tick["submitted_work"]]["frame_index"]
        for tick in recorded_live.ticks
        if (works.get(tick["submitted_work"]) or {"frame_index": 0})["frame_index"] > tick["seen_frame"]
    )
    frames = [replace(f, stamp_ns=1) if f.index == read_later else f for f in recorded_live.frames]
    with pytest.raises(UserError, match=f"recorded frame {read_later}: is this the recording"):
        again(replace(recorded_live, frames=frames))


def test_a_run_whose_recorder_dropped_a_frame_is_refused(recorded_live):
    frames = recorded_live.frames[:20] + recorded_live.frames[21:]
    with pytest.raises(UserError, match="the recorded run cannot be run again: frame 21 was not recorded"):
        again(replace(recorded_live, frames=frames))


@pytest.fixture(scope="module")
def recorded_motion() -> RecordedRun:
    """An arm that moves, and whose joint states stop for a while."""
    arm = {"actions.policy_file": str(share_directory() / "config/policies/tiny_vla.yaml")}
    times_ns = (at_ns for at_ns in range(5_001_000_000, 8_500_000_000, 10_000_000))
    joints = [
        (at_ns, [0.2 + 1e-10 * (at_ns - 5_000_000_000)] * 7)
        for at_ns in times_ns
        if not 7_000_000_000 < at_ns < 7_400_000_000
    ]
    return a_live_run(validate_all(SMALL | arm), 100, joints)


def test_a_run_in_which_the_robot_moved_is_repeated_with_its_joint_states(recorded_motion):
    enabled = [tick for tick in recorded_motion.ticks if tick["is_enabled"]]
    assert {"FRESH", "SAFE_STOP"} <= {tick["decision"] for tick in enabled}
    assert again(recorded_motion) == run_document.outcome(recorded_motion.ticks)


def test_its_actions_are_those_of_its_joint_states(recorded_motion):
    moved = replace(
        recorded_motion,
        ticks=[
            tick | {"joint_states": [state | {"positions": [1.0] * 7} for state in tick["joint_states"]]}
            for tick in recorded_motion.ticks
        ],
    )
    live, other = run_document.outcome(recorded_motion.ticks), again(moved)
    assert other["decisions"] == live["decisions"]
    assert other["actions"] != live["actions"]


def test_joint_states_that_are_not_of_the_policy_are_refused(recorded_motion):
    ticks = [
        tick | {"joint_states": [state | {"positions": [1.0]} for state in tick["joint_states"]]}
        for tick in recorded_motion.ticks
    ]
    with pytest.raises(UserError, match="of its policy's joints, joint_states refused: 1 positions for 7"):
        again(replace(recorded_motion, ticks=ticks))


def test_times_of_work_that_a_later_version_adds_to_are_read(recorded_live):
    tick = next(tick for tick in recorded_live.ticks if tick["work"])
    (work,) = tick["work"][:1]
    added = work | {"new": 1, "stages": work["stages"] | {"new_ns": 1}}
    assert work_times(added) == work_times(work)


def test_a_run_whose_engine_was_replaced_is_refused_with_the_reason(recorded_live):
    event = {"event": "engine_replaced"}
    ticks = [*recorded_live.ticks, recorded_live.ticks[-1] | {"tick": 999, "events": [event]}]
    with pytest.raises(UserError, match="an engine fault cannot be made to happen again"):
        again(replace(recorded_live, ticks=ticks))


def test_a_run_that_took_steps_of_the_ladder_gives_them_again():
    """Unlike passes of a busy machine, these are slow by what they attend to."""
    ladder = {"ladder.forget_frames": 4, "ladder.least_frames": 1, "ladder.reuse_ticks": 3}
    steps = {"ladder.unchanged_levels": 16.0, "admission.target_miss_rate": 0.05}
    recorded = a_live_run(validate_all(SMALL | ladder | steps), 150)
    taken = [tick["step"] for tick in recorded.ticks]
    assert taken.count("reuse") > 3
    document = run_document.summarise(recorded.ticks)
    assert document["steps"]["reuse"] == taken.count("reuse")
    with open_bag(SAMPLE) as bag:
        replayed = replay_recorded(bag, SAMPLE_TOPIC, recorded.run["parameters"], recorded)
    repeated = json.loads(json.dumps([record.to_json() for record in replayed.records]))
    for name in ("step", "prices_ns", "forgotten_frames", "decision", "action", "journal"):
        assert [tick[name] for tick in repeated] == [tick[name] for tick in recorded.ticks], name


def test_a_run_that_shortened_actions_gives_them_again():
    policy = str(share_directory() / "config/policies/tiny_vla.yaml")
    ladder = {"actions.policy_file": policy, "ladder.least_tokens": 3, "admission.target_miss_rate": 0.05}
    recorded = a_live_run(validate_all(SMALL | ladder), 150)
    held = [tick["held_tokens"] for tick in recorded.ticks]
    assert sum(n > 0 for n in held) > 3 and max(held) <= 5
    assert {tick["step"] for tick in recorded.ticks if tick["held_tokens"]} == {"fewer_tokens"}
    with open_bag(SAMPLE) as bag:
        replayed = replay_recorded(bag, SAMPLE_TOPIC, recorded.run["parameters"], recorded)
    repeated = json.loads(json.dumps([record.to_json() for record in replayed.records]))
    for name in ("step", "prices_ns", "held_tokens", "decision", "action", "journal"):
        assert [tick[name] for tick in repeated] == [tick[name] for tick in recorded.ticks], name


# Real recordings


@pytest.mark.parametrize(
    ("name", "topic", "n_frames"),
    [
        ("bridge_widowx", "/image_0", 250),
        ("wrist_so101_jpeg", "/wrist/image_raw/compressed", 600),
        ("desk_cup_jpeg", "/camera/image_raw/compressed", 217),
        ("street_raw", "/camera/image_raw", 125),
        ("street_zstd", "/front/image", 100),
        ("aruco_marker_ros1.bag", None, 1),
        ("soccer_sim", None, 2),
    ],
)
def test_every_real_recording_replays_with_fresh_actions(shared, name, topic, n_frames):
    with open_bag(shared / "recordings" / name) as bag:
        assert topic is None or bag.pick_image_topic().name == topic
        parameters = validate_all(SMALL)
        replayed = replay(bag, bag.pick_image_topic().name, parameters, 20.0, float("inf"), True)
    assert replayed.camera.received == replayed.camera.published == n_frames
    assert sum(record.decision.value == "FRESH" for record in replayed.records) >= min(n_frames - 1, 90)
