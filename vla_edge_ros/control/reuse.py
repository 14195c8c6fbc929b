"""The action of the last pass, for a frame that shows the same picture.

Decoding once more from the block of the same frame, over the same memory, gives the same tokens bit for bit:
argmax of the same numbers. So nothing is computed, and the step costs no time.
"""

import numpy as np

from vla_edge_ros.perception.frame_log import FrameLog
from vla_edge_ros.perception.picture import is_unchanged


class Reuse:
    """
    pictures: `picture_cells` of the newest frames. levels: how far a cell may be from what it was.
    most_ticks: how often in a row an action is used again, without a pass between.
    """

    def __init__(self, pictures: FrameLog, levels: float, most_ticks: int) -> None:
        self._pictures = pictures
        self._levels = levels
        self._most_ticks = most_ticks
        self.forget()

    def forget(self) -> None:
        """What was decoded belongs to another prompt, memory or engine."""
        self._tokens: np.ndarray | None = None
        self._cells: np.ndarray | None = None
        self._n_taken = 0

    def decoded(self, frame_index: int, tokens: np.ndarray) -> None:
        """A pass over frame `frame_index` gave `tokens` (K, A)."""
        self._tokens, self._cells, self._n_taken = tokens, self._pictures.of(frame_index), 0

    def holds_for(self, frame_index: int) -> bool:
        """Whether frame `frame_index` shows the picture of the last pass, and another use of it is allowed.

        Compared with what the pass saw and not with the frame before: what creeps is seen.
        """
        if self._cells is None or self._n_taken >= self._most_ticks:
            return False
        cells = self._pictures.of(frame_index)
        return cells is not None and is_unchanged(cells, self._cells, self._levels)

    def take(self) -> np.ndarray:
        """The tokens (K, A), counted as used once more."""
        self._n_taken += 1
        return self._tokens
