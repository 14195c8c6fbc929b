"""From actions to the tokens that a model should decode: the inverse of `actions.tokens.detokenise`."""

import numpy as np

from vla_edge_ros.actions.statistics import Statistics
from vla_edge_ros.actions.tokens import N_BINS

_EDGES = np.linspace(-1.0, 1.0, N_BINS)


def normalise(actions: np.ndarray, statistics: Statistics) -> np.ndarray:
    """(..., A) in [-1, 1], the inverse of `Statistics.unnormalise`; what lies beyond is clipped."""
    span = np.where(statistics.high > statistics.low, statistics.high - statistics.low, 1.0)
    scaled = 2 * (actions - statistics.low) / span - 1
    return np.clip(np.where(statistics.mask, scaled, actions), -1.0, 1.0)


def action_rows(actions: np.ndarray, statistics: Statistics) -> np.ndarray:
    """(..., A) int64 from 0 to 255: the places of the actions' tokens among the last 256 of a vocabulary.

    OpenVLA's `digitize` counts the edges that are not above a value, from 1, and takes the count from the
    vocabulary's size.
    """
    return N_BINS - np.digitize(normalise(actions, statistics), _EDGES)
