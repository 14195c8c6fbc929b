"""cv_bridge where it imports cleanly: for the conversions that are exact by definition.

Channel order, grey to colour and 16 to 8 bit have one right answer, so which library gives it cannot be seen
in the result. Bayer and YUV interpolate and round as the OpenCV build behind them does, so those always go
through the one OpenCV that this package imports. Padded rows and big-endian messages do too: releases of
cv_bridge's Python half differ in how they read them.
"""

from functools import cache
from types import SimpleNamespace

import numpy as np

EXACT_ENCODINGS = frozenset({"bgr8", "rgba8", "bgra8", "mono8", "mono16"})


def rgb_by_cv_bridge(message) -> np.ndarray | None:
    """(height, width, 3) uint8 RGB of a checked Image with packed rows in native order, or None."""
    bridge = _load()
    if bridge is None or message.is_bigendian or message.encoding not in EXACT_ENCODINGS:
        return None
    return bridge.imgmsg_to_cv2(message, desired_encoding="rgb8")


@cache
def _load():
    """A CvBridge that has shown that it works, or None.

    A release built for another NumPy fails at import, and PyPI's package (ROS 1) imports and fails at use.
    """
    pixel = SimpleNamespace(
        height=1, width=1, encoding="bgr8", is_bigendian=0, step=3, data=bytes((1, 2, 3)), header=None
    )
    try:
        from cv_bridge import CvBridge

        bridge = CvBridge()
        works = np.array_equal(bridge.imgmsg_to_cv2(pixel, desired_encoding="rgb8"), [[[3, 2, 1]]])
    except Exception:
        return None
    return bridge if works else None
