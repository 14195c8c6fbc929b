"""The demo with the simulated arm as a newcomer runs it; the fake engine stands in for the trained model."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'vla_edge_ros[simulation]'")

from test_demo import demo

from vla_edge_ros.engine.presets import TRAINED
from vla_edge_ros.nodes import demo as command
from vla_edge_ros.simulation import renderer
from vla_edge_ros.simulation.episode_film import LARGEST_BYTES

FAKE = ("--param", "engine.backend=fake", "--param", "engine.model=fake:service_ms=5")


@pytest.fixture(scope="module")
def finished(ros_environment, has_renderer, tmp_path_factory):
    """One episode in which the arm is told what no table has."""
    tmp_path = tmp_path_factory.mktemp("demo")
    run = demo(ros_environment, tmp_path, *FAKE, "--seed", 1, "--instruction", "fly to the moon")
    assert run.returncode == 0, run.stdout + run.stderr
    return json.loads((tmp_path / "out/demo.json").read_text()), tmp_path / "out", run.stdout


def test_the_episode_and_what_the_node_did_in_it_are_in_the_document(finished):
    document, _, _ = finished
    (episode,) = document["episodes"]
    assert (episode["task"], episode["seed"]) == ("reach", 1)
    assert 0 < episode["fresh"] <= episode["ticks"]
    assert document["fresh"] >= episode["fresh"]
    assert any(tick["is_enabled"] for tick in document["records"])


def test_the_share_of_fresh_ticks_in_the_episode_is_told_from_that_of_the_run(finished):
    document, _, output = finished
    assert "FRESH in it" in output
    share, n = f"{100 * document['fresh_ratio']:.1f} %", document["ticks"]
    assert f"over the whole run, between episodes too, {share} of {n:,} ticks were FRESH" in output


def test_an_instruction_outside_the_vocabulary_runs_and_its_confidence_is_told(finished):
    document, _, output = finished
    (episode,) = document["episodes"]
    assert episode["instructions"] == ["fly to the moon"]
    assert (episode["has_succeeded"], episode["distance_m"]) == (False, None)
    assert episode["confidence"] is not None
    assert "told of nothing on the table" in output and "confidence" in output
    texts = {event["text"] for tick in document["records"] for event in tick["events"] if "text" in event}
    assert "fly to the moon" in texts


def test_the_moving_run_is_replayed_at_its_own_times_to_the_same_decisions(finished):
    document, _, output = finished
    assert document["replay_is_equal"] is True
    assert "the same decisions" in output


def test_the_terminal_says_how_to_change_the_instruction_and_where_the_files_are(finished):
    _, out, output = finished
    assert "ros2 topic pub --once /instruction std_msgs/msg/String" in output
    for name in ("report.html", "episode.webp", "demo.json", "demo.mcap"):
        assert str(out / name) in output.replace("\n", "") and (out / name).is_file()
    assert sorted(file.name for file in out.iterdir()) == sorted(
        ["report.html", "episode.webp", "demo.json", "demo.mcap"]
    )


def test_the_report_has_the_picture_within_its_size(finished):
    _, out, _ = finished
    assert (out / "episode.webp").read_bytes()[8:12] == b"WEBP"
    assert (out / "episode.webp").stat().st_size <= LARGEST_BYTES
    page = (out / "report.html").read_text()
    assert "data:image/webp;base64," in page and "What the arm did" in page


def vla_edge(environment, *words):
    command = [sys.executable, "-m", "vla_edge_ros.cli", *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def test_report_and_replay_take_what_the_demo_wrote(ros_environment, finished, tmp_path):
    document, out, _ = finished
    page, again = tmp_path / "again.html", tmp_path / "again.json"
    run = vla_edge(ros_environment, "report", out / "demo.json", "--out", page)
    assert run.returncode == 0, run.stderr
    assert "data:image/webp;base64," in page.read_text()
    assert "data:image/jpeg;base64," in page.read_text(), "the frames of the recording beside it"
    run = vla_edge(
        ros_environment, "replay", out / "demo.mcap", "--times", out / "demo.json", "--json", again
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(again.read_text())["decisions_sha256"] == document["decisions_sha256"]


def test_joints_of_another_name_end_in_one_line_that_names_them(ros_environment, has_renderer, tmp_path):
    policy = tmp_path / "policy.yaml"
    source = command.share_directory() / "config/policies/tiny_vla.yaml"
    policy.write_text(source.read_text().replace("joint3", "elbow"))
    statistics = source.parent / "tiny_vla_statistics.json"
    (tmp_path / statistics.name).write_text(statistics.read_text())
    run = demo(ros_environment, tmp_path, *FAKE, "--param", f"actions.policy_file={policy}")
    assert run.returncode == 2
    assert "moves elbow; the simulated arm has joint1, joint2, joint3" in run.stderr
    assert "Traceback" not in run.stdout + run.stderr


def test_without_a_renderer_a_line_names_the_package_and_the_recording_is_played(ros_environment, tmp_path):
    environment = ros_environment | {"MUJOCO_EGL_DEVICE_ID": "99"}
    run = demo(environment, tmp_path, *FAKE, "--seconds", 1)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.startswith("no simulated arm, the recording instead: ")
    assert "sudo apt-get install libegl1 libgl1-mesa-dri" in run.stdout.splitlines()[0]
    assert "Exception ignored" not in run.stderr
    assert json.loads((tmp_path / "out/demo.json").read_text())["bag"] == "sample"


def test_what_is_missing_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(TRAINED, "tiny-vla", tmp_path / "nowhere")
    assert "nowhere is missing, tiny-vla is not trained here" in command._lack({})
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    assert "MuJoCo is not installed: pip install -e '.[simulation]'" in command._lack({})


def test_a_model_of_the_user_s_own_needs_no_trained_preset(monkeypatch, tmp_path, has_renderer):
    monkeypatch.setitem(TRAINED, "tiny-vla", tmp_path / "nowhere")
    assert command._lack({"engine.model": "/my/model"}) is None
    monkeypatch.setattr(renderer, "_open_context", lambda *_: raise_no_renderer())
    assert command._lack({"engine.model": "/my/model"}) == "no OpenGL here"


def raise_no_renderer():
    raise renderer.NoRenderer("no OpenGL here")


def test_a_seed_or_a_task_beside_a_recording_is_refused(ros_environment, tmp_path):
    run = demo(ros_environment, tmp_path, "--bag", "x", "--task", "reach")
    assert run.returncode == 2
    assert "--task is of the simulated arm: leave it or the recording out" in run.stderr
