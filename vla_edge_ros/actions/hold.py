"""What a dimension is sent on a tick that has no step for it."""

import numpy as np

DECAY_NS = 100_000_000
"""A held velocity or end-effector delta has come to zero this long after its last step."""


def rest_ns(effect_ns: int, expiry_ns: int) -> int:
    """When a motion whose last step was sent at `effect_ns` must be zero: none outlives its time to live."""
    return min(effect_ns + DECAY_NS, expiry_ns)


def held(last: np.ndarray, is_motion: np.ndarray, last_ns: int, zero_ns: int, effect_ns: int) -> np.ndarray:
    """The values to send at `effect_ns` after `last` (A,) was sent at the earlier `last_ns`.

    Positions repeat and a gripper stays latched. Where `is_motion`, the value goes to zero at `zero_ns` in a
    straight line from the last step, however many ticks lie between; it never changes sign.
    """
    left = (zero_ns - effect_ns) / (zero_ns - last_ns) if effect_ns < zero_ns else 0.0
    return np.where(is_motion, last * left, last)
