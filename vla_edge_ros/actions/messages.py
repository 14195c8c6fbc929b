"""What one controller is told, ready to be put into a ROS message."""

from array import array
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrajectoryPoint:
    """positions in the order of the group's joints; velocities the same, or empty where none are given."""

    positions: array
    velocities: array
    time_from_start_ns: int


@dataclass(frozen=True, slots=True)
class GroupTrajectory:
    """One JointTrajectory; `stamp_ns` is ROS time."""

    group: str
    joints: tuple[str, ...]
    stamp_ns: int
    points: list[TrajectoryPoint]


@dataclass(frozen=True, slots=True)
class GroupCommand:
    """One Float64MultiArray; `values` is made once and filled anew on each tick."""

    group: str
    joints: tuple[str, ...]
    values: array
