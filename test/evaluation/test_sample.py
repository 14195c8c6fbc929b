"""The bundled sample recording is what its generator writes, and shows an arm at work."""

import math
from itertools import pairwise

import cv2
import numpy as np
import pytest

from vla_edge_ros.evaluation import sample
from vla_edge_ros.evaluation.bags import open_bag
from vla_edge_ros.evaluation.sample_motion import (
    DURATION_S,
    FOREARM,
    GRASPS,
    RATE_HZ,
    RESTING,
    SHOULDER,
    UPPER_LINK,
    scene_at,
)


def decoded(message: object) -> np.ndarray:
    return cv2.imdecode(message.data, cv2.IMREAD_COLOR)[..., ::-1].astype(int)


@pytest.fixture(scope="module")
def bundled() -> list:
    with open_bag(sample.bundled_sample()) as bag:
        return list(bag.images(bag.pick_image_topic().name))


def test_the_bundled_recording_is_long_and_small_enough():
    folder = sample.bundled_sample()
    assert sum(file.stat().st_size for file in folder.iterdir()) < 4_000_000
    assert DURATION_S >= 14.0 and RATE_HZ == 60
    with open_bag(folder) as bag:
        topic = bag.pick_image_topic()
        assert (topic.name, topic.count, topic.is_compressed) == (sample.IMAGE_TOPIC, sample.N_FRAMES, True)
        (said,) = bag.strings(bag.instruction_topic())
        (first, *_) = bag.images(topic.name)
    assert said.text == sample.INSTRUCTION
    assert said.log_ns < first.log_ns


def test_the_bundled_recording_is_what_the_generator_draws(bundled):
    stamps_ns, logs_ns = sample.times()
    assert [image.stamp_ns for image in bundled] == stamps_ns.tolist()
    assert [image.log_ns for image in bundled] == logs_ns.tolist()
    for index in (0, 190, 420, 600, sample.N_FRAMES - 1):
        drawn = sample.frame(index).astype(int)
        # JPEG at this quality is a few grey levels off; another moment of the motion is further away.
        assert np.abs(decoded(bundled[index].message) - drawn).mean() < 4.0


def test_the_generator_writes_the_same_recording_again(tmp_path, monkeypatch, bundled):
    monkeypatch.setattr(sample, "N_FRAMES", 12)
    assert sample.main([str(tmp_path / "again")]) == 0
    with open_bag(tmp_path / "again") as bag:
        again = list(bag.images(sample.IMAGE_TOPIC))
    assert [image.stamp_ns for image in again] == sample.times()[0].tolist()
    assert len(again) == 12
    for new, old in zip(again, bundled, strict=False):
        assert np.abs(decoded(new.message) - decoded(old.message)).mean() < 1.0


def test_a_folder_that_is_there_is_not_overwritten(tmp_path, capsys):
    assert sample.main([str(tmp_path)]) == 2
    assert "already there" in capsys.readouterr().err


def test_frames_depend_on_the_seed_and_on_nothing_else():
    assert np.array_equal(sample.frame(100), sample.frame(100))
    assert not np.array_equal(sample.frame(100), sample.frame(100, seed=8))
    assert not np.array_equal(sample.times(1)[0], sample.times(2)[0])


def test_times_are_those_of_a_camera_with_jitter_behind_a_network(bundled):
    stamps = np.array([image.stamp_ns for image in bundled])
    delays = np.array([image.log_ns for image in bundled]) - stamps
    intervals = np.diff(stamps)
    assert np.all(intervals > 0)
    assert abs(intervals.mean() - 1e9 / 60) < 10_000
    # the difference of two stamps has sqrt(2) times their jitter of 0.3 ms
    assert abs(intervals.std() / math.sqrt(2) - 300_000) < 30_000
    assert abs(delays.mean() - 8e6) < 100_000


def test_no_two_frames_are_equal_even_where_nothing_moves(bundled):
    payloads = [image.message.data.tobytes() for image in bundled]
    assert all(a != b for a, b in pairwise(payloads))


def test_there_are_still_and_busy_spells(bundled):
    def change(time_s: float) -> float:
        index = round(time_s * RATE_HZ)
        a, b = (
            cv2.GaussianBlur(decoded(bundled[i].message).astype(np.float32), (0, 0), 2)
            for i in (index, index + 20)
        )
        return float(np.abs(a - b).mean())

    still = [change(time_s) for time_s in (0.1, 7.1)]
    busy = [change(time_s) for time_s in (2.6, 4.0, 6.2, 9.8, 12.6)]
    assert max(still) * 3 < min(busy)


def test_links_keep_their_length_and_what_is_grasped_ends_in_the_tray():
    for time_s in np.arange(0.0, DURATION_S, 0.05):
        scene = scene_at(float(time_s))
        assert math.dist(SHOULDER, scene.elbow) == pytest.approx(UPPER_LINK)
        assert math.dist(scene.elbow, scene.wrist) == pytest.approx(FOREARM)
    assert scene_at(0.0).objects == RESTING
    end = scene_at(DURATION_S).objects
    assert all(215 < end[grasp.name][0] < 290 for grasp in GRASPS if grasp.to_s < DURATION_S)


def test_nothing_jumps_between_two_frames():
    # the longest reach, 180 pixels in 0.7 s, peaks at 1.875 times its mean speed: 8.1 pixels a frame
    for index in range(1, sample.N_FRAMES):
        before, after = scene_at((index - 1) / RATE_HZ), scene_at(index / RATE_HZ)
        assert math.dist(before.tip, after.tip) < 8.2
        assert all(math.dist(before.objects[name], after.objects[name]) < 8.2 for name in RESTING)
