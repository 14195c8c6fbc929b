"""Pictures as ROS messages."""

import array

import numpy as np
from sensor_msgs.msg import Image


def rgb8_image(rgb: np.ndarray, stamp_ns: int = 0) -> Image:
    """rgb: (height, width, 3) uint8."""
    height, width, _ = rgb.shape
    # An array.array is taken as it is; a list or bytes is checked value by value.
    data = array.array("B", rgb.tobytes())
    message = Image(height=height, width=width, encoding="rgb8", step=3 * width, data=data)
    message.header.stamp.sec, message.header.stamp.nanosec = divmod(stamp_ns, 1_000_000_000)
    return message
