"""Recordings of a small arm: two joints and a gripper, with whatever a test puts into them."""

from pathlib import Path

import numpy as np
from recorded import image
from rosbags import rosbag2
from rosbags.rosbag2 import StoragePlugin

from vla_edge_ros.evaluation.message_types import (
    FLOAT_ARRAY,
    IMAGE,
    JOINT_STATE,
    JOINT_TRAJECTORY,
    STRING,
    header,
    ros2_types,
)

START_NS = 1_700_000_000_000_000_000
PERIOD_NS = 100_000_000
IMAGES, INSTRUCTION, JOINTS = "/cam/image_raw", "/instruction", "/joint_states"

POLICY = """\
name: small_arm
action_period_ms: 100
dimensions:
  - {name: lift, kind: KIND, min: -2, max: 2, max_velocity: 1}
  - {name: pan, kind: KIND, min: -2, max: 2, max_velocity: 1}
  - {name: hand, kind: gripper, min: 0, max: 1, max_velocity: 4}
groups:
  - {name: arm, interface: command, topic: "~/command", joints: [lift, pan]}
  - {name: hand, interface: command, topic: "~/hand", joints: [hand]}
"""

Message = tuple[str, str, int, object]
"""Topic, type, log time, message."""

_TYPES = ros2_types().types


def write_policy(folder: Path, kind: str = "joint_delta") -> Path:
    path = folder / f"{kind}.yaml"
    path.write_text(POLICY.replace("KIND", kind))
    return path


def joint_state(at_ns: int, names: list[str], positions: list[float], stamp_ns: int | None = None) -> Message:
    nothing = np.empty(0)
    stamp = header(at_ns if stamp_ns is None else stamp_ns, "")
    message = _TYPES[JOINT_STATE](
        header=stamp, name=names, position=np.array(positions), velocity=nothing, effort=nothing
    )
    return JOINTS, JOINT_STATE, at_ns, message


def trajectory(at_ns: int, joints: list[str], points: list[tuple[int, list[float]]], topic: str) -> Message:
    """points: nanoseconds from the start, positions."""
    nothing = np.empty(0)
    made = [
        _TYPES["trajectory_msgs/msg/JointTrajectoryPoint"](
            positions=np.array(positions),
            velocities=nothing,
            accelerations=nothing,
            effort=nothing,
            time_from_start=_TYPES["builtin_interfaces/msg/Duration"](
                sec=after_ns // 10**9, nanosec=after_ns % 10**9
            ),
        )
        for after_ns, positions in points
    ]
    message = _TYPES[JOINT_TRAJECTORY](header=header(0, ""), joint_names=joints, points=made)
    return topic, JOINT_TRAJECTORY, at_ns, message


def floats(at_ns: int, values: list[float], topic: str) -> Message:
    layout = _TYPES["std_msgs/msg/MultiArrayLayout"](dim=[], data_offset=0)
    return topic, FLOAT_ARRAY, at_ns, _TYPES[FLOAT_ARRAY](layout=layout, data=np.array(values, np.float64))


def picture(at_ns: int, number: int, stamp_ns: int | None = None) -> Message:
    return IMAGES, IMAGE, at_ns, image(number, at_ns if stamp_ns is None else stamp_ns)


def say(at_ns: int, text: str) -> Message:
    return INSTRUCTION, STRING, at_ns, _TYPES[STRING](data=text)


def moving_arm(n_ticks: int = 20, start_ns: int = START_NS, text: str = "lift it") -> list[Message]:
    """An instruction, pictures at 10 Hz, joints at 50 Hz: lift rises at 0.3 rad/s, pan falls at 0.1."""
    messages = [say(start_ns, text)]
    messages += [picture(start_ns + i * PERIOD_NS, i) for i in range(n_ticks)]
    for i in range(5 * n_ticks + 15):
        time_s = i / 50
        state = joint_state(
            start_ns + i * PERIOD_NS // 5, ["pan", "hand", "lift"], [-0.1 * time_s, 1.0, 0.3 * time_s]
        )
        messages.append(state)
    return messages


def write_bag(folder: Path, messages: list[Message]) -> Path:
    store, connections = ros2_types(), {}
    with rosbag2.Writer(folder, version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        for topic, type_name, at_ns, message in sorted(messages, key=lambda row: row[2]):
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, type_name, typestore=store)
            writer.write(connections[topic], at_ns, store.serialize_cdr(message, type_name))
    return folder
