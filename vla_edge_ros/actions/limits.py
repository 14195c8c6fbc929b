"""How far a target may be from the last one, and where motion comes to rest."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vla_edge_ros.actions.policy import Dimension

SECOND_NS = 1_000_000_000

BRAKING_S = 0.1
"""A dimension without `max_acceleration` brakes from `max_velocity` to rest in this time."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of D dimensions: lowest and highest value, greatest speed and deceleration; each (D,) float64."""

    low: np.ndarray
    high: np.ndarray
    max_velocity: np.ndarray
    max_acceleration: np.ndarray

    @classmethod
    def of(cls, dimensions: Sequence[Dimension]) -> "Limits":
        return cls(
            np.array([d.min for d in dimensions]),
            np.array([d.max for d in dimensions]),
            np.array([d.max_velocity for d in dimensions]),
            np.array([d.max_acceleration or d.max_velocity / BRAKING_S for d in dimensions]),
        )

    def clamp(self, values: np.ndarray) -> np.ndarray:
        # Twice as quick as `clip`, for a few values.
        return np.minimum(np.maximum(values, self.low), self.high)

    def reach(self, duration_ns: int) -> np.ndarray:
        """The longest way in `duration_ns`."""
        return self.max_velocity * (duration_ns / SECOND_NS)


def towards(target: np.ndarray, start: np.ndarray, reach: np.ndarray) -> np.ndarray:
    """`target`, or what lies `reach` from `start` on the way there.

    From a start outside the limits to a clamped target this moves inwards, no faster than anywhere else.
    """
    return np.minimum(np.maximum(target, start - reach), start + reach)


def limited_waypoints(
    targets: np.ndarray,
    due_ns: np.ndarray,
    effect_ns: int,
    position: np.ndarray,
    pursued: np.ndarray,
    limits: Limits,
    period_ns: int,
) -> np.ndarray:
    """The steps of a chunk, clamped and no further apart than one control period or their due times allow.

    targets: (n, D) steps due at due_ns (n,), all later than effect_ns.
    position: (D,) where the plan followed so far is at effect_ns.
    pursued: (D,) the target it is on its way to then: the last command. The first step stays near it, and
    near enough to `position` to be reached in time.
    """
    points = limits.clamp(targets)
    last, last_ns = pursued, effect_ns
    for i, due in enumerate(due_ns.tolist()):
        points[i] = towards(points[i], last, limits.reach(min(due - last_ns, period_ns)))
        if i == 0:
            points[i] = towards(points[i], position, limits.reach(due - effect_ns))
        last, last_ns = points[i], due
    return points


def braking_point(
    position: np.ndarray, velocity: np.ndarray, limits: Limits, least_ns: int
) -> tuple[np.ndarray, int]:
    """Where motion from `position` at `velocity` comes to rest, and how long that takes; (D,) and ns.

    All dimensions stop together, each with constant deceleration, so that the arm stays on its line: after
    T = max |v| / a each has gone v T / 2, which is also what a cubic spline to zero velocity does. T is at
    least `least_ns`. Limits come first: T is shortened, and the deceleration exceeded, where a dimension
    would pass its limit, and a start outside the limits goes no further out.
    """
    speed = np.abs(velocity)
    braking_s = float((speed / limits.max_acceleration).max())
    room = np.maximum(np.where(velocity > 0, limits.high - position, position - limits.low), 0)
    way = speed * braking_s / 2
    passes = way > room
    if passes.any():
        braking_s *= float((room[passes] / way[passes]).min())
    braking_ns = max(round(braking_s * SECOND_NS), least_ns)
    rest = position + velocity * (braking_ns / SECOND_NS / 2)
    return np.clip(rest, np.minimum(limits.low, position), np.maximum(limits.high, position)), braking_ns
