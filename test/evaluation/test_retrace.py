"""Recorded ticks run again: whatever happened in a run comes out again, and what was changed is found."""

import json
from dataclasses import replace

import numpy as np
import pytest
from control_rig import INFO, MS, VOCABULARY, Aborts, ScriptedEngine, Sink
from recorded import SAMPLE
from test_virtual_run import SAMPLE_TOPIC, SMALL, a_live_run

from vla_edge_ros.cli import main
from vla_edge_ros.control import settings
from vla_edge_ros.control.clock import VirtualClock
from vla_edge_ros.control.events import ClockJump, Enable, EngineReplaced, ResetMemory
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.recorded_run import RecordedRun
from vla_edge_ros.evaluation.retrace.compare import compare
from vla_edge_ros.evaluation.retrace.run import retrace
from vla_edge_ros.parameters import validate_all
from vla_edge_ros.perception.frame_buffer import FrameBuffer

BASE = {"engine.backend": "fake", "engine.model": "fake", "memory.slots": 256}
BEGIN_NS = 50 * MS
ENABLED = {1: Enable(True)}


class AnyTokens(ScriptedEngine):
    """Gives other tokens, embeddings and confidences with each pass, which takes longer with each frame."""

    random = np.random.default_rng(0)
    frame_ms = 0.0

    def submit(self, work):
        base_ms = self.service_ms
        self.service_ms += self.frame_ms * len(getattr(work, "context_slots", ())) / 32
        super().submit(work)
        self.service_ms = base_ms

    def _vary(self, result):
        if result is not None and result.tokens is not None:
            shape = result.tokens.shape
            result.tokens = self.random.integers(VOCABULARY - 255, VOCABULARY, shape).astype(np.int32)
            result.top_probability = self.random.random(shape).astype(np.float32)
            result.entropy = self.random.random(shape).astype(np.float32)
            result.embedding = self.random.random(result.embedding.shape).astype(np.float32)
        return result

    def wait(self, until_ns):
        return self._vary(super().wait(until_ns))


class DriftingClock(VirtualClock):
    """ROS time is disciplined while ticks run."""

    def pair(self):
        now_ns, ros_ns = super().pair()
        return now_ns, ros_ns + now_ns // 100_000 + now_ns % 7


class LateSink(Sink):
    def __init__(self, clock, random):
        super().__init__(clock)
        self._random = random

    def tick(self, record):
        super().tick(record)
        self.clock.sleep_until(self.clock.now_ns() + int(self._random.integers(0, 3 * MS)))


