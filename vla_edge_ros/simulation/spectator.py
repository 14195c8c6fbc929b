"""An episode as someone beside the table sees it: laid again from what was measured, away from the loop."""

from dataclasses import dataclass

import mujoco
import numpy as np

from vla_edge_ros.simulation.opening import lay_table
from vla_edge_ros.simulation.renderer import Renderer
from vla_edge_ros.simulation.scene import N_JOINTS, Scene
from vla_edge_ros.simulation.tasks import Task

WIDTH, HEIGHT = 480, 270
"""Of a picture, in pixels."""


@dataclass(frozen=True, slots=True)
class Moment:
    """How an episode stood.

    number: of the episode. joints: (8,) measured, rad, the gripper last and from 0 to 1.
    distance_m: from the tip to its goal; None where it has none.
    decision: the name of the node's newest decision; empty where there was none.
    """

    number: int
    task: str
    seed: int
    time_s: float
    joints: tuple[float, ...]
    instruction: str
    decision: str
    distance_m: float | None
    is_over: bool
    has_succeeded: bool


class Spectator:
    """Two views of a moment: from beside the table, and the camera's. Raises NoRenderer."""

    def __init__(self) -> None:
        self._scene = Scene()
        # A context keeps the quality that it was made with: the camera's own is the cheaper.
        self._own = Renderer(self._scene)
        visual = self._scene.model.vis
        visual.global_.offwidth, visual.global_.offheight = WIDTH, HEIGHT
        visual.quality.offsamples, visual.quality.shadowsize = 4, 1024
        visual.quality.numslices, visual.quality.numstacks = 32, 24
        self._scene.model.light_castshadow[:] = True
        self._beside = Renderer(self._scene, WIDTH, HEIGHT, _camera_beside(), has_shadows=True)
        self._task: Task | None = None
        self._number = -1

    def see(self, moment: Moment) -> tuple[np.ndarray, np.ndarray]:
        """(HEIGHT, WIDTH, 3) uint8 from beside the table, and (64, 128, 3) from the arm's own camera."""
        if moment.number != self._number:
            self._number = moment.number
            self._task = lay_table(self._scene, moment.seed, moment.task)
        self._task.show(moment.time_s)
        self._scene.place_arm(np.array(moment.joints[:N_JOINTS]), moment.joints[N_JOINTS])
        return self._beside.render(), self._own.render()

    def close(self) -> None:
        self._beside.close()
        self._own.close()


def _camera_beside() -> mujoco.MjvCamera:
    camera = mujoco.MjvCamera()
    camera.type = mujoco.mjtCamera.mjCAMERA_FREE
    camera.lookat[:] = (0.0, 0.10, 0.17)
    camera.distance, camera.azimuth, camera.elevation = 1.28, 104.0, -34.0
    return camera
