"""The trajectory groups: chunks limited as a whole, sent once, and brought to rest when cancelled."""

import math
from array import array
from collections.abc import Sequence

import numpy as np

from vla_edge_ros.actions.config import ActionConfig
from vla_edge_ros.actions.limits import Limits, braking_point, limited_waypoints
from vla_edge_ros.actions.messages import GroupTrajectory, TrajectoryPoint
from vla_edge_ros.actions.plan import Plan
from vla_edge_ros.actions.policy import Interface, Policy

LEAST_BRAKING_NS = 10_000_000
"""A stop takes at least this long, so that its only point is not past when the message arrives."""


class TrajectoryGroups:
    """Knows the plan that the controllers follow, which is the one that was taken last.

    columns: the D dimensions of the action that these groups send; values here are of them, in this order.
    """

    def __init__(self, policy: Policy, config: ActionConfig) -> None:
        self.columns = policy.columns(Interface.TRAJECTORY)
        self._config = config
        self._limits = Limits.of([policy.dimensions[i] for i in self.columns])
        names = [policy.dimensions[i].name for i in self.columns]
        self._groups = [
            (group.name, group.joints, [names.index(joint) for joint in group.joints])
            for group in policy.groups
            if group.interface is Interface.TRAJECTORY
        ]
        self._plan: Plan | None = None
        self._prepared: Plan | None = None

    def reset(self) -> None:
        """Nothing is followed any more: the next plan starts from the measured position."""
        self._plan = self._prepared = None

    def position_at(self, effect_ns: int, measured: list[float]) -> list[float]:
        """(D,) where the plan is, or the measured position where none is followed."""
        return measured if self._plan is None else self._plan.position_at(effect_ns)

    def prepare(
        self, targets: list[list[float]], due_ns: Sequence[int], effect_ns: int, measured: list[float]
    ) -> list[list[float]]:
        """Plan the steps (n, D) of a chunk and return them limited. Without a start they are only clamped."""
        position = self.position_at(effect_ns, measured)
        self._prepared = None
        if not self._groups or not all(map(math.isfinite, position)):
            return [self._limits.clamped(row) for row in targets]
        pursued = position if self._plan is None else self._plan.target_at(effect_ns)
        period_ns = self._config.period_ns
        points = limited_waypoints(targets, due_ns, effect_ns, position, pursued, self._limits, period_ns)
        self._prepared = Plan([effect_ns, *due_ns], [position, *points])
        return points

    def take(self, effect_ns: int, stamp_ns: int) -> list[GroupTrajectory]:
        """What was prepared, to be sent now; nothing where it has been taken."""
        plan, self._prepared = self._prepared, None
        if plan is None:
            return []
        self._plan = plan
        times_ns = [due_ns - effect_ns for due_ns in plan.times_ns[1:]]
        return self._messages(stamp_ns, plan.positions[1:], None, times_ns)

    def cancel(self, now_ns: int, effect_ns: int, stamp_ns: int) -> list[GroupTrajectory]:
        """One point a group, where the plan that is followed comes to rest; nothing where none is."""
        plan = self._plan
        self.reset()
        if plan is None:
            return []
        start_ns = max(now_ns, effect_ns)
        # Until its first point a controller moves from where the message found it, by a cubic. In less than
        # twice the time until the effect it would have to speed up before it slows down.
        least_ns = max(self._config.min_lead_ns, LEAST_BRAKING_NS, 2 * (start_ns - now_ns))
        rest, braking_ns = braking_point(
            np.array(plan.position_at(start_ns)), np.array(plan.velocity_at(start_ns)), self._limits, least_ns
        )
        stamp_ns += start_ns - effect_ns
        return self._messages(stamp_ns, [rest.tolist()], [0.0] * len(rest), [braking_ns])

    def _messages(
        self,
        stamp_ns: int,
        positions: list[list[float]],
        velocities: list[float] | None,
        times_ns: list[int],
    ) -> list[GroupTrajectory]:
        messages = []
        for name, joints, columns in self._groups:
            speeds = array("d", () if velocities is None else [velocities[i] for i in columns])
            points = [
                TrajectoryPoint(array("d", [row[i] for i in columns]), speeds, time_ns)
                for row, time_ns in zip(positions, times_ns, strict=True)
            ]
            messages.append(GroupTrajectory(name, joints, stamp_ns, points))
        return messages