def live(
    n_ticks=80, events=None, script=None, service_ms=20.0, frame_ms=0.0, seed=0, lost=(), steps=1, **given
) -> RecordedRun:
    """A run of the controller as the node puts it together, and what the recorder would have kept of it.

    events: by tick. script: by tick, what becomes of the work that is submitted next. lost: ticks that start
    half a period late.
    """
    values = validate_all(BASE | given)
    random = np.random.default_rng(seed)
    policy = settings.policy_of(values)
    schedule = settings.tick_schedule(values, BEGIN_NS + 33_333_000)
    frames, metas = FrameBuffer.create(), []
    names = [dimension.name for dimension in policy.dimensions]
    pixels = np.zeros((64, 128, 3), np.uint8)

    def publish():
        now_ns = clock.now_ns()
        pictures and pictures.put(frames.next_index, pixels)
        frames.write(pixels, 10**18 + now_ns, now_ns - 3 * MS, now_ns)
        metas.append(frames.peek())

    def feel():
        middle = [(d.min + d.max) / 2 + 0.01 * random.random() for d in policy.dimensions]
        assert controller.planner.observe_joints(names, middle, None, clock.now_ns()) is None

    arrivals = [(t * 16_670_000 + 1, publish) for t in range(2 * n_ticks)]
    # Not while a tick decides: to which record such a state goes is the machine's chance.
    arrivals += [(schedule.times(k).start_ns - 2 * MS, feel) for k in range(n_ticks)]
    clock = DriftingClock(iter(sorted(arrivals, key=lambda arrival: arrival[0])), 10**18)
    engine = AnyTokens(clock, frames, service_ms, steps, len(policy.dimensions))
    engine.random, engine.frame_ms = random, frame_ms
    faults: list[str] = []
    pictures = settings.picture_log(values)
    controller = settings.build_controller(
        values, policy, clock, engine, INFO, frames, faults.append, None, pictures
    )
    sink = LateSink(clock, random)
    prompter = settings.Prompter(values)
    controller.post(prompter.changed_to("go"))
    clock.sleep_until(BEGIN_NS)
    begin = {"at_ns": BEGIN_NS, "frame": len(metas)}
    controller.begin(schedule)
    begin["frame"] = controller.last_used_frame
    tick = schedule.following(-1, clock.now_ns())
    while tick < n_ticks:
        late_ns = 17 * MS if tick in lost else int(random.integers(0, MS // 2))
        clock.sleep_until(schedule.times(tick).start_ns + late_ns)
        event = (events or {}).get(tick)
        if isinstance(event, EngineReplaced):
            engine.is_dead, engine._pending = False, None
        if event is not None:
            controller.post(prompter.changed_to(event) if isinstance(event, str) else event)
        if tick in (script or {}):
            engine.script_next(script[tick])
        controller.tick(tick, sink)
        tick = schedule.following(tick, clock.now_ns())
    frames.close()
    ticks = json.loads(json.dumps([record.to_json() for record in sink.records]))
    engine_told = settings.describe_engine(values, INFO)
    return RecordedRun({"parameters": values, "engine": engine_told}, metas, ticks, begin)


def of_older_version(run: RecordedRun) -> RecordedRun:
    """As it was recorded before tokens were."""
    ticks = [t | {"work": [done | {"tokens": None} for done in t["work"]]} for t in run.ticks]
    return replace(run, ticks=ticks, run={"parameters": run.run["parameters"]})


def happened(run: RecordedRun) -> set[str]:
    """The decisions of a run, and the steps of the ladder."""
    return {tick["decision"] for tick in run.ticks} | {tick["step"] for tick in run.ticks}


def again(run: RecordedRun):
    return compare(run.ticks, retrace(run.run["parameters"], run))


def write(path, run: RecordedRun):
    items = [{"run": run.run}]
    items += [{"frame": [f.index, f.stamp_ns, f.capture_ns, f.receipt_ns]} for f in run.frames]
    items += [{"begin": run.begin}, *({"tick": tick} for tick in run.ticks)]
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


@pytest.mark.parametrize("policy", ["fifo", "semantic", "novelty", "random"])
def test_a_run_with_memory_full_comes_out_again(policy):
    run = live(events=ENABLED, **{"memory.policy": policy})
    assert any(tick["journal"] for tick in run.ticks)
    assert "FRESH" in happened(run)
    assert again(run).first is None
    assert again(of_older_version(run)).first is None


STOPPED = {10: Aborts(20 * MS, 30 * MS), 30: 60.0, 31: 70.0, 50: "no_frame"}
REPLACED = {30: EngineReplaced(replace(INFO, plan_id="other")), 33: Enable(True), 60: Enable(False)}
RETUNED = {"camera.max_age_ms": 5.0, "actions.max_hold_ms": 100.0}

CASES = {
    "stopped, late and failed reads": ({"script": STOPPED}, {"HOLD_LATE", "HOLD_BUSY"}),
    "late results used": ({"script": STOPPED, "actions.late_result": "next_tick"}, {"FRESH_LATE"}),
    "an engine that dies and is replaced": (
        {"script": {20: "fail", 40: "fail"}, "events": ENABLED | REPLACED},
        {"FAULT", "SAFE_STOP"},
    ),
    "an engine that hangs": (
        {"script": {20: "hang"}, "engine.stall_timeout_ms": 300.0, "events": ENABLED},
        {"FAULT", "SAFE_STOP"},
    ),
    "refused and tried": (
        {"service_ms": 29.0, "script": dict.fromkeys(range(20, 26), 50.0), "events": ENABLED},
        {"HOLD_REFUSED"},
    ),
    "a deadline that counts from capture": (
        {"service_ms": 22.0, "script": {20: 27.5, 21: 30.0}, "control.deadline_from": "capture"},
        {"FRESH", "HOLD_LATE", "HOLD_REFUSED"},
    ),
    "refused by another rule": (
        {"service_ms": 36.0, "admission.estimator": "ema"},
        {"HOLD_REFUSED"},
    ),
    "events": (
        {
            "events": ENABLED
            | {20: "go left", 30: ResetMemory(), 40: ClockJump(-5 * 10**9), 50: Enable(False)}
        },
        {"FRESH"},
    ),
    "retuned": (
        {"events": ENABLED | {20: settings.live_settings(validate_all(BASE | RETUNED))}},
        {"HOLD_STALE_FRAME", "SAFE_STOP"},
    ),
    "the last action used again": (
        {"lost": range(20, 60, 3), "service_ms": 18.0, "ladder.reuse_ticks": 3},
        {"reuse", "FRESH"},
    ),
    "frames forgotten for time": (
        {
            "lost": range(20, 60, 3),
            "service_ms": 7.27,
            "frame_ms": 1.0,
            "ladder.forget_frames": 2,
            "ladder.least_frames": 2,
        },
        {"fewer_frames"},
    ),
    "tokens left out": (
        {"lost": range(20, 60, 3), "service_ms": 14.8, "ladder.least_tokens": 6, "events": ENABLED},
        {"fewer_tokens"},
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("memory", ["fifo", "semantic"])
def test_whatever_happened_comes_out_again(name, memory):
    how, wanted = CASES[name]
    run = live(**how, **{"memory.policy": memory})
    assert wanted <= happened(run)
    assert again(run).first is None
    assert again(of_older_version(run)).first is None


@pytest.mark.parametrize("file", ["demo_arm", "so101", "panda_ee_delta", "tiny_vla"])
@pytest.mark.parametrize("seed", range(4))
def test_motion_of_every_kind_comes_out_again(file, seed):
    random = np.random.default_rng(seed)
    does = [Aborts(15 * MS, 20 * MS), 45.0, 80.0, "no_frame", 28.0]
    script = {int(tick): does[random.integers(len(does))] for tick in random.integers(5, 150, 30)}
    policy = settings.share_directory() / f"config/policies/{file}.yaml"
    run = live(
        150,
        ENABLED | {70: Enable(False), 80: Enable(True)},
        script,
        seed=seed,
        **{"actions.policy_file": str(policy)},
    )
    assert {"FRESH", "HOLD_BUSY"} <= happened(run)
    assert again(run).first is None
    assert again(of_older_version(run)).first is None


@pytest.mark.parametrize("file", ["demo_arm", "so101"])
@pytest.mark.parametrize("seed", range(3))
def test_a_step_that_lasts_longer_than_a_tick_is_followed_to_where_the_run_got(file, seed):
    random = np.random.default_rng(seed)
    script = {int(tick): [Aborts(8 * MS, 9 * MS), 24.0][tick % 2] for tick in random.integers(5, 150, 40)}
    policy = settings.share_directory() / f"config/policies/{file}.yaml"
    times = {"control.period_ms": 12.0, "control.deadline_ms": 11.5}
    run = live(150, ENABLED, script, 6.0, seed=seed, **{"actions.policy_file": str(policy)}, **times)
    assert {"FRESH", "HOLD_LATE", "HOLD_BUSY"} <= happened(run)
    assert again(run).first is None
    assert again(of_older_version(run)).first is None


CHANGES = {
    "decision": "HOLD_LATE",
    "reason": "another",
    "frame_index": 3,
    "journal": [],
    "predicted_ns": 1,
    "allowance_ns": 7,
    "retained_frames": 99,
    "is_late": True,
    "hold_ns": 5,
    "steps_left": 0,
    "is_enabled": False,
    "skipped_frames": 9,
    "trajectory_ns": None,
    "woke_ns": None,
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_record_that_was_changed_is_found_with_the_tick_and_the_field(capsys, tmp_path, name):
    run = live(events=ENABLED, **{"memory.policy": "fifo"})
    tick = next(tick for tick in run.ticks if tick["journal"] and tick["tick"] > 40 and not tick["is_late"])
    assert tick["trajectory_ns"] is not None
    was, tick[name] = tick[name], CHANGES[name]
    path = write(tmp_path / "run.jsonl", run)
    assert main(["replay", "--ticks", str(path)]) == 1
    out = capsys.readouterr().out
    assert f"the first that differs is tick {tick['tick']}, in {name}:" in out
    assert f"  recorded:  {json.dumps(CHANGES[name])}\n" in out
    if CHANGES[name] is not None:
        assert f"  run again: {json.dumps(was)}\n" in out


def test_an_action_that_breaks_the_limits_or_a_hold_that_moves_is_found():
    run = live(events=ENABLED, script={40: 80.0})
    held = next(tick for tick in run.ticks if tick["decision"] == "HOLD_BUSY" and tick["tick"] > 40)
    held["action"] = [value + 0.001 for value in held["action"]]
    assert (again(run).first.tick, again(run).first.field) == (held["tick"], "action")
    run = live(events=ENABLED)
    run.ticks[30]["action"][0] += 0.5
    assert again(run).first.field == "action"


def test_actions_come_from_the_recorded_tokens_and_not_from_the_recorded_actions():
    run = live(events=ENABLED)
    tick = next(tick for tick in run.ticks[30:] if tick["decision"] == "FRESH")
    was = tick["action"]
    tick["action"] = [float(np.nextafter(value, 9.0)) for value in was]
    first = again(run).first
    assert (first.tick, first.field, first.again) == (tick["tick"], "action", was)


def test_another_token_is_another_action():
    run = live(events=ENABLED)
    tick = next(tick for tick in run.ticks[30:] if tick["decision"] == "FRESH")
    tokens = tick["work"][-1]["tokens"]
    assert len(tokens) == 7
    tokens[0] = VOCABULARY - 1 if tokens[0] < VOCABULARY - 128 else VOCABULARY - 255
    assert (again(run).first.tick, again(run).first.field) == (tick["tick"], "action")


@pytest.mark.parametrize("tokens", [[], [400], [400] * 8, [0] * 7, [2**60] * 7, [-1] * 7])
def test_tokens_that_are_no_action_are_found(tokens):
    run = live(20)
    tick = next(tick for tick in run.ticks if tick["decision"] == "FRESH")
    tick["work"][-1]["tokens"] = tokens
    first = again(run).first
    assert (first.tick, first.recorded, first.again) == (tick["tick"], "FRESH", "HOLD_LATE")


@pytest.mark.parametrize("late_result", ["discard", "next_tick"])
def test_chunks_of_several_steps_come_out_again_from_their_tokens(late_result):
    script = {10: Aborts(20 * MS, 30 * MS), 30: 60.0, 31: 70.0}
    run = live(events=ENABLED, script=script, steps=4, **{"actions.late_result": late_result})
    assert max(tick["steps_left"] for tick in run.ticks) > 1
    assert again(run).first is None
    with pytest.raises(UserError, match="gave more than one step"):
        again(of_older_version(run))


def test_a_file_without_tokens_is_read_and_told_as_before(capsys, tmp_path):
    run = live(20)
    for tick in run.ticks:
        for done in tick["work"]:
            del done["tokens"]
    path = write(tmp_path / "run.jsonl", run)
    assert main(["replay", "--ticks", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("20 ticks run again, 20 equal bit for bit\n")
    assert "of a pass's action, its limited values" in out
    assert main(["explain", str(path)]) == 0
    assert main(["report", str(path), "--out", str(tmp_path / "page.html")]) == 0


def test_the_command_says_how_many_are_equal_and_what_was_taken_from_the_record(capsys, tmp_path):
    path = write(tmp_path / "run.jsonl", live(20))
    assert main(["replay", "--ticks", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("20 ticks run again, 20 equal bit for bit\n")
    assert "taken from the record: what the engine gave and when, of a pass its tokens\n" in out
    assert "taken from the record: which frame semantic names" in out
    assert main(["replay", "--ticks", str(path), "--seconds", "0.3"]) == 0
    assert capsys.readouterr().out.startswith("10 ticks run again, 10 equal")
    assert main(["replay", "--ticks", str(path), "--param", "admission.estimator=fixed"]) == 1


JOINTS = [
    (at_ns, [0.2 + 1e-10 * (at_ns - 5_000_000_000)] * 7)
    for at_ns in range(5_001_000_000, 8_500_000_000, 10_000_000)
    if not 7_000_000_000 < at_ns < 7_400_000_000
]
ARM = {"actions.policy_file": str(settings.share_directory() / "config/policies/tiny_vla.yaml")}


@pytest.mark.parametrize(
    ("given", "joints"),
    [
        ({"actions.late_result": "next_tick"}, ()),
        ({"admission.estimator": "ema", "memory.policy": "novelty"}, ()),
        (ARM, JOINTS),
    ],
)
def test_a_run_with_its_recording_comes_out_again_with_and_without_it(capsys, tmp_path, given, joints):
    run = a_live_run(validate_all(SMALL | given), 100, joints)
    path = write(tmp_path / "run.jsonl", run)
    for bag in ([], [str(SAMPLE), "--topic", SAMPLE_TOPIC]):
        assert main(["replay", *bag, "--ticks", str(path)]) == 0
        n = len(run.ticks)
        assert capsys.readouterr().out.startswith(f"{n} ticks run again, {n} equal bit for bit\n")


def test_with_its_recording_the_smallest_change_of_an_action_is_found(capsys, tmp_path):
    run = a_live_run(validate_all(SMALL), 60)
    tick = next(tick for tick in run.ticks[30:] if tick["decision"] == "FRESH")
    tick["action"][0] = float(np.nextafter(tick["action"][0], 9.0))
    path = write(tmp_path / "run.jsonl", run)
    assert main(["replay", str(SAMPLE), "--topic", SAMPLE_TOPIC, "--ticks", str(path)]) == 1
    assert f"the first that differs is tick {tick['tick']}, in action:" in capsys.readouterr().out


def refused(capsys, *words) -> str:
    assert main(["replay", *map(str, words)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    return err


def test_what_the_record_does_not_hold_is_refused_in_one_line(capsys, tmp_path):
    run = live(12)

    def written(**changed):
        return write(tmp_path / "run.jsonl", replace(run, **changed))

    ticks = run.ticks
    line = refused(capsys, "--ticks", written(ticks=ticks[:5] + ticks[6:]))
    assert "not every one from 4 to 6 was recorded" in line
    assert "after tick 11 comes tick 0, since the node was activated again" in refused(
        capsys, "--ticks", written(ticks=ticks + ticks)
    )
    assert "the recorded run cannot be run again: frame 2 was not recorded" in refused(
        capsys, "--ticks", written(frames=[run.frames[0], *run.frames[2:]])
    )
    assert "was used and not recorded" in refused(capsys, "--ticks", written(frames=run.frames[:5]))
    assert "has no ticks" in refused(capsys, "--ticks", written(ticks=[]))
    defect = ticks[7] | {"decision": "FAULT", "reason": "internal error: KeyError: 5"}
    line = refused(capsys, "--ticks", written(ticks=[*ticks[:7], defect, *ticks[8:]]))
    assert (
        "a defect at tick 7 (internal error: KeyError: 5) cannot be made to happen again; --seconds 0.233"
        in line
    )
    steps = ticks[5] | {"steps_left": 4}
    run_alone = {"parameters": run.run["parameters"]}
    assert "gave more than one step at tick 5" in refused(
        capsys, "--ticks", written(run=run_alone, ticks=[*ticks[:5], steps, *ticks[6:]])
    )
    half = ticks[3] | {"events": [{"event": "retune", "control": {"max_hold_ns": "x"}, "admission": {}}]}
    line = refused(capsys, "--ticks", written(ticks=[*ticks[:3], half, *ticks[4:]]))
    assert "an event that is not complete: retune" in line
    strange = ticks[3] | {"events": [{"event": "dance"}]}
    assert "an event that is not known here: dance" in refused(
        capsys, "--ticks", written(ticks=[*ticks[:3], strange, *ticks[4:]])
    )
    ring = {"parameters": run.run["parameters"] | {"memory.host_bytes": 10**6}}
    assert "name the recording: vla-edge replay BAG --ticks RUN" in refused(
        capsys, "--ticks", written(run=ring)
    )
    older = [{name: value for name, value in tick.items() if name != "allowance_ns"} for tick in ticks]
    assert "allowance_ns is missing" in refused(capsys, "--ticks", written(ticks=older))


def test_a_defect_is_run_up_to_where_the_line_says(capsys, tmp_path):
    run = live(12)
    run.ticks[7] |= {"decision": "FAULT", "reason": "internal error: KeyError: 5"}
    path = write(tmp_path / "run.jsonl", run)
    assert "a defect at tick 7" in refused(capsys, SAMPLE, "--topic", SAMPLE_TOPIC, "--ticks", path)
    seconds = refused(capsys, "--ticks", path).partition("--seconds ")[2].split()[0]
    assert main(["replay", "--ticks", str(path), "--seconds", seconds]) == 0
    assert capsys.readouterr().out.startswith("7 ticks run again, 7 equal")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "name a recording"),
        (["--ticks", "/nowhere"], "/nowhere: cannot be read"),
        (["--ticks", "RUN", "--instruction", "x"], "--instruction does not go with --ticks"),
        (["--ticks", "RUN", "--json", "x.json"], "--json does not go with --ticks"),
        ([SAMPLE, "--ticks", "RUN"], "is this the recording that the run was made with?"),
    ],
)
def test_words_that_do_not_go_together_are_refused(capsys, tmp_path, words, line):
    path = write(tmp_path / "run.jsonl", live(12))
    assert line in refused(capsys, *(path if word == "RUN" else word for word in words))
