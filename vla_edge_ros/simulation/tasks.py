"""What the arm is asked to do, and whether it did. Places are (2,), on the table; times in seconds."""

from typing import ClassVar, Protocol

import numpy as np

from vla_edge_ros.simulation.layout import HOME, Wandering, put_objects, random_place
from vla_edge_ros.simulation.scene import N_PADS, Scene


class Task(Protocol):
    """One episode of a task, made from the episode's random numbers.

    instruction: what to do now. target: where an expert would go now. start: where the tip begins.
    goal: where it will have to go in the end, as far as that has been shown.
    is_over, has_succeeded: since the last `judge`.
    """

    name: ClassVar[str]
    instruction: str
    target: np.ndarray
    goal: np.ndarray
    start: np.ndarray
    is_over: bool
    has_succeeded: bool

    def __init__(self, scene: Scene, rng: np.random.Generator) -> None:
        """Lay the table. The arm is placed by the caller."""

    def show(self, time_s: float) -> None:
        """Bring the table, the instruction and the target to `time_s`."""

    def judge(self, time_s: float, tip: np.ndarray) -> None:
        """Take note of where the tip (2,) is at `time_s`."""


class Dwell:
    """Whether the tip stays within `radius_m` of a place for `seconds` without a break."""

    def __init__(self, radius_m: float, seconds: float):
        self.radius_m = radius_m
        self.seconds = seconds
        self._since: float | None = None

    def holds(self, time_s: float, tip: np.ndarray, place: np.ndarray) -> bool:
        if np.linalg.norm(tip - place) > self.radius_m:
            self._since = None
            return False
        if self._since is None:
            self._since = time_s
        return time_s - self._since >= self.seconds - 1e-6


class _Episode:
    """The state that every task has."""

    target: np.ndarray

    def __init__(self) -> None:
        self.is_over = False
        self.has_succeeded = False

    @property
    def goal(self) -> np.ndarray:
        return self.target

    def _end(self, has_succeeded: bool) -> None:
        self.is_over, self.has_succeeded = True, has_succeeded


class Reach(_Episode):
    """Go to the object named and stay for a second, within six."""

    name: ClassVar[str] = "reach"
    SECONDS = 6.0

    def __init__(self, scene: Scene, rng: np.random.Generator) -> None:
        super().__init__()
        things = put_objects(scene, rng)
        goal = things[rng.integers(len(things))]
        self.start = random_place(rng)
        self.target = scene.object_place(goal.body)
        self.instruction = f"go to the {goal.name}"
        self._dwell = Dwell(0.05, 1.0)

    def show(self, time_s: float) -> None:
        pass

    def judge(self, time_s: float, tip: np.ndarray) -> None:
        if self._dwell.holds(time_s, tip, self.target):
            self._end(True)
        elif time_s >= self.SECONDS:
            self._end(False)


class Track(_Episode):
    """Stay over the object named while it wanders: 85 % of the time from 2.5 s to 8 s."""

    name: ClassVar[str] = "track"
    SECONDS = 8.0
    JUDGED_FROM_S = 2.5
    RADIUS_M = 0.06
    SHARE = 0.85

    def __init__(self, scene: Scene, rng: np.random.Generator) -> None:
        super().__init__()
        self._scene = scene
        things = put_objects(scene, rng, 2)
        self._ways = [Wandering.random(rng) for _ in things]
        self.start = random_place(rng)
        self.instruction = f"follow the {things[0].name}"
        self._n_near = self._n_judged = 0
        self.show(0.0)

    def show(self, time_s: float) -> None:
        for i, way in enumerate(self._ways):
            self._scene.place_object(i, way.place_at(time_s))
        self.target = self._ways[0].place_at(time_s)

    def judge(self, time_s: float, tip: np.ndarray) -> None:
        if time_s >= self.JUDGED_FROM_S:
            self._n_judged += 1
            self._n_near += bool(np.linalg.norm(tip - self.target) <= self.RADIUS_M)
        if time_s >= self.SECONDS:
            self._end(self._n_near >= self.SHARE * self._n_judged)


