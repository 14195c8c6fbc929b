"""Recordings that nobody would make on purpose, through replay."""

import json

import pytest
import recorded
from recorded import BASE_NS, PERIOD_NS, TOPIC, image_payloads, write_mcap, write_rosbag2

from vla_edge_ros.cli import main
from vla_edge_ros.evaluation import virtual_run
from vla_edge_ros.evaluation.bags import open_bag
from vla_edge_ros.evaluation.playback import Lap
from vla_edge_ros.evaluation.recorded_run import RecordedRun
from vla_edge_ros.perception.frame import FrameMeta

PLAYED_NS, STARTED_NS = 1_900_000_000 * 10**9, 50 * 10**9


@pytest.fixture
def replayed(capsys, tmp_path):
    def replay(recording, *words) -> tuple[int, str, str, dict]:
        path = tmp_path / "replay.json"
        code = main(["replay", str(recording), "--json", str(path), *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err, json.loads(path.read_text()) if path.exists() else {}

    return replay


@pytest.fixture
def with_images(monkeypatch):
    """Have the images of the next recordings changed by `change(image, index)`."""
    plain = recorded.image

    def install(change):
        def image(index):
            made = plain(index)
            change(made, index)
            return made

        monkeypatch.setattr(recorded, "image", image)

    return install


def test_images_that_cannot_be_used_are_counted_and_said(replayed, with_images, tmp_path):
    with_images(lambda image, index: setattr(image, "encoding", "rgb8" if index % 3 else "yuv9"))
    code, out, _, document = replayed(write_rosbag2(tmp_path / "bag"))
    assert code == 0
    assert document["frames"] == 8
    assert document["frames_refused"] == 4
    assert "refused 4 images, the last: /cam/image_raw: unknown encoding 'yuv9'" in out


def test_a_recording_without_any_image_of_use_is_no_success(replayed, with_images, tmp_path):
    with_images(lambda image, index: setattr(image, "encoding", "yuv9"))
    code, _, err, _ = replayed(write_rosbag2(tmp_path / "bag"))
    assert code == 2
    assert err.startswith("vla-edge replay: none of 12 images can be used: /cam/image_raw: unknown encoding")


def test_messages_that_cannot_be_read_are_said_and_counted_once(replayed, tmp_path):
    payloads = image_payloads(12)
    for index in (0, 5, 11):
        payloads[index] = b"\0\1\0\0garbage"
    report = ("--report", str(tmp_path / "report.html"))
    code, out, _, document = replayed(write_mcap(tmp_path / "a.mcap", payloads), *report)
    assert code == 0
    assert document["frames"] == 9
    assert "left out 3 messages that cannot be read" in out


def test_a_log_whose_clock_jumped_by_years_is_refused_and_may_be_replayed_up_to_there(
    replayed, monkeypatch, tmp_path
):
    plain = recorded.log_ns
    monkeypatch.setattr(recorded, "log_ns", lambda index: plain(index) if index > 5 else index * PERIOD_NS)
    bag = write_rosbag2(tmp_path / "bag")
    code, _, err, _ = replayed(bag)
    assert code == 2
    assert "nothing was recorded from 0.050 s to 1700000000.062 s after the first image" in err
    assert replayed(bag, "--seconds", "1")[3]["frames"] == 6


def test_an_instruction_that_is_too_long_changes_nothing_as_in_the_node(replayed, tmp_path):
    texts = ("go", "x" * 2000, "stop")
    code, _, err, document = replayed(write_rosbag2(tmp_path / "bag", instructions=texts))
    assert code == 0
    assert "system prompt and instruction have 2054 tokens and at most 984 fit" in err
    events = [event["text"] for record in document["records"] for event in record["events"]]
    assert events == ["", "go", "stop"]


def test_names_and_texts_with_control_characters_come_out_as_text(replayed, tmp_path):
    bag = write_rosbag2(tmp_path / "bag", topics=("/\x1b[31mred/\u00e9\u2603",), instructions=("\x1b[2J\0",))
    code, out, err, document = replayed(bag, "--report", str(tmp_path / "report.html"))
    assert code == 0
    assert document["topic"] == "/\x1b[31mred/\u00e9\u2603"
    assert "\x1b[31mred" not in out + err
    code, _, err, _ = replayed(bag, "--topic", "/\x1b[31mgreen")
    assert code == 2
    assert err[:-1].isprintable()


@pytest.mark.parametrize("stamps", ["falling", "zero", "every_third_zero"])
def test_a_recorded_frame_is_found_again_whatever_its_stamp(with_images, tmp_path, stamps):
    stamp_ns = {
        "falling": lambda index: BASE_NS - index * PERIOD_NS,
        "zero": lambda index: 0,
        "every_third_zero": lambda index: BASE_NS + index * PERIOD_NS if index % 3 else 0,
    }[stamps]

    def stamp(image, index):
        image.header.stamp.sec, image.header.stamp.nanosec = divmod(stamp_ns(index), 10**9)

    with_images(stamp)
    laps = [
        {
            "origin_stamp_ns": BASE_NS,
            "base_ns": PLAYED_NS + lap * 12 * PERIOD_NS,
            "origin_log_ns": recorded.log_ns(0),
            "start_ns": STARTED_NS + lap * 12 * PERIOD_NS,
        }
        for lap in range(2)
    ]
    wanted = [(lap, index) for lap in range(2) for index in (0, 1, 2, 5, 6, 9, 11)]
    frames = []
    for number, (lap, index) in enumerate(wanted, 1):
        shift_ns = Lap(**laps[lap]).base_ns - BASE_NS
        played_ns = stamp_ns(index) and stamp_ns(index) + shift_ns
        receipt_ns = laps[lap]["start_ns"] + index * PERIOD_NS + 3_000_000
        frames.append(FrameMeta(number, played_ns, receipt_ns, receipt_ns))
    run = RecordedRun({"laps": laps}, frames, [], {})
    with open_bag(write_rosbag2(tmp_path / "bag")) as bag:
        found = [ordinal for _, _, ordinal in virtual_run._images_of(run, bag, TOPIC)]
    assert found == [index for _, index in wanted]
