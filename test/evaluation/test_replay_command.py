"""`vla-edge replay` as a user calls it."""

import json
from functools import partial

import pytest
from recorded import SAMPLE, image_payloads, write_mcap, write_rosbag2
from test_virtual_run import SAMPLE_TOPIC, SMALL, a_live_run

from vla_edge_ros.cli import main
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation import replay
from vla_edge_ros.evaluation.run_document import OUTCOME, canonical_sha256, summarise
from vla_edge_ros.parameters import validate_all
from vla_edge_ros.progress import told


def call(capsys, *words) -> tuple[int, str, str]:
    code = main(["replay", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_it_writes_what_two_runs_are_compared_by_with_hashes_that_hold(capsys, tmp_path):
    paths = [tmp_path / "out" / f"{run}.json" for run in "ab"]
    for path in paths:
        code, out, _ = call(capsys, SAMPLE, "--seconds", 1, "--json", path)
        assert code == 0
    first, second = (json.loads(path.read_text()) for path in paths)
    for part in OUTCOME:
        assert first[part] == second[part]
        assert first[f"{part}_sha256"] == canonical_sha256(second[part])
        assert first[f"{part}_sha256"] in out
    assert len(first["decisions"]) == first["ticks"] == 31


def test_the_report_is_written_where_it_is_asked_for(capsys, tmp_path):
    path = tmp_path / "deep" / "report.html"
    assert call(capsys, SAMPLE, "--seconds", 0.5, "--report", path)[0] == 0
    assert path.stat().st_size > 0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["/nowhere"], "/nowhere: no such file or folder"),
        (["SEVERAL"], "name one of several image topics: /left (sensor_msgs/msg/Image, 12), /right"),
        (["SEVERAL", "--topic", "/up"], "there is no topic /up; its topics are"),
        (["SAMPLE", "--param", "memory.slots"], "wanted NAME=VALUE"),
        (["SAMPLE", "--param", "memory.slot=3"], "did you mean memory.slots?"),
        (["SAMPLE", "--param", "memory.slots=3"], "memory.slots: 3 is not allowed"),
        (["SAMPLE", "--param", "control.record_path=x.jsonl"], "a replay records no run; --json PATH"),
        (["--ticks", "x", "--param", "control.record_path=x.mcap"], "a replay records no run; --json PATH"),
        (
            ["SAMPLE", "--param", "engine.model=nothing"],
            "neither a preset (tiny, tiny-vla, qwen2.5-coder-0.5b,",
        ),
        (["SAMPLE", "--instruction", "x" * 5000], "shorten them or raise memory."),
        (["SAMPLE", "--times", "/nowhere.json"], "/nowhere.json: cannot be read"),
        (["EMPTY_TOPIC"], "there is no image topic; its topics are"),
    ],
)
def test_bad_input_ends_with_one_line_and_exit_code_2(capsys, tmp_path, words, line):
    makers = {
        "SEVERAL": lambda: write_rosbag2(tmp_path / "bag", topics=("/left", "/right")),
        "SAMPLE": lambda: SAMPLE,
        "EMPTY_TOPIC": lambda: write_rosbag2(tmp_path / "bag", topics=(), instructions=("go",), n_images=1),
    }
    words = [makers[word]() if word in makers else word for word in words]
    code, out, err = call(capsys, *words)
    assert code == 2
    assert err.count("\n") == 1
    assert line in err
    assert "Traceback" not in out + err


def test_a_truncated_recording_is_read_as_far_as_it_goes_and_said_by_the_exit_code(capsys, tmp_path):
    path = write_mcap(tmp_path / "cut.mcap", image_payloads(40), use_chunking=False)
    content = path.read_bytes()
    path.write_bytes(content[: content.index(image_payloads(40)[30]) + 5])
    code, out, _ = call(capsys, path, "--json", tmp_path / "cut.json")
    assert code == 3
    assert "truncated after 30 messages" in out
    assert json.loads((tmp_path / "cut.json").read_text())["frames"] == 30
    assert call(capsys, path, "--allow-truncated")[0] == 0