class Remember(_Episode):
    """One of four pads is lit for a second; 2 to 20 s later, when the lamp turns green, go there.

    Objects wander about all the while. Leaving before the lamp, or staying on another pad first, is failure:
    where to go is in the frames of that one second and nowhere else, the arm's own place included.
    """

    name: ClassVar[str] = "remember"
    CUE_S = 1.0
    WAIT_S = (2.0, 20.0)
    SECONDS_LEFT = 4.5
    WAITS_WITHIN_M = 0.12

    def __init__(self, scene: Scene, rng: np.random.Generator) -> None:
        super().__init__()
        self._scene = scene
        self._ways = [Wandering.random(rng) for _ in put_objects(scene, rng, 3)]
        self._pad = int(rng.integers(N_PADS))
        self._cue_s = rng.uniform(0.2, 1.0)
        self.lamp_s = self.cue_ends_s + rng.uniform(*self.WAIT_S)
        self.start = HOME
        self.instruction = "when the lamp turns green, go where the light was"
        self._dwells = [Dwell(0.06, 0.7) for _ in range(N_PADS)]
        self.show(0.0)

    @property
    def cue_ends_s(self) -> float:
        return self._cue_s + self.CUE_S

    def begin_later(self, seconds: float) -> None:
        """Move the cue and the lamp back by `seconds`; asked before the first tick."""
        self._cue_s += seconds
        self.lamp_s += seconds

    def show(self, time_s: float) -> None:
        for i, way in enumerate(self._ways):
            self._scene.place_object(i, way.place_at(time_s))
        self._is_cued = time_s >= self._cue_s
        self.has_cue = self._is_cued and time_s < self._cue_s + self.CUE_S
        self._scene.show_pads(self._pad if self.has_cue else None)
        self._scene.show_lamp(time_s >= self.lamp_s)
        self.target = self._scene.pad_positions[self._pad] if time_s >= self.lamp_s else HOME

    @property
    def goal(self) -> np.ndarray:
        return self._scene.pad_positions[self._pad] if self._is_cued else HOME

    def judge(self, time_s: float, tip: np.ndarray) -> None:
        if time_s < self.lamp_s:
            if np.linalg.norm(tip - HOME) > self.WAITS_WITHIN_M:
                self._end(False)
            return
        for pad, dwell in enumerate(self._dwells):
            if dwell.holds(time_s, tip, self._scene.pad_positions[pad]):
                self._end(pad == self._pad)
                return
        if time_s >= self.lamp_s + self.SECONDS_LEFT:
            self._end(False)


class Switch(_Episode):
    """Set out for one object; told another name on the way, turn to that one and stay for a second."""

    name: ClassVar[str] = "switch"
    SECONDS_LEFT = 6.0

    def __init__(self, scene: Scene, rng: np.random.Generator) -> None:
        super().__init__()
        things = put_objects(scene, rng)
        goals = rng.permutation(len(things))[:2]
        self.start = random_place(rng)
        self._names = [things[i].name for i in goals]
        self._places = [scene.object_place(things[i].body) for i in goals]
        self._switch_s = rng.uniform(0.7, 2.5)
        self._is_switched = False
        self._began_m = float(np.linalg.norm(self.start - self._places[0]))
        self._dwell = Dwell(0.05, 1.0)
        self.show(0.0)

    def show(self, time_s: float) -> None:
        now = int(time_s >= self._switch_s)
        self.instruction = f"go to the {self._names[now]}"
        self.target = self._places[now]

    def judge(self, time_s: float, tip: np.ndarray) -> None:
        if time_s < self._switch_s:
            return
        if not self._is_switched:
            self._is_switched = True
            left_m = np.linalg.norm(tip - self._places[0])
            if left_m > max(0.06, 0.9 * self._began_m):
                self._end(False)
                return
        if self._dwell.holds(time_s, tip, self._places[1]):
            self._end(True)
        elif time_s >= self._switch_s + self.SECONDS_LEFT:
            self._end(False)


TASKS: dict[str, type[Task]] = {task.name: task for task in (Reach, Track, Remember, Switch)}
