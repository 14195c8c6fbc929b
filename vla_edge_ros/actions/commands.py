"""The command groups: one array a tick, because their controllers keep the last one for ever."""

import math
from array import array

import numpy as np

from vla_edge_ros.actions.config import ActionConfig
from vla_edge_ros.actions.hold import held, rest_ns
from vla_edge_ros.actions.limits import Limits, towards
from vla_edge_ros.actions.messages import GroupCommand
from vla_edge_ros.actions.policy import Interface, Kind, Policy


class CommandGroups:
    """Knows the last command of each dimension, NaN where there is none to hold or to limit from.

    columns: the D dimensions of the action that no trajectory group sends; arrays here are of them. Those in
    no group at all are followed like the others and not sent.
    """

    def __init__(self, policy: Policy, config: ActionConfig) -> None:
        planned = policy.columns(Interface.TRAJECTORY)
        self.columns = [i for i in range(len(policy.dimensions)) if i not in planned]
        dimensions = [policy.dimensions[i] for i in self.columns]
        self._limits = Limits.of(dimensions)
        self._is_motion = np.array([d.kind.is_motion for d in dimensions], bool)
        self._needs_start = np.array([d.kind.needs_joint_state for d in dimensions], bool)
        # A motion is limited from zero: a velocity to the greatest speed, a delta to what a tick may add.
        is_velocity = np.array([d.kind is Kind.VELOCITY for d in dimensions], bool)
        self._reach = np.where(is_velocity, self._limits.max_velocity, self._limits.reach(config.period_ns))
        self._outputs = []
        names = [d.name for d in dimensions]
        for group in policy.groups:
            if group.interface is Interface.COMMAND:
                command = GroupCommand(group.name, group.joints, array("d", [0.0] * len(group.joints)))
                indices = [names.index(joint) for joint in group.joints]
                self._outputs.append((command, np.frombuffer(command.values), indices))
        self.reset()

    def reset(self) -> None:
        """Nothing has been sent."""
        self._last = np.where(self._is_motion, 0.0, np.nan)
        self._last_ns: int | None = None
        self._zero_ns = 0
        self.restart()

    def restart(self) -> None:
        """The next step is limited from the measured position; until then the last command is held."""
        self._is_first = True

    def start(self, measured: np.ndarray) -> np.ndarray:
        """(D,) what the steps of a new chunk are limited from."""
        if self._is_first:
            self._last[self._needs_start] = measured[self._needs_start]
        return self._last

    def advance(
        self, step: np.ndarray | None, measured: np.ndarray, effect_ns: int, expiry_ns: int
    ) -> np.ndarray:
        """(D,) the values for `effect_ns`: `step` limited, or held where it is None.

        expiry_ns: when the chunk of the step is too old, or now where motion must stop at once.
        """
        if step is not None:
            values = self._limited(step)
            self._zero_ns = rest_ns(effect_ns, expiry_ns)
            self._is_first = False
        else:
            # Held before any step: where the arm is, once, and not wherever it sags to.
            self._last = np.where(self._needs_start & np.isnan(self._last), measured, self._last)
            zero_ns = min(self._zero_ns, expiry_ns)
            values = held(self._last, self._is_motion, self._last_ns, zero_ns, effect_ns)
        self._last = np.where(self._needs_start & np.isnan(self._last), np.nan, values)
        self._last_ns = effect_ns
        return values

    def rest(self) -> None:
        self._last[self._is_motion] = 0.0

    def messages(self) -> list[GroupCommand]:
        """The last commands; a group with a dimension that has none is left out."""
        complete = []
        for command, values, indices in self._outputs:
            values[:] = self._last[indices]
            if all(map(math.isfinite, command.values)):
                complete.append(command)
        return complete

    def _limited(self, step: np.ndarray) -> np.ndarray:
        start = np.where(self._is_motion, 0.0, self._last)
        target = self._limits.clamp(step)
        return np.where(np.isnan(start), target, towards(target, start, self._reach))
