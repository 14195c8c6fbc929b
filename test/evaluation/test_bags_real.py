"""The real recordings beside the checkout read as their README describes them."""

from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import pytest

from vla_edge_ros.evaluation.bags import BagRefused, open_bag

EXPECTED = {
    "bridge_widowx": ("/image_0", 250, (64, 64)),
    "wrist_so101_jpeg": ("/wrist/image_raw/compressed", 600, (180, 320)),
    "desk_cup_jpeg": ("/camera/image_raw/compressed", 217, (480, 640)),
    "street_raw": ("/camera/image_raw", 125, (102, 240)),
    "street_zstd": ("/front/image", 100, (68, 160)),
    "aruco_marker_ros1.bag": ("/raspicam_node/image/compressed", 1, (720, 1280)),
    "soccer_sim": ("/camera/image_raw", 2, (480, 640)),
}


@pytest.fixture
def recordings(shared: Path) -> Path:
    return shared / "recordings"


@pytest.mark.parametrize("name", EXPECTED)
def test_a_real_recording_reads_whole(recordings, name):
    topic_name, count, size = EXPECTED[name]
    with open_bag(recordings / name) as bag:
        topic = bag.pick_image_topic()
        assert (topic.name, topic.count) == (topic_name, count)
        images = list(bag.images(topic.name))
        assert bag.truncated_after is None
        assert bag.unreadable_messages == 0
    assert len(images) == count
    assert all(a.log_ns <= b.log_ns for a, b in pairwise(images))
    for message in (images[0].message, images[-1].message):
        if topic.is_compressed:
            assert cv2.imdecode(message.data, cv2.IMREAD_COLOR).shape[:2] == size
        else:
            assert (message.height, message.width) == size
            assert message.data.size == message.height * message.step


def test_no_recording_beside_the_checkout_is_forgotten_here(recordings):
    assert {path.name for path in recordings.iterdir()} - {"README.md"} == set(EXPECTED)


def test_stamps_of_a_foreign_clock_stay_foreign(recordings):
    with open_bag(recordings / "aruco_marker_ros1.bag") as bag:
        (image,) = bag.images(bag.pick_image_topic().name)
    behind_s = (image.log_ns - image.stamp_ns) / 1e9
    assert 3 * 3600 + 41 * 60 <= behind_s < 3 * 3600 + 42 * 60


def test_simulator_time_stays_simulator_time(recordings):
    with open_bag(recordings / "soccer_sim" / "amber_soccer_goal_12.mcap") as bag:
        stamps = [image.stamp_ns for image in bag.images("/camera/image_raw")]
    assert all(8e9 < stamp_ns < 9e9 for stamp_ns in stamps)


def test_instructions_of_the_real_arm(recordings):
    with open_bag(recordings / "bridge_widowx") as bag:
        texts = [said.text for said in bag.strings(bag.instruction_topic())]
    assert len(texts) == 25
    assert texts[0] == "put cup from counter or drying rack into sink"


def test_half_of_a_real_recording_gives_about_half_of_its_images(recordings, tmp_path):
    content = (recordings / "wrist_so101_jpeg" / "wrist_so101_jpeg.mcap").read_bytes()
    half = tmp_path / "half.mcap"
    half.write_bytes(content[: len(content) // 2])
    with open_bag(half) as bag:
        images = list(bag.images(bag.pick_image_topic().name))
        assert bag.truncated_after == len(images)
    assert 250 < len(images) < 350
    assert all(cv2.imdecode(np.asarray(image.message.data), cv2.IMREAD_COLOR) is not None for image in images)


def test_half_of_a_real_database_is_refused(recordings, tmp_path):
    content = (recordings / "street_raw" / "street_raw.db3").read_bytes()
    half = tmp_path / "half.db3"
    half.write_bytes(content[: len(content) // 2])
    with pytest.raises(BagRefused, match="cut short"):
        open_bag(half)
