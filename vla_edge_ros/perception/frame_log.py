"""Something small of each of the newest frames, by index: the camera's thread writes, others read."""

from collections.abc import Callable

import numpy as np

LENGTH = 256
"""Frames back: at 60 Hz more than four seconds, for a pass or for who looks once a second."""


class FrameLog:
    """`make(frame)`, an array of `shape` and `dtype`, of each of the newest `LENGTH` frames.

    missed: asked for and no longer there, or not yet; None was given.
    """

    def __init__(self, make: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...], dtype: type):
        self.shape = shape
        self.missed = 0
        self._make = make
        self._indices = np.zeros(LENGTH, np.int64)
        self._values = np.zeros((LENGTH, *shape), dtype)

    def put(self, index: int, frame: np.ndarray) -> None:
        """Keep what is made of frame `index` (from 1), which is not published yet."""
        row = index % LENGTH
        self._indices[row] = 0
        self._values[row] = self._make(frame)
        self._indices[row] = index

    def of(self, index: int) -> np.ndarray | None:
        """A copy; None where frame `index` was too long ago."""
        row = index % LENGTH
        value = self._values[row].copy()
        if self._indices[row] != index:
            self.missed += 1
            return None
        return value


def thumbnail(frame: np.ndarray) -> np.ndarray:
    """(32, 64, 3) uint8: every other pixel of `frame` (64, 128, 3), a view."""
    return frame[::2, ::2]


THUMBNAIL_SHAPE = (32, 64, 3)
