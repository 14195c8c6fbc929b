"""`vla-edge train` as a user calls it: from a recording to what the node loads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from arm_bag import JOINTS, START_NS, joint_state, moving_arm, write_bag, write_policy
from safetensors.numpy import load_file

from training.expert_bag import write_expert_bag
from training.from_bags import command, cost
from training.model import action_loss
from vla_edge_ros.cli import main
from vla_edge_ros.control import settings
from vla_edge_ros.engine import presets
from vla_edge_ros.engine.linux import same_imports
from vla_edge_ros.engine.weights import open_weights
from vla_edge_ros.parameters import validate_all

ROOT = Path(__file__).resolve().parents[2]
QUICK = ("--sequences", "2", "--queries", "4", "--device", "cpu")


def call(capsys, *words) -> tuple[int, str, str]:
    code = main(["train", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def node_parameters(out: Path) -> dict[str, object]:
    content = yaml.safe_load((out / "node.yaml").read_text())["/**"]["ros__parameters"]
    return {f"{group}.{key}": value for group, values in content.items() for key, value in values.items()}


@pytest.fixture
def arm(tmp_path):
    """Options of a recording of three episodes, and where the result goes."""
    messages = [m for start in range(3) for m in moving_arm(6, START_NS + start * 10**11, f"lift {start}")]
    bag = write_bag(tmp_path / "bag", messages)
    return ["--bag", bag, "--action-topic", JOINTS, "--config", write_policy(tmp_path)]


def test_an_experts_recording_becomes_a_policy_that_a_replay_runs_with(has_renderer, capsys, tmp_path):
    bag, out = tmp_path / "expert", tmp_path / "out"
    write_expert_bag(bag, "reach", range(2_000_000, 2_000_003))
    config = ROOT / "config/policies/tiny_vla.yaml"
    words = ["--bag", bag, "--action-topic", "/joint_states", "--config", config, "--out", out]
    code, said, _ = call(capsys, *words, "--steps", 3, *QUICK)
    assert code == 0
    assert "3 episodes" in said
    assert said.index("MB") < said.index("s a step") < said.index("step 3: loss")

    node = validate_all(node_parameters(out))
    policy = settings.policy_of(node)
    assert [dimension.name for dimension in policy.dimensions][-1] == "gripper"
    assert policy.statistics.source.startswith(str(out / "dataset_statistics.json"))
    assert open_weights(node["engine.model"], 0)[1].notes == ()
    errors = json.loads((out / "results.json").read_text())["held_out_error"]
    assert set(errors) >= {"random weights", "trained", "mean action", "median action"}

    words = [f"--param={name}={value}" for name, value in node_parameters(out).items()]
    assert main(["replay", str(bag), *words, "--seconds", "1", "--json", str(tmp_path / "replay.json")]) == 0
    replayed = json.loads((tmp_path / "replay.json").read_text())
    assert replayed["decisions"][1] == [1, "FRESH"]
    assert main(["doctor", "--seconds", "0.2", *words]) in (0, 1)
    assert "tightest deadline" in capsys.readouterr().out


def test_without_a_renderer_the_experts_recording_ends_in_one_line_before_it_is_begun(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "training.expert_bag", str(tmp_path / "bag")],
        cwd=ROOT,
        env={**os.environ, "MUJOCO_EGL_DEVICE_ID": "99"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "sudo apt-get install libegl1 libgl1-mesa-dri" in done.stderr
    assert not (tmp_path / "bag").exists()


def test_it_needs_no_ros_and_no_folder_to_be_called_from(arm, tmp_path):
    code = (
        "import sys; sys.modules['rclpy'] = None\n"
        "from vla_edge_ros.cli import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    words = [sys.executable, "-c", code, "train", *map(str, arm), "--out", "out", "--steps", "1", *QUICK]
    environment = same_imports({"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"})
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out/policy.yaml").is_file()


def test_a_call_that_runs_out_of_time_is_gone_on_with_and_ends_where_one_call_does(arm, capsys, tmp_path):
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    code, said, _ = call(capsys, *arm, "--out", cut, "--steps", 2, *QUICK, "--minutes", 1e-6)
    assert code == command.UNFINISHED
    assert "time is up at step 1 of 2" in said
    code, said, _ = call(capsys, *arm, "--out", cut, "--steps", 2, *QUICK)
    assert code == 0
    assert "going on at step 1" in said
    assert call(capsys, *arm, "--out", whole, "--steps", 2, *QUICK)[0] == 0
    weights = [load_file(out / "model/model.safetensors") for out in (cut, whole)]
    assert all(np.allclose(weights[0][name], value, atol=1e-6) for name, value in weights[1].items())


def test_a_folder_of_other_recordings_or_another_recipe_is_refused(arm, capsys, tmp_path):
    out = ["--out", tmp_path / "out"]
    assert call(capsys, *arm, *out, "--steps", 1, *QUICK)[0] == 0
    for other in (["--instruction", "push it"], ["--param", "memory.stride_ticks=3"], ["--seed", 1]):
        code, _, said = call(capsys, *arm, *out, "--steps", 1, *QUICK, *other)
        assert code == 2
        assert "data.json is of other recordings" in said
    code, _, said = call(capsys, *arm, *out, "--steps", 2, *QUICK)
    assert code == 2
    assert "is of the recipe" in said
    (tmp_path / "out/data.json").write_text("{")
    code, _, said = call(capsys, *arm, *out, "--steps", 1, *QUICK)
    assert code == 2
    assert "data.json: does not say what is trained on" in said


def test_weights_to_begin_from_that_are_damaged_are_refused_by_file(arm, capsys, tmp_path, monkeypatch):
    (tmp_path / "models/tiny-vla").mkdir(parents=True)
    (tmp_path / "models/tiny-vla/model.safetensors").write_bytes(b"cut")
    monkeypatch.setattr(presets, "share_directory", lambda: tmp_path)
    code, _, said = call(capsys, *arm, "--out", tmp_path / "out", "--steps", 1, *QUICK)
    assert code == 2
    assert "model.safetensors: no weights to begin from" in said


def test_training_begins_from_the_presets_weights_where_they_are_there(arm, capsys, tmp_path, monkeypatch):
    assert call(capsys, *arm, "--out", tmp_path / "first", "--steps", 1, *QUICK)[0] == 0
    (tmp_path / "models").mkdir()
    (tmp_path / "first/model").rename(tmp_path / "models/tiny-vla")
    monkeypatch.setattr(presets, "share_directory", lambda: tmp_path)
    code, said, _ = call(capsys, *arm, "--out", tmp_path / "second", "--steps", 1, *QUICK)
    assert code == 0
    assert f"begun from the weights of {tmp_path / 'models/tiny-vla'}" in said
    errors = json.loads((tmp_path / "second/results.json").read_text())["held_out_error"]
    first = json.loads((tmp_path / "first/results.json").read_text())["held_out_error"]
    assert errors["before"] == pytest.approx(first["trained"])
    assert errors["random weights"] == pytest.approx(first["random weights"])


def test_what_the_node_needs_follows_the_policys_period(arm, capsys, tmp_path):
    out = tmp_path / "out"
    assert (
        call(capsys, *arm, "--out", out, "--steps", 1, *QUICK, "--param", "camera.resize=letterbox")[0] == 0
    )
    written = node_parameters(out)
    assert written["control.period_ms"] == 100
    assert written["memory.stride_ticks"] == 9
    assert written["actions.ttl_ms"] == 250
    assert written["camera.resize"] == "letterbox"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--action-topic", "/nothing"], "there is no action topic /nothing; its topics are"),
        (["--config", "/nowhere.yaml"], "/nowhere.yaml: cannot be read: No such file"),
        (["--param", "engine.model=tiny"], "--param engine.model: train sets it itself; leave it out"),
        (["--bag", "/nowhere"], "/nowhere: no such file or folder"),
        (["--topic", "/up"], "there is no topic /up; its topics are"),
        (["--instruction", " "], "--instruction: is empty; say what the arm does, or leave it out"),
        (["--action-topic", JOINTS.strip("/")], "--action-topic: /joint_states is named twice"),
    ],
)
def test_bad_input_ends_with_one_line_and_exit_code_2(arm, capsys, tmp_path, words, line):
    code, _, said = call(capsys, *arm, *words, "--out", tmp_path / "out")
    assert code == 2
    assert line in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_recording_in_which_no_joint_moves_is_refused(capsys, tmp_path):
    names = ["lift", "pan", "hand"]
    still = [joint_state(m[2], names, [0.5, 0.2, 1.0]) if m[0] == JOINTS else m for m in moving_arm()]
    words = ["--bag", write_bag(tmp_path / "bag", still), "--action-topic", JOINTS]
    code, _, said = call(capsys, *words, "--config", write_policy(tmp_path), "--out", tmp_path / "out")
    assert code == 2
    assert "lift, pan, hand: none of them ever changes in the recordings" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_training_that_diverges_writes_no_results(arm, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(command.Data, "constant_errors", lambda self: {"mean action": float("nan")})
    code, _, said = call(capsys, *arm, "--out", tmp_path / "out", "--steps", 1, *QUICK)
    assert code == 2
    assert "a loss or an error is not a finite number" in said
    assert not (tmp_path / "out/results.json").exists()


def test_a_recording_that_is_cut_short_is_trained_on_only_where_that_is_allowed(arm, capsys, tmp_path):
    (file,) = (tmp_path / "bag").glob("*.mcap")
    content = file.read_bytes()
    file.write_bytes(content[: len(content) * 2 // 3])
    code, said, _ = call(capsys, *arm, "--out", tmp_path / "out", "--steps", 1, *QUICK)
    assert code == 3
    assert "truncated after" in said
    assert not (tmp_path / "out").exists()
    allowed = ("--allow-truncated", "--steps", 1, *QUICK)
    assert call(capsys, *arm, "--out", tmp_path / "out", *allowed)[0] == 0


def test_frames_that_do_not_fit_are_refused_before_they_are_read(arm, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(cost, "available_bytes", lambda: 100_000)
    code, _, said = call(capsys, *arm, "--out", tmp_path / "out")
    assert code == 2
    assert "give fewer recordings" in said


def test_free_memory_is_what_the_kernel_says(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal:  9 kB\nMemAvailable:     1234 kB\n")
    assert cost.available_bytes(tmp_path / "meminfo") == 1234 * 1024


def test_without_a_gripper_every_dimension_takes_its_neighbours_for_nearly_right():
    labels = torch.full((1, 2), 100)

    def loss_of(row):
        logits = torch.zeros(1, 2, 256)
        logits[:, :, row] = 8.0
        return action_loss(logits, labels, width_bins=1.5, n_sharp=0).item()

    assert loss_of(100) < loss_of(101) < loss_of(104)
    assert action_loss(torch.zeros(1, 2, 256), labels, 1.5, 0).item() == pytest.approx(np.log(256))


def test_a_model_that_is_no_better_than_what_it_should_beat_is_told():
    errors = {"random weights": 0.3, "before": 0.09, "trained": 0.2, "mean action": 0.21}
    assert command._warning(errors).startswith("no better than before (0.0900): train for longer")
    assert not command._warning(errors | {"trained": 0.08})
