import numpy as np
import pytest

from vla_edge_ros.perception.frame_log import THUMBNAIL_SHAPE, FrameLog, thumbnail


def filled(n: int) -> FrameLog:
    log = FrameLog(lambda frame: frame[:2], (2,), np.int64)
    for index in range(1, n + 1):
        log.put(index, np.array([index, -index, 0]))
    return log


@pytest.mark.parametrize("index", [45, 299, 300])
def test_the_log_has_each_of_its_newest_frames(index):
    log = filled(300)
    assert log.of(index).tolist() == [index, -index]
    assert log.missed == 0


@pytest.mark.parametrize("index", [44, 301])
def test_a_frame_that_the_log_does_not_hold_is_counted(index):
    log = filled(300)
    assert log.of(index) is None
    assert log.missed == 1


def test_what_was_given_stays_when_the_log_goes_on():
    log = filled(1)
    given = log.of(1)
    log.put(1 + 256, np.array([7, 7, 7]))
    assert given.tolist() == [1, -1]


def test_a_frame_that_is_overwritten_while_it_is_read_is_not_given(monkeypatch):
    log = filled(3)
    values = log._values

    class Overtaken:
        def __getitem__(self, row):
            log._indices[row] = 0
            return values[row]

    monkeypatch.setattr(log, "_values", Overtaken())
    assert log.of(3) is None


def test_a_thumbnail_is_every_other_pixel():
    frame = np.random.default_rng(0).integers(0, 256, (64, 128, 3)).astype(np.uint8)
    small = thumbnail(frame)
    assert small.shape == THUMBNAIL_SHAPE
    np.testing.assert_array_equal(small[3, 5], frame[6, 10])
