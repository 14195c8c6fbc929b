"""Messages of recordings, without ROS: the types that are known by name here, and their reading."""

from functools import cache

import numpy as np
from rosbags.typesys import Stores, get_typestore

from vla_edge_ros.evaluation.recording import compression_name

IMAGE = "sensor_msgs/msg/Image"
COMPRESSED_IMAGE = "sensor_msgs/msg/CompressedImage"
STRING = "std_msgs/msg/String"
JOINT_STATE = "sensor_msgs/msg/JointState"
JOINT_TRAJECTORY = "trajectory_msgs/msg/JointTrajectory"
FLOAT_ARRAY = "std_msgs/msg/Float64MultiArray"

NS_PER_S = 1_000_000_000


@cache
def ros2_types():
    """The type store of ROS 2; these types are the same in every distribution."""
    return get_typestore(Stores.ROS2_HUMBLE)


@cache
def _ros1_types():
    return get_typestore(Stores.ROS1_NOETIC)


def deserialise(payload: object, encoding: str, type_name: str) -> object:
    """A message with the fields of its ROS type; `data` of an image is a uint8 array.

    Raises ValueError where the payload is not such a message.
    """
    if encoding == "decoded":
        return payload
    if not isinstance(payload, bytes):
        raise ValueError(f"not a {type_name}: the payload is no bytes but {type(payload).__name__}")
    if encoding == "cdr" and (compression := compression_name(payload)):
        raise ValueError(f"a {type_name} compressed with {compression}, which is not read here")
    try:
        if encoding == "cdr":
            return ros2_types().deserialize_cdr(payload, type_name)
        if encoding == "ros1":
            return _ros1_types().deserialize_ros1(payload, type_name)
    # The bytes are not ours: the generated code raises SerdeError, but IndexError, UnicodeError, ... as well.
    except Exception as error:
        raise ValueError(f"not a {type_name}: {error}") from None
    raise ValueError(f"a {type_name} serialised as {encoding!r}; wanted cdr or ros1")


def image_message(pixels: np.ndarray, encoding: str, stamp_ns: int, frame_id: str) -> object:
    """An Image from (height, width, channels) uint8 `pixels`."""
    types = ros2_types().types
    height, width, channels = pixels.shape
    return types[IMAGE](
        header=header(stamp_ns, frame_id),
        height=height,
        width=width,
        encoding=encoding,
        is_bigendian=0,
        step=width * channels,
        data=np.ascontiguousarray(pixels).reshape(-1),
    )


def header(stamp_ns: int, frame_id: str) -> object:
    types = ros2_types().types
    sec, nanosec = divmod(stamp_ns, NS_PER_S)
    stamp = types["builtin_interfaces/msg/Time"](sec=sec, nanosec=nanosec)
    return types["std_msgs/msg/Header"](stamp=stamp, frame_id=frame_id)
