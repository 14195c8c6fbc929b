"""The table in MuJoCo: the arm's physics, and where objects, pads and lamp are and how they look."""

from collections.abc import Sequence

import mujoco
import numpy as np

from vla_edge_ros.share import share_directory

PHYSICS_HZ = 300
CAMERA = "front"
ASPECT = 2.0
"""Of the camera's picture, width by height."""
N_JOINTS = 7
JOINTS = tuple(f"joint{i}" for i in range(1, N_JOINTS + 1))
OPEN_M = 0.035
"""Way of each finger from closed to open."""

COLOURS = {
    "red": (0.86, 0.10, 0.10),
    "green": (0.10, 0.62, 0.16),
    "blue": (0.12, 0.26, 0.88),
    "yellow": (0.95, 0.85, 0.08),
}
SHAPES = ("cube", "ball", "can")
N_OBJECTS = 4
N_PADS = 4
PAD_IS_DARK = (0.45, 0.45, 0.47)
PAD_IS_LIT = (1.0, 0.20, 0.85)
LAMP_IS_OFF = (0.25, 0.06, 0.06)
LAMP_IS_ON = (0.25, 1.0, 0.35)

READY = np.array([0.0, 0.05, 0.35, 1.75, -0.25, 1.40, 0.0])
"""Joints (7,) of the posture that the arm keeps to where a task leaves it a choice."""

_UNDER_THE_FLOOR = (0.0, 0.0, -1.0)


class Scene:
    """One simulated table; equal calls give equal states on one build of MuJoCo.

    joint_positions: (7,) measured, rad. gripper: from 0 (closed) to 1 (open), measured.
    objects: the bodies of the objects that are shown, by what an instruction calls them (`red cube`).
    """

    def __init__(self) -> None:
        path = share_directory() / "config/simulation/table.xml"
        self.model = mujoco.MjModel.from_xml_path(str(path))
        self.data = mujoco.MjData(self.model)
        self._tip = self.model.site("tip").id
        self._mocap = [self.model.body(f"object{i}").mocapid[0] for i in range(N_OBJECTS)]
        self._object_geoms = [
            {shape: self.model.geom(f"object{i}_{shape}").id for shape in SHAPES} for i in range(N_OBJECTS)
        ]
        self._pads = [self.model.geom(f"pad{i}").id for i in range(N_PADS)]
        self._lamp = self.model.geom("lamp").id
        self.joint_range = self.model.jnt_range[:N_JOINTS].copy()
        self.pad_positions = self.model.geom_pos[self._pads, :2].copy()
        self._jacobian = np.zeros((6, self.model.nv))
        self.objects: dict[str, int] = {}
        self.clear()

    def clear(self) -> None:
        """Put the arm into `READY`, open, and everything else out of sight."""
        mujoco.mj_resetData(self.model, self.data)
        self.objects.clear()
        for i in range(N_OBJECTS):
            self.hide_object(i)
        for pad in self._pads:
            self.model.geom_rgba[pad] = (*PAD_IS_DARK, 0)
        self.model.geom_rgba[self._lamp] = (*LAMP_IS_OFF, 0)
        self.place_arm(READY, 1.0)

    def place_arm(self, joints: np.ndarray, gripper: float) -> None:
        """Set the arm, at rest and commanded to stay."""
        self.data.qpos[:N_JOINTS] = joints
        self.data.qpos[N_JOINTS : N_JOINTS + 2] = gripper * OPEN_M
        self.data.qvel[:] = 0
        self.command(joints, gripper)
        self.settle()

    def command(self, joints: np.ndarray, gripper: float) -> None:
        """What the position servos aim at from now on."""
        self.data.ctrl[:N_JOINTS] = joints
        self.data.ctrl[N_JOINTS : N_JOINTS + 2] = gripper * OPEN_M

    def step(self) -> None:
        """Advance by 1 / PHYSICS_HZ seconds."""
        mujoco.mj_step(self.model, self.data)

    def settle(self) -> None:
        """Bring what is derived (tip, pictures) up to date with positions that were set."""
        mujoco.mj_kinematics(self.model, self.data)
        mujoco.mj_comPos(self.model, self.data)
        mujoco.mj_camlight(self.model, self.data)

    @property
    def joint_positions(self) -> np.ndarray:
        return self.data.qpos[:N_JOINTS].copy()

    @property
    def joint_velocities(self) -> np.ndarray:
        """(7,) rad/s."""
        return self.data.qvel[:N_JOINTS].copy()

    @property
    def gripper(self) -> float:
        return float(self.data.qpos[N_JOINTS : N_JOINTS + 2].mean() / OPEN_M)

    @property
    def tip(self) -> np.ndarray:
        """(3,) between the fingertips."""
        return self.data.site_xpos[self._tip].copy()

    @property
    def tip_axes(self) -> np.ndarray:
        """(3, 3): columns are the hand's x (the fingers' way), y and z (where it points)."""
        return self.data.site_xmat[self._tip].reshape(3, 3).copy()

    @property
    def tip_jacobian(self) -> np.ndarray:
        """(6, 7): velocity and angular velocity of the tip, in world axes, by joint velocity."""
        mujoco.mj_jacSite(self.model, self.data, self._jacobian[:3], self._jacobian[3:], self._tip)
        return self._jacobian[:, :N_JOINTS].copy()

    def picture_place(self, point: np.ndarray) -> np.ndarray:
        """(2,) where the camera shows `point` (3,): from -1, left and top, to 1, right and bottom."""
        camera = self.model.camera(CAMERA).id
        x, y, z = self.data.cam_xmat[camera].reshape(3, 3).T @ (point - self.data.cam_xpos[camera])
        half = np.tan(np.radians(self.model.cam_fovy[camera]) / 2)
        return np.array([x / (half * ASPECT), -y / half]) / -z

    def show_object(self, i: int, shape: str, colour: str) -> None:
        self.objects[f"{colour} {shape}"] = i
        for name, geom in self._object_geoms[i].items():
            self.model.geom_rgba[geom] = (*COLOURS[colour], name == shape)

    def hide_object(self, i: int) -> None:
        self.data.mocap_pos[self._mocap[i]] = _UNDER_THE_FLOOR

    def place_object(self, i: int, xy: Sequence[float]) -> None:
        self.data.mocap_pos[self._mocap[i]] = (*xy, 0.0)

    def object_place(self, i: int) -> np.ndarray:
        """(2,)"""
        return self.data.mocap_pos[self._mocap[i], :2].copy()

    def show_pads(self, lit: int | None) -> None:
        """Show the four pads, at most one of them lit."""
        for i, pad in enumerate(self._pads):
            self.model.geom_rgba[pad] = (*(PAD_IS_LIT if i == lit else PAD_IS_DARK), 1)

    def show_lamp(self, is_on: bool) -> None:
        self.model.geom_rgba[self._lamp] = (*(LAMP_IS_ON if is_on else LAMP_IS_OFF), 1)