def test_a_recorded_run_has_its_own_instructions(capsys, tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text('{"run": {}}\n{"begin": {"at_ns": 0, "frame": 0}}\n')
    code, _, err = call(capsys, SAMPLE, "--times", path, "--instruction", "x")
    assert code == 2
    assert "a recorded run has its own instructions" in err


@pytest.mark.parametrize(
    ("engine", "words", "plan"),
    [
        ({"backend": "cuda", "plan_id": "cuda-1x8"}, (), "cuda-1x8"),
        ({"backend": "cuda", "plan_id": "cuda-1x8"}, ("--param", "engine.plan="), ""),
        ({"backend": "cuda", "plan_id": "cuda-1x8"}, ("--param", "engine.backend=numpy"), ""),
        ({"backend": "cuda", "plan_id": "cuda-1x8"}, ("--param", "memory.policy=fifo"), "cuda-1x8"),
        ({"backend": "numpy", "plan_id": "numpy-openblas"}, (), ""),
    ],
)
def test_a_recorded_run_is_replayed_under_its_own_plan(capsys, tmp_path, monkeypatch, engine, words, plan):
    path = tmp_path / "run.jsonl"
    run = {"parameters": validate_all({}), "engine": engine}
    path.write_text(json.dumps({"run": run}) + '\n{"begin": {"at_ns": 0, "frame": 0}}\n')
    plans = []

    def replay_recorded(bag, topic, values, recorded):
        plans.append(values["engine.plan"])
        raise UserError("seen enough")

    monkeypatch.setattr(replay, "replay_recorded", replay_recorded)
    assert call(capsys, SAMPLE, "--times", path, *words)[0] == 2
    assert plans == [plan]


def test_service_times_are_either_stated_or_recorded(capsys):
    with pytest.raises(SystemExit) as ended:
        call(capsys, SAMPLE, "--service-ms", 5, "--times", "x.json")
    assert ended.value.code == 2


def test_a_replay_at_a_run_s_own_times_counts_the_frames_that_the_run_counts(capsys, tmp_path):
    run = a_live_run(validate_all(SMALL), 30)
    assert run.begin["frame"] > 0, "a frame that was there before the first tick"
    path, again = tmp_path / "run.json", tmp_path / "again.json"
    path.write_text(json.dumps(run.to_document()))
    words = (SAMPLE, "--topic", SAMPLE_TOPIC, "--times", path, "--json", again)
    assert call(capsys, *words)[0] == 0
    of_the_run = summarise(run.ticks, run.begin["frame"])
    replayed = json.loads(again.read_text())
    for name in ("frames", "frames_skipped", "ticks", "fresh"):
        assert replayed[name] == of_the_run[name], name


@pytest.mark.parametrize("words", [("--ticks",), (SAMPLE, "--ticks"), (SAMPLE, "--times")])
def test_what_a_replay_wrote_is_told_from_a_recorded_run(capsys, tmp_path, words):
    path = tmp_path / "replay.json"
    assert call(capsys, SAMPLE, "--seconds", 0.2, "--json", path)[0] == 0
    code, _, err = call(capsys, *words, path)
    assert (code, err.count("\n")) == (2, 1)
    assert f"{path}: is what `replay --json` wrote, which has no times to repeat" in err


@pytest.mark.parametrize("words", [("--times",), ("--ticks",)])
def test_a_recorded_run_on_a_cut_recording_ends_with_3_as_long_as_its_frames_are_there(
    capsys, tmp_path, words
):
    path, cut = tmp_path / "run.json", tmp_path / "cut.mcap"
    path.write_text(json.dumps(a_live_run(validate_all(SMALL), 60).to_document()))
    content = next(SAMPLE.glob("*.mcap")).read_bytes()
    cut.write_bytes(content[: len(content) // 10])
    command = (cut, "--topic", SAMPLE_TOPIC, *words, path)
    code, out, _ = call(capsys, *command, "--seconds", 0.3)
    assert code == 3 and "truncated after 95 messages" in out
    assert call(capsys, *command, "--seconds", 0.3, "--allow-truncated")[0] == 0
    code, _, err = call(capsys, *command)
    assert (code, err.count("\n")) == (2, 1)
    assert "belongs to the stamp" in err and "(it is truncated after 95 messages)" in err


def test_a_tick_that_differs_counts_for_more_than_a_cut_recording(capsys, tmp_path):
    run = a_live_run(validate_all(SMALL), 12)
    run.ticks[5]["reason"] = "something else"
    path, cut = tmp_path / "run.json", tmp_path / "cut.mcap"
    path.write_text(json.dumps(run.to_document()))
    content = next(SAMPLE.glob("*.mcap")).read_bytes()
    cut.write_bytes(content[: len(content) // 10])
    assert call(capsys, cut, "--topic", SAMPLE_TOPIC, "--ticks", path)[0] == 1


@pytest.mark.parametrize("words", [(), ("--times", "RUN"), ("--ticks", "RUN")])
def test_long_work_is_named_on_stderr_and_leaves_the_output_alone(capsys, tmp_path, monkeypatch, words):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(a_live_run(validate_all(SMALL), 12).to_document()))
    command = (SAMPLE, "--topic", SAMPLE_TOPIC, "--seconds", 0.3)
    command += tuple(path if word == "RUN" else word for word in words)
    code, quick, _ = call(capsys, *command)
    monkeypatch.setattr(replay, "told", partial(told, after_s=0.0))
    assert call(capsys, *command)[:2] == (code, quick) and code == 0
    _, _, err = call(capsys, *command)
    assert err in ("replaying sample ...\n", f"running the ticks of {path} again ...\n")
