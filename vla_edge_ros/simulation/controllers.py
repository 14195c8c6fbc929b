"""The controllers of ros2_control that the node speaks to, as far as it does; times are steady nanoseconds.

What is refused, and in which order things count, is that of joint_trajectory_controller and
forward_command_controller of ros2_controllers 4, with `interpolate_from_desired_state: true`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Waypoint:
    """positions of the message's joints; velocities the same, or empty where none are given."""

    positions: Sequence[float]
    velocities: Sequence[float]
    time_from_start_ns: int


@dataclass(frozen=True, slots=True)
class _State:
    """Where D joints are wanted; `velocity` is None where a message gave none."""

    time_ns: int
    position: np.ndarray
    velocity: np.ndarray | None


class TrajectoryController:
    """Goes from where it is along the points of the newest trajectory, and stays at the last.

    joints: the names of its D joints. position: (D,) where they are wanted at first.
    refused: messages that were not followed.
    """

    def __init__(self, joints: Sequence[str], position: np.ndarray) -> None:
        self.refused = 0
        self._joints = tuple(joints)
        self.hold(position)

    def hold(self, position: np.ndarray) -> None:
        """Stay at `position` (D,) and forget the trajectory, as when the controller is activated."""
        self._desired = _State(0, np.array(position, np.float64), np.zeros(len(self._joints)))
        self._path: list[_State] = []
        self._starts_when_sampled = False

    def follow(
        self, joints: Sequence[str], points: Sequence[Waypoint], start_ns: int | None, now_ns: int
    ) -> str | None:
        """Replace the trajectory; returns one line where the message is refused and counted instead.

        start_ns: the stamp of its header, None for "now", which is when it is next asked for a position.
        """
        reason = self._why_refused(joints, points, start_ns, now_ns)
        if reason is not None:
            self.refused += 1
            return f"trajectory refused: {reason}"
        order = [list(joints).index(joint) for joint in self._joints]
        self._path = [
            _State(
                (start_ns or 0) + point.time_from_start_ns,
                np.array(point.positions, np.float64)[order],
                np.array(point.velocities, np.float64)[order] if len(point.velocities) else None,
            )
            for point in points
        ]
        self._is_new, self._starts_when_sampled = True, start_ns is None
        return None

    def position_at(self, now_ns: int) -> np.ndarray:
        """(D,) where the joints are wanted; `now_ns` never goes back.

        Before the first point the way is from where the controller was when it first followed this
        trajectory: in a straight line, or by a cubic where the point gives velocities.
        """
        if not self._path:
            return self._desired.position
        if self._is_new:
            if self._starts_when_sampled:
                self._path = [_State(s.time_ns + now_ns, s.position, s.velocity) for s in self._path]
            before = _State(now_ns, self._desired.position, self._desired.velocity)
            self._path.insert(0, before)
            self._is_new = False
        while len(self._path) > 1 and self._path[1].time_ns <= now_ns:
            self._path.pop(0)
        if len(self._path) == 1:
            self.hold(self._path[0].position)
        else:
            self._desired = _between(self._path[0], self._path[1], now_ns)
        return self._desired.position

    def _why_refused(
        self, joints: Sequence[str], points: Sequence[Waypoint], start_ns: int | None, now_ns: int
    ) -> str | None:
        n = len(self._joints)
        if len(joints) != n or set(joints) != set(self._joints):
            return f"its joints are {', '.join(joints) or 'none'}; wanted {', '.join(self._joints)}"
        if not points:
            return "it has no points"
        last_ns = -1
        for i, point in enumerate(points):
            if len(point.positions) != n or len(point.velocities) not in (0, n):
                return (
                    f"point {i} has {len(point.positions)} positions and {len(point.velocities)} velocities; "
                    f"wanted {n}, and {n} or none"
                )
            if not np.isfinite([*point.positions, *point.velocities]).all():
                return f"point {i} is not finite"
            if point.time_from_start_ns <= last_ns:
                return f"point {i} is not later than the one before"
            last_ns = point.time_from_start_ns
        if any(points[-1].velocities):
            return "its last point has a velocity that is not zero"
        if start_ns is not None and start_ns + last_ns < now_ns:
            return f"it ended {(now_ns - start_ns - last_ns) / 1e6:.1f} ms ago"
        return None


class CommandController:
    """Keeps the last command of D values for ever; None before the first. refused: messages not taken."""

    def __init__(self, n: int) -> None:
        self.refused = 0
        self.values: np.ndarray | None = None
        self._n = n

    def take(self, values: Sequence[float]) -> str | None:
        """Take a command over; returns one line where it is refused and counted instead."""
        if len(values) == self._n and np.isfinite(values).all():
            self.values = np.array(values, np.float64)
            return None
        self.refused += 1
        return f"command refused: it is {list(values)}; wanted {self._n} finite values"


def _between(a: _State, b: _State, now_ns: int) -> _State:
    """The straight line, or the cubic through positions and velocities where both have them."""
    whole_s, s = (b.time_ns - a.time_ns) / SECOND_NS, (now_ns - a.time_ns) / SECOND_NS
    way = b.position - a.position
    if a.velocity is None or b.velocity is None:
        return _State(now_ns, a.position + way * (s / whole_s), way / whole_s)
    square = (3 * way / whole_s - 2 * a.velocity - b.velocity) / whole_s
    cube = (a.velocity + b.velocity - 2 * way / whole_s) / whole_s**2
    return _State(
        now_ns,
        a.position + s * (a.velocity + s * (square + s * cube)),
        a.velocity + s * (2 * square + 3 * s * cube),
    )
