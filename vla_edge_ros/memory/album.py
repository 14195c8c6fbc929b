"""A thumbnail of every retained frame, for people to look at."""

from collections.abc import Sequence

import numpy as np

from vla_edge_ros.memory.frame_memory import RetainedFrame
from vla_edge_ros.perception.frame_log import THUMBNAIL_SHAPE, FrameLog

COLUMNS = 16
_BACKGROUND, _MISSING = 24, 96


class Album:
    """Pictures of at most `capacity` frames, kept in step with memory by `update`, once a second or so.

    Allocates all it needs; the mosaic is built from scratch by who wants it.
    """

    def __init__(self, capacity: int, thumbnails: FrameLog):
        self._thumbnails = thumbnails
        self._pictures = np.zeros((capacity, *THUMBNAIL_SHAPE), np.uint8)
        self._rows: dict[int, int] = {}
        self._free_rows = list(range(capacity))

    def update(self, frames: Sequence[RetainedFrame]) -> None:
        """Take up what memory holds now; a picture that the log has no more is grey."""
        held = {frame.meta.index for frame in frames}
        for index in [index for index in self._rows if index not in held]:
            self._free_rows.append(self._rows.pop(index))
        for frame in frames:
            if frame.meta.index not in self._rows:
                row = self._rows[frame.meta.index] = self._free_rows.pop()
                picture = self._thumbnails.of(frame.meta.index)
                self._pictures[row] = _MISSING if picture is None else picture

    def mosaic(self) -> np.ndarray:
        """(rows x 32, 1024, 3) uint8 RGB: the frames in order, oldest first, 16 a row; at least one row."""
        height, width, _ = THUMBNAIL_SHAPE
        n_rows = max(1, -(-len(self._rows) // COLUMNS))
        canvas = np.full((n_rows, height, COLUMNS, width, 3), _BACKGROUND, np.uint8)
        for place, index in enumerate(sorted(self._rows)):
            canvas[place // COLUMNS, :, place % COLUMNS] = self._pictures[self._rows[index]]
        return canvas.reshape(n_rows * height, COLUMNS * width, 3)
