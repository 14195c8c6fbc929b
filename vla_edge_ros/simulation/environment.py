"""Episodes of a task at the control loop's rate, without ROS: for training and for tests."""

from collections import deque
from dataclasses import dataclass

import numpy as np

from vla_edge_ros.actions.limits import Limits
from vla_edge_ros.actions.policy import Policy, load_policy
from vla_edge_ros.share import share_directory
from vla_edge_ros.simulation.expert import action_towards, pose_above
from vla_edge_ros.simulation.renderer import Renderer
from vla_edge_ros.simulation.scene import N_JOINTS, PHYSICS_HZ, Scene
from vla_edge_ros.simulation.tasks import TASKS, Task

CONTROL_HZ = 30
_SUBSTEPS = PHYSICS_HZ // CONTROL_HZ
_LEASH_S = 0.1
"""How far a command may run ahead of the measured joint, in time at full speed, as in `ActionPlanner`."""

HOLD = np.array([0.0] * N_JOINTS + [np.nan])
"""The action of a tick without a fresh one: joints stay where they were sent, the gripper as it is."""


def arm_policy() -> Policy:
    """The policy file of this arm."""
    return load_policy(share_directory() / "config/policies/tiny_vla.yaml")


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
        a tick's frame is from its start and its command has effect at the next one's.
    """

    def __init__(self, renders: bool = True, latency_ticks: int = 1) -> None:
        self.scene = Scene()
        self.task: Task | None = None
        self._limits = Limits.of(arm_policy().dimensions)
        self._renders = renders
        self._renderer: Renderer | None = None
        self._latency_ticks = latency_ticks
        self._pending: deque[np.ndarray] = deque()
        self._tick = 0

    def reset(self, seed: int, task: str) -> Observation:
        """Begin episode `seed` of the task of that name. Raises ValueError for an unknown one."""
        if task not in TASKS:
            raise ValueError(f"task is {task!r}; known are {', '.join(TASKS)}")
        rng = np.random.default_rng((seed, list(TASKS).index(task)))
        self.scene.clear()
        self.task = TASKS[task](self.scene, rng)
        self._command = pose_above(self.scene, self.task.start)
        self._gripper = 1.0
        self._pending.clear()
        self._tick = 0
        self.scene.settle()
        return self._observe()

    def step(self, action: np.ndarray) -> Observation:
        """Run one tick; `action` (8,) is seven joint deltas in rad and the gripper from 0 to 1."""
        self._pending.append(np.asarray(action, np.float64))
        before, gripper = self._command.copy(), self._gripper
        if len(self._pending) > self._latency_ticks:
            self._take(self._pending.popleft())
        for substep in range(1, _SUBSTEPS + 1):
            # A trajectory controller goes to its point in a straight line.
            share = substep / _SUBSTEPS
            self.scene.command(
                before + share * (self._command - before), gripper + share * (self._gripper - gripper)
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

    def _take(self, action: np.ndarray) -> None:
        """Let the command move by `action`, within the limits that the node keeps to."""
        reach = self._limits.reach(round(1e9 / CONTROL_HZ))
        measured, leash = self.scene.joint_positions, _LEASH_S * self._limits.max_velocity[:N_JOINTS]
        start = np.clip(self._command, measured - leash, measured + leash)
        delta = np.clip(action[:N_JOINTS], -reach[:N_JOINTS], reach[:N_JOINTS])
        low, high = self._limits.low[:N_JOINTS], self._limits.high[:N_JOINTS]
        self._command = np.clip(start + delta, low, high)
        if np.isfinite(action[N_JOINTS]):
            step = np.clip(action[N_JOINTS] - self._gripper, -reach[N_JOINTS], reach[N_JOINTS])
            self._gripper = float(np.clip(self._gripper + step, 0.0, 1.0))

    def _observe(self) -> Observation:
        frame = self.render() if self._renders else None
        return Observation(self._tick, self.task.instruction, self.scene.joint_positions, frame)
