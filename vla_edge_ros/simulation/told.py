"""What someone tells the arm while an episode runs, in place of the task's own words."""

import re
from typing import ClassVar

import numpy as np

from vla_edge_ros.simulation.opening import lay_table
from vla_edge_ros.simulation.scene import Scene
from vla_edge_ros.simulation.tasks import Dwell, Task

_SEEDS_LOOKED_AT = 100


class Told:
    """Go to the one object that the text names and stay for a second, within six of being told.

    A text that names none of the objects on the table, or several, has no goal: it runs its time and has not
    succeeded. The table goes on as its task `laid` it.
    """

    name: ClassVar[str] = "told"
    SECONDS = 6.0

    def __init__(self, scene: Scene, laid: Task, text: str, time_s: float) -> None:
        self.instruction = text
        self.start = laid.start
        self.is_over = self.has_succeeded = False
        self._scene = scene
        self._laid = laid
        self._body = object_named(scene, text)
        self._until_s = time_s + self.SECONDS
        self._dwell = Dwell(0.05, 1.0)

    @property
    def target(self) -> np.ndarray:
        """(2,) NaN where the text has no goal."""
        return np.full(2, np.nan) if self._body is None else self._scene.object_place(self._body)

    def show(self, time_s: float) -> None:
        self._laid.show(time_s)

    def judge(self, time_s: float, tip: np.ndarray) -> None:
        if self._body is not None and self._dwell.holds(time_s, tip, self.target):
            self.is_over = self.has_succeeded = True
        elif time_s >= self._until_s:
            self.is_over = True


def object_named(scene: Scene, text: str) -> int | None:
    """The body of the one object on the table that `text` names; None for none and for several."""
    words = " ".join(re.findall(r"\w+", text.lower()))
    named = [body for name, body in scene.objects.items() if name in words]
    return named[0] if len(named) == 1 else None


def seed_for(text: str, task: str, seed: int) -> int:
    """The first seed from `seed` on whose table has the object that `text` names; `seed` where none has."""
    scene = Scene()
    for candidate in range(seed, seed + _SEEDS_LOOKED_AT):
        lay_table(scene, candidate, task)
        if object_named(scene, text) is not None:
            return candidate
    return seed
