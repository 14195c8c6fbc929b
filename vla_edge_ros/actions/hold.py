"""What a dimension is sent on a tick that has no step for it."""

DECAY_NS = 100_000_000
"""A held velocity or end-effector delta has come to zero this long after its last step."""


def rest_ns(effect_ns: int, expiry_ns: int) -> int:
    """When a motion whose last step was sent at `effect_ns` must be zero: none outlives its time to live."""
    return min(effect_ns + DECAY_NS, expiry_ns)


def held(last: float, is_motion: bool, last_ns: int, zero_ns: int, effect_ns: int) -> float:
    """The value of one dimension to send at `effect_ns` after `last` was sent at the earlier `last_ns`.

    Positions repeat and a gripper stays latched. Where `is_motion`, the value goes to zero at `zero_ns` in a
    straight line from the last step, however many ticks lie between; it never changes sign.
    """
    if not is_motion:
        return last
    return last * ((zero_ns - effect_ns) / (zero_ns - last_ns)) if effect_ns < zero_ns else last * 0.0
