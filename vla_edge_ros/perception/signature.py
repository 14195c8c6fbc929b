"""What a frame looks like, patch by patch: an embedding that sees motion and does not see exposure."""

import cv2
import numpy as np

ROWS, COLUMNS = 4, 8
CELLS = 2
"""Cells along each side of a patch: of 8x8 pixels at the model's 128x64, coarse enough for shake."""

PATCH_VALUES = CELLS * CELLS + 3
SIGNATURE_SIZE = ROWS * COLUMNS * PATCH_VALUES

_DARK = 8.0
"""Grey levels added before the logarithm, or noise in the dark would count as much as things in the light."""

_FLAT = 1.0
"""A patch whose values (natural logarithms) are of this length counts half as much as a patch of strong
contrast; a flat one counts for nothing, so that its noise does not."""


def patch_signature(frame: np.ndarray) -> np.ndarray:
    """(224,) float32: 7 values for each of the 32 patches of `frame` (64, 128, 3) uint8 RGB, row-major.

    Of each patch: how bright its 2x2 cells are beside the patch, how bright it is beside the frame, and its
    two ratios of colour, all in natural logarithms of cell means, in which an exposure is a constant that
    drops out; divided by sqrt(1 + their squared length). The cosine of two signatures is then about the share
    of the picture's content that is still in its place.
    """
    size = (COLUMNS * CELLS, ROWS * CELLS)
    # In float32 the sums of whole grey levels are exact in any order: the same cells on every machine.
    cells = cv2.resize(frame.astype(np.float32), size, interpolation=cv2.INTER_AREA)
    logs = np.log(cells + np.float32(_DARK))
    brightness = logs.mean(axis=2)
    values = np.empty((ROWS, COLUMNS, PATCH_VALUES), np.float32)
    by_patch = brightness.reshape(ROWS, CELLS, COLUMNS, CELLS).transpose(0, 2, 1, 3)
    inside = values[..., : CELLS * CELLS]
    inside[:] = by_patch.reshape(ROWS, COLUMNS, CELLS * CELLS)
    patch = inside.mean(axis=2)
    inside -= patch[..., None]
    values[..., -3] = patch - patch.mean()
    for place, channel in ((-2, 0), (-1, 2)):
        ratios = logs[..., channel] - brightness
        values[..., place] = ratios.reshape(ROWS, CELLS, COLUMNS, CELLS).mean(axis=(1, 3))
    values /= np.sqrt(np.square(values).sum(axis=2, keepdims=True) + np.float32(_FLAT * _FLAT))
    return values.reshape(SIGNATURE_SIZE)
