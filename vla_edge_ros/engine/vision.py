"""From a frame's pixels to its 32 patch embeddings."""

import numpy as np

from vla_edge_ros.engine.interface import FRAME_TOKENS

FRAME_HEIGHT = 64
FRAME_WIDTH = 128
PATCH = 16
PATCH_SIZE = PATCH * PATCH * 3
_ROWS, _COLUMNS = FRAME_HEIGHT // PATCH, FRAME_WIDTH // PATCH

VISION_WEIGHT = "vision.patch_embedding.weight"
VISION_BIAS = "vision.patch_embedding.bias"


def vision_shapes(hidden_size: int) -> dict[str, tuple[int, ...]]:
    """The patch embedding's tensors: weight (hidden, 768) and bias (hidden,)."""
    return {VISION_WEIGHT: (hidden_size, PATCH_SIZE), VISION_BIAS: (hidden_size,)}


def cut_patches(frame: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Cut `frame` (64, 128, 3) uint8 RGB into 16x16 patches, row-major, into `out` (32, 768) float32.

    A patch's values are its rows of pixels, channels last, normalised as x / 127.5 - 1.
    """
    grid = frame.reshape(_ROWS, PATCH, _COLUMNS, PATCH, 3)
    out.reshape(_ROWS, _COLUMNS, PATCH, PATCH, 3)[:] = grid.transpose(0, 2, 1, 3, 4)
    out /= np.float32(127.5)
    out -= np.float32(1)
    return out


class PatchEmbedding:
    """weight (hidden, 768) and bias (hidden,) float32, and the workspace to apply them to a frame."""

    def __init__(self, weight: np.ndarray, bias: np.ndarray):
        self._weight = weight
        self._bias = bias
        self._patches = np.zeros((FRAME_TOKENS, PATCH_SIZE), np.float32)
        self._states = np.zeros((FRAME_TOKENS, len(bias)), np.float32)

    def embed(self, frame: np.ndarray) -> np.ndarray:
        """Patch embeddings (32, hidden) float32 of `frame` (64, 128, 3) uint8; a view of the workspace."""
        np.matmul(cut_patches(frame, self._patches), self._weight.T, out=self._states)
        self._states += self._bias
        return self._states
