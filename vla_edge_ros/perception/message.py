"""What the decoders take from a message, whichever library made it (rclpy, rosbags, a test)."""

import numpy as np

MAX_PIXELS = 7680 * 4320
"""8K video. A header that asks for more is taken for damage, before anything is allocated."""


def byte_view(data) -> np.ndarray:
    """`data` (array.array, bytes, a NumPy array, a list, ...) as (n,) uint8; a view wherever possible.

    Raises ValueError, TypeError or OverflowError for what is not a sequence of bytes.
    """
    if isinstance(data, (list, tuple)):
        return np.array(data, np.uint8)
    return np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)


def header_stamp_ns(message) -> int:
    """`message.header.stamp` in nanoseconds, as it was sent."""
    stamp = message.header.stamp
    return stamp.sec * 1_000_000_000 + stamp.nanosec
