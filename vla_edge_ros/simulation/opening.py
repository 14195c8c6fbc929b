"""How an episode begins."""

import numpy as np

from vla_edge_ros.simulation.expert import pose_above
from vla_edge_ros.simulation.scene import Scene
from vla_edge_ros.simulation.tasks import TASKS, Task


def lay_table(scene: Scene, seed: int, task: str) -> Task:
    """Lay the table for episode `seed` of the task of that name. Raises ValueError for an unknown task."""
    if task not in TASKS:
        raise ValueError(f"task is {task!r}; known are {', '.join(TASKS)}")
    rng = np.random.default_rng((seed, list(TASKS).index(task)))
    scene.clear()
    return TASKS[task](scene, rng)


def open_episode(scene: Scene, seed: int, task: str) -> tuple[Task, np.ndarray]:
    """Lay the table and place the arm; returns the task, and the arm's joints (7,). Raises ValueError."""
    opened = lay_table(scene, seed, task)
    joints = pose_above(scene, opened.start)
    scene.settle()
    return opened, joints
