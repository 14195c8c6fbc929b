"""The newest measured joint positions, taken by name out of whatever order they come in."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from vla_edge_ros.errors import one_line

_MOST_KEPT = 256
"""States between two ticks, beyond which the oldest are lost to the record."""


@dataclass(frozen=True, slots=True)
class MeasuredJoints:
    """positions: in the order of the wanted names; receipt_ns on the steady clock."""

    positions: list[float]
    receipt_ns: int


class JointStates:
    """Written by one thread, read by another: `latest` is replaced whole and never changed."""

    def __init__(self, wanted: Sequence[str], max_age_ns: int) -> None:
        self.latest: MeasuredJoints | None = None
        self.refused = 0
        self._wanted = tuple(wanted)
        self._max_age_ns = max_age_ns
        self._untold: deque[MeasuredJoints] = deque(maxlen=_MOST_KEPT)

    @property
    def names(self) -> tuple[str, ...]:
        """The wanted ones, in the order of every position here."""
        return self._wanted

    def take_untold(self) -> list[MeasuredJoints]:
        """Those that came since the last call."""
        untold = self._untold
        return [untold.popleft() for _ in range(len(untold))]

    def observe(
        self,
        names: Sequence[str],
        positions: Sequence[float],
        velocities: Sequence[float] | None,
        receipt_ns: int,
    ) -> str | None:
        """Take a JointState over; returns the reason in one line where it is refused and counted instead.

        Other joints in it are ignored. An empty `velocities` is allowed by the message's definition.
        """
        reason = self._refusal(names, positions, velocities)
        if reason is not None:
            self.refused += 1
            return one_line(f"joint_states refused: {reason}")
        at = {name: i for i, name in enumerate(names)}
        measured = [float(positions[at[name]]) for name in self._wanted]
        self.latest = MeasuredJoints(measured, receipt_ns)
        if measured:
            self._untold.append(self.latest)
        return None

    def why_not_ready(self, now_ns: int) -> str | None:
        """Why the measured positions cannot be relied on at `now_ns`, in one line; None where they can."""
        if not self._wanted:
            return None
        latest = self.latest
        if latest is None:
            return f"no joint_states with {', '.join(self._wanted)} have arrived"
        age_ns = now_ns - latest.receipt_ns
        if age_ns >= self._max_age_ns:
            return f"joint_states are {age_ns / 1e6:.0f} ms old, wanted below {self._max_age_ns / 1e6:.0f} ms"
        return None

    def _refusal(
        self, names: Sequence[str], positions: Sequence[float], velocities: Sequence[float] | None
    ) -> str | None:
        if len(positions) != len(names):
            return f"{len(positions)} positions for {len(names)} names"
        if velocities is not None and len(velocities) not in (0, len(names)):
            return f"{len(velocities)} velocities for {len(names)} names"
        at = {name: i for i, name in enumerate(names)}
        if len(at) != len(names):
            return f"{next(n for i, n in enumerate(names) if at[n] != i)} is there more than once"
        for name in self._wanted:
            if name not in at:
                return f"{name} is missing, it has {', '.join(names) or 'no joints'}"
            if not math.isfinite(positions[at[name]]):
                return f"{name} is at {positions[at[name]]}"
        return None
