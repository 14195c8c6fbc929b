"""Has the picture changed? By the mean of each cell of 8x8 pixels, which a sensor's noise hardly moves."""

import cv2
import numpy as np

CELLS_SHAPE = (8, 16, 3)


def picture_cells(frame: np.ndarray) -> np.ndarray:
    """(8, 16, 3) float32: the mean of each cell of `frame` (64, 128, 3) uint8 RGB, exact on every machine."""
    rows, columns, _ = CELLS_SHAPE
    return cv2.resize(frame.astype(np.float32), (columns, rows), interpolation=cv2.INTER_AREA)


def is_unchanged(cells: np.ndarray, before: np.ndarray, levels: float) -> bool:
    """Whether no cell lies further than `levels` of 255 from what it was, in any colour."""
    return float(np.abs(cells - before).max()) <= levels
