"""A camera message of either type to RGB."""

import numpy as np

from vla_edge_ros.perception.compressed_image import decode_compressed
from vla_edge_ros.perception.raw_image import decode_image


def decode(message, topic: str, out: np.ndarray | None = None) -> np.ndarray:
    """(height, width, 3) uint8 RGB of a sensor_msgs/Image or CompressedImage, told apart by their fields.

    `out` and errors as for `decode_image` and `decode_compressed`.
    """
    return (decode_compressed if hasattr(message, "format") else decode_image)(message, topic, out)
