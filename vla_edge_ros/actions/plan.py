"""What a trajectory controller has been told, to know where the arm is meant to be."""

from dataclasses import dataclass

import numpy as np

from vla_edge_ros.actions.limits import SECOND_NS


@dataclass(frozen=True, slots=True)
class Plan:
    """Straight lines between waypoints, at rest after the last, as joint_trajectory_controller moves.

    times_ns: (n,) int64, rising, the first the effect time; positions: (n, D); n >= 2.
    """

    times_ns: np.ndarray
    positions: np.ndarray

    def position_at(self, now_ns: int) -> np.ndarray:
        i = self._segment(now_ns)
        start_ns, end_ns = self.times_ns[i : i + 2].tolist()
        share = min(max((now_ns - start_ns) / (end_ns - start_ns), 0.0), 1.0)
        return self.positions[i] + share * (self.positions[i + 1] - self.positions[i])

    def velocity_at(self, now_ns: int) -> np.ndarray:
        """(D,) a second."""
        if now_ns >= self.times_ns[-1]:
            return np.zeros(self.positions.shape[1])
        i = self._segment(now_ns)
        duration_s = (self.times_ns[i + 1] - self.times_ns[i]) / SECOND_NS
        return (self.positions[i + 1] - self.positions[i]) / duration_s

    def target_at(self, now_ns: int) -> np.ndarray:
        """The waypoint that is due next at `now_ns`, or the last one."""
        i = self.times_ns.searchsorted(now_ns, "left")
        return self.positions[min(max(i, 1), len(self.positions) - 1)]

    def _segment(self, now_ns: int) -> int:
        i = int(self.times_ns.searchsorted(now_ns, "right")) - 1
        return min(max(i, 0), len(self.times_ns) - 2)
