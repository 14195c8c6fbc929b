import numpy as np

from vla_edge_ros.memory.album import Album
from vla_edge_ros.memory.frame_memory import RetainedFrame
from vla_edge_ros.perception.frame import FrameMeta
from vla_edge_ros.perception.frame_log import THUMBNAIL_SHAPE, FrameLog, thumbnail


def retained(*indices) -> list[RetainedFrame]:
    return [RetainedFrame(FrameMeta(index, 0, 0, 0), 0) for index in indices]


def log_of(n: int) -> FrameLog:
    """Frame i is of the grey level 2 i."""
    log = FrameLog(thumbnail, THUMBNAIL_SHAPE, np.uint8)
    for index in range(1, n + 1):
        log.put(index, np.full((64, 128, 3), 2 * index, np.uint8))
    return log


def levels(mosaic: np.ndarray) -> list[int]:
    """The grey level of each cell, row by row."""
    cells = mosaic.reshape(-1, 32, 16, 64, 3)
    assert (cells == cells[:, :1, :, :1, :1]).all(), "a cell has one level throughout"
    return cells[:, 0, :, 0, 0].ravel().tolist()


def test_the_mosaic_has_the_frames_oldest_first_sixteen_a_row():
    album = Album(20, log_of(20))
    album.update(retained(*range(1, 19)))
    mosaic = album.mosaic()
    assert mosaic.shape == (64, 1024, 3)
    assert levels(mosaic) == [2 * index for index in range(1, 19)] + [24] * 14


def test_a_forgotten_frame_makes_room_for_another_and_order_stays():
    album = Album(3, log_of(9))
    album.update(retained(1, 2, 3))
    album.update(retained(1, 3, 4))
    album.update(retained(3, 4, 9))
    assert levels(album.mosaic())[:4] == [6, 8, 18, 24]


def test_pictures_outlive_the_log():
    log = log_of(1)
    album = Album(2, log)
    album.update(retained(1))
    for index in range(2, 400):
        log.put(index, np.zeros((64, 128, 3), np.uint8))
    album.update(retained(1))
    assert levels(album.mosaic())[0] == 2


def test_a_frame_that_the_log_has_lost_is_grey():
    album = Album(2, log_of(3))
    album.update(retained(2, 900))
    assert levels(album.mosaic())[:2] == [4, 96]


def test_an_empty_memory_is_one_dark_row():
    assert levels(Album(2, log_of(1)).mosaic()) == [24] * 16
