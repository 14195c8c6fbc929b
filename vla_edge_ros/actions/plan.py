"""What a trajectory controller has been told, to know where the arm is meant to be."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from vla_edge_ros.actions.limits import SECOND_NS


@dataclass(frozen=True, slots=True)
class Plan:
    """Straight lines between waypoints, at rest after the last, as joint_trajectory_controller moves.

    times_ns: n of them, rising, the first the effect time; positions: (n, D); n >= 2.
    """

    times_ns: list[int]
    positions: list[list[float]]

    def position_at(self, now_ns: int) -> list[float]:
        i = self._segment(now_ns)
        start_ns, end_ns = self.times_ns[i : i + 2]
        share = min(max((now_ns - start_ns) / (end_ns - start_ns), 0.0), 1.0)
        return [a + share * (b - a) for a, b in zip(*self.positions[i : i + 2], strict=True)]

    def velocity_at(self, now_ns: int) -> list[float]:
        """(D,) a second."""
        if now_ns >= self.times_ns[-1]:
            return [0.0] * len(self.positions[0])
        i = self._segment(now_ns)
        duration_s = (self.times_ns[i + 1] - self.times_ns[i]) / SECOND_NS
        return [(b - a) / duration_s for a, b in zip(*self.positions[i : i + 2], strict=True)]

    def target_at(self, now_ns: int) -> list[float]:
        """The waypoint that is due next at `now_ns`, or the last one."""
        return self.positions[min(max(bisect_left(self.times_ns, now_ns), 1), len(self.positions) - 1)]

    def _segment(self, now_ns: int) -> int:
        return min(max(bisect_right(self.times_ns, now_ns) - 1, 0), len(self.times_ns) - 2)
