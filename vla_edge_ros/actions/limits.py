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
    """Of D dimensions: lowest and highest value, greatest speed and deceleration; each (D,) float64.

    rows: the first three by dimension, as numbers: of these few values arrays would cost every tick more.
    """

    rows: tuple[tuple[float, float, float], ...]
    low: np.ndarray
    high: np.ndarray
    max_velocity: np.ndarray
    max_acceleration: np.ndarray

    @classmethod
    def of(cls, dimensions: Sequence[Dimension]) -> "Limits":
        return cls(
            tuple((d.min, d.max, d.max_velocity) for d in dimensions),
            np.array([d.min for d in dimensions]),
            np.array([d.max for d in dimensions]),
            np.array([d.max_velocity for d in dimensions]),
            np.array([d.max_acceleration or d.max_velocity / BRAKING_S for d in dimensions]),
        )

    def clamp(self, values: np.ndarray) -> np.ndarray:
        return values.clip(self.low, self.high)

    def clamped(self, values: Sequence[float]) -> list[float]:
        """`clamp`, of numbers."""
        return [min(max(value, low), high) for value, (low, high, _) in zip(values, self.rows, strict=True)]

    def reach(self, duration_ns: int) -> np.ndarray:
        """The longest way in `duration_ns`."""
        return self.max_velocity * (duration_ns / SECOND_NS)


def towards(target: np.ndarray, start: np.ndarray, reach: np.ndarray) -> np.ndarray:
    """`target`, or what lies `reach` from `start` on the way there.

    From a start outside the limits to a clamped target this moves inwards, no faster than anywhere else.
    """
    return target.clip(start - reach, start + reach)


def limited_waypoints(
    targets: Sequence[Sequence[float]],
    due_ns: Sequence[int],
    effect_ns: int,
    position: Sequence[float],
    pursued: Sequence[float],
    limits: Limits,
    period_ns: int,
) -> list[list[float]]:
    """The steps of a chunk, clamped and no further apart than one control period or their due times allow.

    targets: (n, D) steps due at due_ns (n,), all later than effect_ns.
    position: (D,) where the plan followed so far is at effect_ns.
    pursued: (D,) the target it is on its way to then: the last command. The first step stays near it, and
    near enough to `position` to be reached in time.
    """
    points: list[list[float]] = []
    last, last_ns = pursued, effect_ns
    for target, due in zip(targets, due_ns, strict=True):
        step_s = min(due - last_ns, period_ns) / SECOND_NS
        point = []
        for value, (_, _, max_velocity), start in zip(limits.clamped(target), limits.rows, last, strict=True):
            reach = max_velocity * step_s
            point.append(min(max(value, start - reach), start + reach))
        if not points:
            first_s = (due - effect_ns) / SECOND_NS
            for i, ((_, _, max_velocity), start) in enumerate(zip(limits.rows, position, strict=True)):
                reach = max_velocity * first_s
                point[i] = min(max(point[i], start - reach), start + reach)
        points.append(point)
        last, last_ns = point, due
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
