"""Episodes of a task at the control loop's rate, without ROS: for training and for tests."""

from collections import deque
from dataclasses import dataclass

import numpy as np

from vla_edge_ros.actions.limits import Limits
from vla_edge_ros.simulation.commanded import CONTROL_HZ, Commanded, arm_policy
from vla_edge_ros.simulation.expert import action_towards
from vla_edge_ros.simulation.opening import open_episode
from vla_edge_ros.simulation.renderer import Renderer
from vla_edge_ros.simulation.scene import N_JOINTS, PHYSICS_HZ, Scene
from vla_edge_ros.simulation.tasks import Task

SUBSTEPS = PHYSICS_HZ // CONTROL_HZ

HOLD = np.array([0.0] * N_JOINTS + [np.nan])
"""The action of a tick without a fresh one: joints stay where they were sent, the gripper as it is."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What there is to act on at the start of a tick.

    frame: (64, 128, 3) uint8, or None in an environment that does not render.
    joint_positions: (7,) measured. tick: 0 at reset.
    """

    tick: int
    instruction: str
    joint_positions: np.ndarray
    frame: np.ndarray | None


class Environment:
    """A table, an arm and one task at a time; equal seeds and actions give equal episodes.

    renders: whether observations have a frame. `render` takes a picture in any case, and opens OpenGL for it:
        it raises NoRenderer where there is none.
    latency_ticks: an action takes effect so many ticks after the frame that it is of. 1 is the node's:
        a tick's frame is from its start and its command has effect at the next one's. It may be set between
        episodes.
    """

    def __init__(self, renders: bool = True, latency_ticks: int = 1) -> None:
        self.scene = Scene()
        self.task: Task | None = None
        self._limits = Limits.of(arm_policy().dimensions)
        self._renders = renders
        self._renderer: Renderer | None = None
        self.latency_ticks = latency_ticks
        self._pending: deque[np.ndarray] = deque()
        self._tick = 0

    def reset(self, seed: int, task: str) -> Observation:
        """Begin episode `seed` of the task of that name. Raises ValueError for an unknown one."""
        self.task, joints = open_episode(self.scene, seed, task)
        self._commanded = Commanded(self._limits, joints)
        self._pending.clear()
        self._tick = 0
        return self._observe()

    def step(self, action: np.ndarray) -> Observation:
        """Run one tick; `action` (8,) is seven joint deltas in rad and the gripper from 0 to 1."""
        self._pending.append(np.asarray(action, np.float64))
        before, gripper = self._commanded.joints, self._commanded.gripper
        if len(self._pending) > self.latency_ticks:
            self._commanded.take(self._pending.popleft(), self.scene.joint_positions)
        for substep in range(1, SUBSTEPS + 1):
            # A trajectory controller goes to its point in a straight line.
            share = substep / SUBSTEPS
            self.scene.command(
                before + share * (self._commanded.joints - before),
                gripper + share * (self._commanded.gripper - gripper),
            )
            self.scene.step()
        self._tick += 1
        self.task.show(self.time_s)
        self.scene.settle()
        self.task.judge(self.time_s, self.scene.tip[:2])
        return self._observe()

    @property
    def time_s(self) -> float:
        return self._tick / CONTROL_HZ

    @property
    def is_over(self) -> bool:
        return self.task.is_over

    @property
    def has_succeeded(self) -> bool:
        return self.task.has_succeeded

    def expert_action(self) -> np.ndarray:
        """(8,) what the scripted expert does now."""
        return action_towards(self.scene, self.task.target, 1 / CONTROL_HZ)

    def render(self) -> np.ndarray:
        """(64, 128, 3) uint8: the camera's picture now."""
        if self._renderer is None:
            self._renderer = Renderer(self.scene)
        return self._renderer.render()

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _observe(self) -> Observation:
        frame = self.render() if self._renders else None
        return Observation(self._tick, self.task.instruction, self.scene.joint_positions, frame)
