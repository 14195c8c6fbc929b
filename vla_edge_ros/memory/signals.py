"""What an engine can tell of a pass beside its actions, for the policies that go by it."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class PassSignals:
    """Attention is a share of what a query gives out, the mean over layers and heads, summed over queries.

    frame_attention: (n,) float32, what the 32 queries of the pass's own frame gave to each of the n frames
        that were retained before it, oldest first.
    action_attention: (n,) float32, likewise by the queries of the A action tokens.
    value_norm: mean length of the new frame's values, over layers and tokens.
    """

    frame_attention: np.ndarray
    action_attention: np.ndarray
    value_norm: float
