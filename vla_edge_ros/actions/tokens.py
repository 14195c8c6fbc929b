"""From action tokens to [-1, 1], by OpenVLA's convention (`prismatic/vla/action_tokenizer.py`)."""

import numpy as np

N_BINS = 256
"""Rows at the end of a vocabulary that are actions."""

_EDGES = np.linspace(-1.0, 1.0, N_BINS)
_CENTRES = (_EDGES[:-1] + _EDGES[1:]) / 2
# Index 1 is the first of 255 bins; index 256, an action of exactly 1 when encoded, shares the last one.
_VALUE_BY_INDEX = np.concatenate([[np.nan], _CENTRES, _CENTRES[-1:]])


def detokenise(tokens: np.ndarray, vocabulary_size: int) -> np.ndarray:
    """Bin centres of action tokens; float64, shaped like `tokens`.

    Token id = vocabulary size - index with index in 1..256, so that the last row is -0.99608 and both the
    255th and the 256th from the end are 0.99608. Raises ValueError for an id outside the last 256 rows.
    """
    if tokens.dtype.kind not in "iu":
        raise ValueError(f"action tokens are {tokens.dtype}, wanted integers")
    index = vocabulary_size - tokens.astype(np.int64)
    outside = (index < 1) | (index > N_BINS)
    if outside.any():
        raise ValueError(
            f"token {tokens[outside].flat[0]} is no action: wanted {vocabulary_size - N_BINS} to "
            f"{vocabulary_size - 1}, the last {N_BINS} rows of a vocabulary of {vocabulary_size}"
        )
    return _VALUE_BY_INDEX[index]
