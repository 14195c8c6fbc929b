"""Where things may be on the table, and how they move about."""

from dataclasses import dataclass

import numpy as np

from vla_edge_ros.simulation.scene import COLOURS, N_OBJECTS, SHAPES, Scene

REACH_X_M = 0.36
REACH_Y_M = 0.16
"""Objects lie, and the tip starts, within these of the middle of the mat."""

HOME = np.array([0.0, 0.02])
"""Where the tip waits."""

_APART_M = 0.14


@dataclass(frozen=True, slots=True)
class Thing:
    """An object by the place of its body in the scene; its name is what an instruction calls it."""

    body: int
    name: str


def random_place(rng: np.random.Generator) -> np.ndarray:
    return rng.uniform((-REACH_X_M, -REACH_Y_M), (REACH_X_M, REACH_Y_M))


def put_objects(scene: Scene, rng: np.random.Generator, n: int = N_OBJECTS) -> list[Thing]:
    """Show `n` objects of different colours and any shapes, apart from each other."""
    colours = rng.permutation(list(COLOURS))[:n]
    shapes = rng.choice(SHAPES, n)
    places: list[np.ndarray] = []
    while len(places) < n:
        place = random_place(rng)
        if all(np.linalg.norm(place - other) >= _APART_M for other in places):
            places.append(place)
    for i, (colour, shape, place) in enumerate(zip(colours, shapes, places, strict=True)):
        scene.show_object(i, shape, colour)
        scene.place_object(i, place)
    return [Thing(i, f"{colours[i]} {shapes[i]}") for i in range(n)]


@dataclass(frozen=True, slots=True)
class Wandering:
    """A smooth way that never ends: a sine along each axis. Arrays are (2,): x and y."""

    middle: np.ndarray
    amplitude: np.ndarray
    speed: np.ndarray
    """The greatest, m/s."""
    phase: np.ndarray

    @classmethod
    def random(cls, rng: np.random.Generator) -> "Wandering":
        amplitude = rng.uniform((0.15, 0.06), (0.24, 0.10))
        room = np.array([REACH_X_M, REACH_Y_M]) - amplitude
        return cls(
            rng.uniform(-room, room),
            amplitude,
            rng.uniform((0.11, 0.06), (0.17, 0.10)) * rng.choice((-1, 1), 2),
            rng.uniform(0, 2 * np.pi, 2),
        )

    def place_at(self, time_s: float) -> np.ndarray:
        return self.middle + self.amplitude * np.sin(self.speed / self.amplitude * time_s + self.phase)
