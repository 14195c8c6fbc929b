"""The command groups: one array a tick, because their controllers keep the last one for ever."""

import math
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from vla_edge_ros.actions.config import ActionConfig
from vla_edge_ros.actions.hold import held, rest_ns
from vla_edge_ros.actions.limits import SECOND_NS
from vla_edge_ros.actions.messages import GroupCommand
from vla_edge_ros.actions.policy import Interface, Kind, Policy


class _Dimension(NamedTuple):
    """Lowest and highest value, how far from where it is limited, and what its kind says."""

    low: float
    high: float
    reach: float
    is_motion: bool
    needs_start: bool

    def limited(self, step: float, last: float) -> float:
        """`step` within the limits, and no further from `last` than a tick may bring it."""
        target = min(max(step, self.low), self.high)
        start = 0.0 if self.is_motion else last
        return target if math.isnan(start) else min(max(target, start - self.reach), start + self.reach)


class CommandGroups:
    """Knows the last command of each dimension, NaN where there is none to hold or to limit from.

    Numbers and no arrays: a few values are computed on every tick, which takes NumPy several times as long.

    columns: the D dimensions of the action that no trajectory group sends; values here are of them. Those in
    no group at all are followed like the others and not sent.
    """

    def __init__(self, policy: Policy, config: ActionConfig) -> None:
        planned = policy.columns(Interface.TRAJECTORY)
        self.columns = [i for i in range(len(policy.dimensions)) if i not in planned]
        dimensions = [policy.dimensions[i] for i in self.columns]
        period_s = config.period_ns / SECOND_NS
        self._dimensions = [
            _Dimension(
                d.min,
                d.max,
                # A motion is limited from zero: a velocity to its greatest, a delta to what a tick may add.
                d.max_velocity if d.kind is Kind.VELOCITY else d.max_velocity * period_s,
                d.kind.is_motion,
                d.kind.needs_joint_state,
            )
            for d in dimensions
        ]
        self._outputs = []
        names = [d.name for d in dimensions]
        for group in policy.groups:
            if group.interface is Interface.COMMAND:
                command = GroupCommand(group.name, group.joints, array("d", [0.0] * len(group.joints)))
                self._outputs.append((command, [names.index(joint) for joint in group.joints]))
        self.reset()

    def reset(self) -> None:
        """Nothing has been sent."""
        self._last = [0.0 if d.is_motion else math.nan for d in self._dimensions]
        self._last_ns: int | None = None
        self._zero_ns = 0
        self.restart()

    def restart(self) -> None:
        """The next step is limited from the measured position; until then the last command is held."""
        self._is_first = True

    def start(self, measured: Sequence[float]) -> list[float]:
        """(D,) what the steps of a new chunk are limited from."""
        if self._is_first:
            for i, dimension in enumerate(self._dimensions):
                if dimension.needs_start:
                    self._last[i] = measured[i]
        return self._last

    def advance(
        self, step: Sequence[float] | None, measured: Sequence[float], effect_ns: int, expiry_ns: int
    ) -> list[float]:
        """(D,) the values for `effect_ns`: `step` limited, or held where it is None.

        expiry_ns: when the chunk of the step is too old, or now where motion must stop at once.
        """
        if step is not None:
            self._zero_ns = rest_ns(effect_ns, expiry_ns)
            self._is_first = False
        zero_ns = min(self._zero_ns, expiry_ns)
        values = []
        for i, (dimension, last) in enumerate(zip(self._dimensions, self._last, strict=True)):
            has_start = not (dimension.needs_start and math.isnan(last))
            if step is not None:
                value = dimension.limited(step[i], last)
            else:
                # Held before any step: where the arm is, once, and not wherever it sags to.
                last = last if has_start else measured[i]
                has_start = not (dimension.needs_start and math.isnan(last))
                value = held(last, dimension.is_motion, self._last_ns, zero_ns, effect_ns)
            values.append(value)
            self._last[i] = value if has_start else math.nan
        self._last_ns = effect_ns
        return values

    def rest(self) -> None:
        for i, dimension in enumerate(self._dimensions):
            if dimension.is_motion:
                self._last[i] = 0.0

    def messages(self) -> list[GroupCommand]:
        """The last commands; a group with a dimension that has none is left out."""
        complete = []
        for command, indices in self._outputs:
            for place, i in enumerate(indices):
                command.values[place] = self._last[i]
            if all(map(math.isfinite, command.values)):
                complete.append(command)
        return complete
