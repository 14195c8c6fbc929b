"""The demo on a recording as a newcomer runs it: node, camera and DDS for real, for a few seconds."""

import json
import subprocess
import sys

import pytest
from recorded import image_payloads, write_mcap, write_rosbag2

from vla_edge_ros.nodes.demo_recording import COMPARED, OF_AN_ARM
from vla_edge_ros.share import share_directory

SAMPLE = share_directory() / "recordings/sample"


def demo(environment, tmp_path, *words) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "vla_edge_ros.cli", "demo", "--out", tmp_path / "out", *map(str, words)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture(scope="module")
def finished(ros_environment, tmp_path_factory):
    """Three seconds of the bundled sample with a memory of nine frames."""
    tmp_path = tmp_path_factory.mktemp("demo")
    run = demo(ros_environment, tmp_path, "--bag", SAMPLE, "--seconds", 3, "--param", "memory.slots=384")
    assert run.returncode == 0, run.stdout + run.stderr
    return json.loads((tmp_path / "out/demo.json").read_text()), tmp_path / "out", run.stdout


def test_every_tick_of_the_run_is_in_the_document(finished):
    document, _, _ = finished
    assert document["ticks"] == 90
    # Consecutive except for ticks that the machine itself slept through, which are counted.
    assert document["records"][-1]["tick"] == 89
    assert document["skipped_ticks"] == 90 - len(document["records"])
    assert sum(document["decision_counts"].values()) == document["ticks"]


def test_the_node_acts_and_the_bare_loop_ran_beside_it(finished):
    document, _, _ = finished
    assert document["decision_counts"]["FRESH"] == document["fresh"] > 0
    assert document["bare_loop"]["ticks"] > 0
    assert document["bare_loop_late"] == document["bare_loop"]["late"]


def test_replaying_the_recorded_times_gave_the_same_run_again(finished):
    document, _, output = finished
    assert document["replay_is_equal"] is True
    assert "the same decisions, actions and journal" in output


def test_every_policy_evicted_and_has_its_film_strip(finished):
    document, out, _ = finished
    assert set(document["evictions"]) == set(COMPARED)
    assert all(count > 0 for count in document["evictions"].values())
    page = (out / "report.html").read_text()
    assert all(policy in page for policy in COMPARED)
    assert page.count("<img") >= len(COMPARED) * 5


def test_a_raw_recording_with_another_instruction_is_looped_for_as_long_as_asked(ros_environment, tmp_path):
    bag = write_rosbag2(tmp_path / "bag", n_images=60, instructions=("go left",))
    stale = [tmp_path / "out" / name for name in OF_AN_ARM]
    for file in stale:
        file.parent.mkdir(exist_ok=True)
        file.touch()
    run = demo(ros_environment, tmp_path, "--bag", bag, "--seconds", 2, "--instruction", "go right")
    assert run.returncode == 0, run.stdout + run.stderr
    assert not any(file.exists() for file in stale), "of another run than the document's"
    document = json.loads((tmp_path / "out/demo.json").read_text())
    texts = [event["text"] for record in document["records"] for event in record["events"]]
    assert texts == ["go right"]
    assert document["fresh"] > 0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--bag", "/nowhere"], "/nowhere: no such file or folder"),
        (["--bag", "USELESS", "--seconds", "0.5"], "the node could use none of the images on /cam/image_raw"),
        (["--param", "control.record_path=x"], "control.record_path: the demo sets it itself"),
        (["--instruction", ""], "--instruction is empty: say what the arm is told, or leave it out"),
        (["--bag", "x", "--param", "instruction.initial= "], "--instruction is empty"),
        (["--seconds", "0"], "0 must be a finite number above 0"),
        (["--param", "engine.model=/nowhere"], "the node refused to configure: model '/nowhere' is neither"),
    ],
)
def test_what_cannot_run_ends_in_one_line(ros_environment, tmp_path, words, line):
    useless = write_mcap(tmp_path / "useless.mcap", [image_payloads(1)[0].replace(b"rgb8", b"yuv9")] * 30)
    run = demo(ros_environment, tmp_path, *(useless if word == "USELESS" else word for word in words))
    assert run.returncode == 2
    assert line in run.stderr
    assert "Traceback" not in run.stdout + run.stderr
