"""From a frame's pixels to its 32 patch embeddings."""

import numpy as np

FRAME_HEIGHT = 64
FRAME_WIDTH = 128
PATCH = 16
PATCH_SIZE = PATCH * PATCH * 3


def patches(frame: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Cut `frame` (64, 128, 3) uint8 RGB into 16x16 patches, row-major, into `out` (32, 768) float32.

    A patch's values are its rows of pixels, channels last, normalised as x / 127.5 - 1.
    """
    grid = frame.reshape(FRAME_HEIGHT // PATCH, PATCH, FRAME_WIDTH // PATCH, PATCH, 3)
    out.reshape(FRAME_HEIGHT // PATCH, FRAME_WIDTH // PATCH, PATCH, PATCH, 3)[:] = grid.transpose(
        0, 2, 1, 3, 4
    )
    out *= np.float32(1 / 127.5)
    out -= np.float32(1)
    return out
