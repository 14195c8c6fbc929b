"""What moves in the sample recording: a planar arm that tidies a table, and what comes and goes around it.

Lengths and places are in pixels of a 320x180 picture, x to the right and y down; times are in seconds.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

DURATION_S = 14.5
RATE_HZ = 60

SHOULDER = (150.0, 82.0)
UPPER_LINK = 64.0
FOREARM = 62.0
HAND = 20.0
"""From the wrist straight down to between the finger tips."""

OPEN, CLOSED = 1.0, 0.0


class Waypoint(NamedTuple):
    """Where the finger tips are at `time_s` and how far they are open; between two, they move smoothly."""

    time_s: float
    x: float
    y: float
    opening: float


class Grasp(NamedTuple):
    """An object that the hand carries from `from_s` until `to_s`."""

    name: str
    from_s: float
    to_s: float


WAYPOINTS = (
    Waypoint(0.0, 178, 84, OPEN),
    Waypoint(1.4, 178, 84, OPEN),
    Waypoint(2.3, 84, 100, OPEN),
    Waypoint(2.8, 84, 126, OPEN),
    Waypoint(3.1, 84, 126, CLOSED),
    Waypoint(3.7, 90, 88, CLOSED),
    Waypoint(4.6, 238, 84, CLOSED),
    Waypoint(5.0, 238, 124, CLOSED),
    Waypoint(5.2, 238, 124, OPEN),
    Waypoint(5.7, 232, 88, OPEN),
    Waypoint(7.5, 232, 88, OPEN),
    Waypoint(8.3, 122, 104, OPEN),
    Waypoint(8.8, 122, 135, OPEN),
    Waypoint(9.1, 122, 135, CLOSED),
    Waypoint(9.6, 128, 84, CLOSED),
    Waypoint(10.4, 254, 86, CLOSED),
    Waypoint(10.8, 254, 125, CLOSED),
    Waypoint(11.0, 254, 125, OPEN),
    Waypoint(11.4, 246, 88, OPEN),
    Waypoint(12.4, 246, 88, OPEN),
    Waypoint(13.1, 66, 96, OPEN),
    Waypoint(13.4, 58, 118, OPEN),
    Waypoint(13.6, 58, 118, CLOSED),
    Waypoint(14.0, 66, 84, CLOSED),
    Waypoint(14.6, 110, 70, CLOSED),
)

GRASPS = (Grasp("cube", 3.0, 5.1), Grasp("ball", 9.0, 10.9), Grasp("can", 13.5, math.inf))

RESTING = {"cube": (84.0, 134.0), "ball": (122.0, 142.0), "can": (58.0, 130.0)}
"""Where each object touches the table before it is grasped."""

GRIP_HEIGHT = {"cube": 8.0, "ball": 7.0, "can": 12.0}
"""From where an object touches the table up to where the finger tips hold it."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that a drawing of one moment needs.

    tip: between the finger tips. elbow, wrist: the joints. objects: where each touches the table or hangs.
    lifted: the object in the hand. lamp, daylight: brightness from 0 to 1. box_x: left edge of a parcel, None
    where it is away. plant, sheet: how far this clutter has come into the picture, from 0 to 1.
    """

    time_s: float
    tip: tuple[float, float]
    elbow: tuple[float, float]
    wrist: tuple[float, float]
    opening: float
    objects: dict[str, tuple[float, float]]
    lifted: str | None
    lamp: float
    daylight: float
    box_x: float | None
    plant: float
    sheet: float


def scene_at(time_s: float) -> Scene:
    tip, opening = _tip_at(time_s)
    elbow, wrist = _arm_joints(tip)
    objects, lifted = _objects_at(time_s)
    return Scene(
        time_s=time_s,
        tip=tip,
        elbow=elbow,
        wrist=wrist,
        opening=opening,
        objects=objects,
        lifted=lifted,
        lamp=1.0 - _ramp(time_s, 1.1, 1.2) + _ramp(time_s, 6.2, 6.3) - _ramp(time_s, 11.6, 11.7),
        daylight=1.0 - 0.36 * _dusk(time_s),
        box_x=_box_x(time_s),
        plant=_ramp(time_s, 2.6, 3.0) - _ramp(time_s, 7.9, 8.3),
        sheet=_ramp(time_s, 9.7, 10.1) - _ramp(time_s, 13.9, 14.3),
    )


def _dusk(time_s: float) -> float:
    """How far a cloud has darkened the window, from 0 to 1."""
    return 1.0 - _ramp(time_s, 0.8, 2.0) + _ramp(time_s, 5.6, 7.0) - _ramp(time_s, 11.2, 12.6)


def _smooth(u: float) -> float:
    """The minimum-jerk profile of human and robot reaches (Flash and Hogan, 1985)."""
    u = min(1.0, max(0.0, u))
    return u * u * u * (10.0 + u * (6.0 * u - 15.0))


def _ramp(time_s: float, from_s: float, to_s: float) -> float:
    return _smooth((time_s - from_s) / (to_s - from_s))


def _tip_at(time_s: float) -> tuple[tuple[float, float], float]:
    for before, after in pairwise(WAYPOINTS):
        if time_s <= after.time_s:
            u = _ramp(time_s, before.time_s, after.time_s)
            x, y, opening = (a + u * (b - a) for a, b in zip(before[1:], after[1:], strict=True))
            return (x, y), opening
    last = WAYPOINTS[-1]
    return (last.x, last.y), last.opening


def _arm_joints(tip: tuple[float, float]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Elbow and wrist of the two links, elbow up: inverse kinematics by the law of cosines."""
    wrist = (tip[0], tip[1] - HAND)
    dx, dy = wrist[0] - SHOULDER[0], wrist[1] - SHOULDER[1]
    reach = math.hypot(dx, dy)
    cosine = (UPPER_LINK**2 + reach**2 - FOREARM**2) / (2.0 * UPPER_LINK * reach)
    bend = math.acos(min(1.0, max(-1.0, cosine)))
    direction = math.atan2(dy, dx)
    up = max((direction - bend, direction + bend), key=lambda angle: -math.sin(angle))
    return (SHOULDER[0] + UPPER_LINK * math.cos(up), SHOULDER[1] + UPPER_LINK * math.sin(up)), wrist


def _objects_at(time_s: float) -> tuple[dict[str, tuple[float, float]], str | None]:
    objects = dict(RESTING)
    lifted = None
    for grasp in GRASPS:
        if time_s < grasp.from_s:
            continue
        (x, y), _ = _tip_at(min(time_s, grasp.to_s))
        objects[grasp.name] = (x, y + GRIP_HEIGHT[grasp.name])
        if time_s < grasp.to_s:
            lifted = grasp.name
    return objects, lifted


def _box_x(time_s: float) -> float | None:
    """A parcel is pushed in from the left and pulled out again."""
    there = _ramp(time_s, 3.9, 4.9) - _ramp(time_s, 11.9, 12.5)
    return None if there == 0.0 else -70.0 + 76.0 * there
