"""The table in real time: physics up to the time that is passed in, the arm moved by its controllers."""

import numpy as np

from vla_edge_ros.actions.limits import Limits, towards
from vla_edge_ros.simulation.commanded import arm_policy
from vla_edge_ros.simulation.controllers import SECOND_NS, CommandController, TrajectoryController
from vla_edge_ros.simulation.environment import SUBSTEPS
from vla_edge_ros.simulation.opening import open_episode
from vla_edge_ros.simulation.scene import JOINTS, PHYSICS_HZ, Scene
from vla_edge_ros.simulation.tasks import Task
from vla_edge_ros.simulation.told import Told

MOST_BEHIND_STEPS = PHYSICS_HZ // 5
"""Physics that is further behind is skipped: to catch up with all of it would fall behind again."""


class LiveTable:
    """One episode after another, each from `reset` on; times are steady nanoseconds and never go back.

    The controllers are asked once a step of physics, for the time of that step. What they say is limited to
    the policy's positions and speeds, as ros2_control's joint limiter does.

    task: what is judged: that of the episode, or what someone has told the arm since.
    number: of the episode, from 1 on. skipped_steps: of physics, since the start.
    """

    def __init__(self, seed: int, task: str, now_ns: int, instruction: str = "") -> None:
        """Begin the first episode. Raises ValueError for an unknown task."""
        self.scene = Scene()
        self.number = 0
        self.skipped_steps = 0
        self._limits = Limits.of(arm_policy().dimensions)
        self._reach = self._limits.reach(SECOND_NS // PHYSICS_HZ)
        self.trajectory = TrajectoryController(JOINTS, self.scene.joint_positions)
        self.gripper = CommandController(1)
        self.reset(seed, task, now_ns, instruction)

    def reset(self, seed: int, task: str, now_ns: int, instruction: str = "") -> None:
        """Lay the table for an episode; the arm stands at its start and stays. Raises ValueError.

        instruction: what the arm is told in place of the task's own, from the beginning on; may be empty.
        """
        self._laid, joints = open_episode(self.scene, seed, task)
        self.task: Task = self._laid
        self.task_name, self.seed = task, seed
        self.number += 1
        self.trajectory.hold(joints)
        self.gripper.values = None
        self._command = np.append(joints, 1.0)
        self._began_ns = now_ns
        self._steps = 0
        if instruction:
            self.instruct(instruction)

    def instruct(self, text: str) -> None:
        """Someone tells the arm what to do: from now on that is judged, and the task's own words are over."""
        if text != self.task.instruction:
            self.task = Told(self.scene, self._laid, text, self.time_s)

    @property
    def time_s(self) -> float:
        """Since the episode began."""
        return self._steps / PHYSICS_HZ

    @property
    def distance_m(self) -> float:
        """From the tip to where it is to be, on the table; NaN where that is nowhere."""
        return float(np.linalg.norm(self.scene.tip[:2] - self.task.target))

    def run_to(self, now_ns: int) -> bool:
        """Run the physics that is due; returns whether the task has been judged, which it is at 30 Hz."""
        due = (now_ns - self._began_ns) * PHYSICS_HZ // SECOND_NS - self._steps
        if due > MOST_BEHIND_STEPS:
            skipped = due - MOST_BEHIND_STEPS
            self._began_ns += skipped * SECOND_NS // PHYSICS_HZ
            self.skipped_steps += skipped
            due = MOST_BEHIND_STEPS
        is_judged = False
        for _ in range(due):
            self._step()
            if self._steps % SUBSTEPS == 0:
                self.task.show(self.time_s)
                self.scene.settle()
                if not self.task.is_over:
                    self.task.judge(self.time_s, self.scene.tip[:2])
                is_judged = True
        return is_judged

    def _step(self) -> None:
        wanted = self._command.copy()
        wanted[:-1] = self.trajectory.position_at(self._began_ns + self._steps * SECOND_NS // PHYSICS_HZ)
        if self.gripper.values is not None:
            wanted[-1] = self.gripper.values[0]
        self._command = towards(self._limits.clamp(wanted), self._command, self._reach)
        self.scene.command(self._command[:-1], self._command[-1])
        self.scene.step()
        self._steps += 1
