"""Pictures of the scene as its camera takes them, by OpenGL without a screen."""

import atexit
import contextlib

import mujoco
import numpy as np

from vla_edge_ros.errors import UserError
from vla_edge_ros.simulation.scene import CAMERA, Scene

_FREELY = contextlib.nullcontext()


class NoRenderer(UserError):
    """No OpenGL without a screen can be had on this machine."""


class Renderer:
    """Renders one scene at one size; for the thread that made it, until `close`.

    Shadows, reflections and multisampling are off: they cost most of the time where the CPU renders, and at
    128x64 they show the model nothing.
    camera: where it looks from; None for the arm's own camera. has_shadows: for people to look at.
    Raises NoRenderer, with the packages to install.
    """

    def __init__(
        self,
        scene: Scene,
        width: int = 128,
        height: int = 64,
        camera: mujoco.MjvCamera | None = None,
        has_shadows: bool = False,
    ):
        self._scene = scene
        self._context = _open_context(width, height)
        self._view = mujoco.MjrRect(0, 0, width, height)
        self._camera = camera or _own_camera(scene)
        self._options = mujoco.MjvOption()
        self._geoms = mujoco.MjvScene(scene.model, maxgeom=100)
        self._geoms.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = has_shadows
        self._geoms.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
        self._gl = mujoco.MjrContext(scene.model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._gl)
        self._bottom_up = np.zeros((height, width, 3), np.uint8)
        # Before EGL's own end, after which nothing can be freed and Python complains of it.
        atexit.register(self.close)

    def render(self, reading: contextlib.AbstractContextManager = _FREELY) -> np.ndarray:
        """(height, width, 3) uint8 RGB, the top row first; `reading` is entered while the scene is read."""
        self._context.make_current()
        with reading:
            mujoco.mjv_updateScene(
                self._scene.model,
                self._scene.data,
                self._options,
                None,
                self._camera,
                mujoco.mjtCatBit.mjCAT_ALL,
                self._geoms,
            )
        mujoco.mjr_render(self._view, self._geoms, self._gl)
        mujoco.mjr_readPixels(self._bottom_up, None, self._view, self._gl)
        return self._bottom_up[::-1].copy()

    def close(self) -> None:
        """Free what OpenGL holds; safe to call twice."""
        if self._context is not None:
            atexit.unregister(self.close)
            self._context.make_current()
            self._gl.free()
            self._context.free()
            self._context = None


def _own_camera(scene: Scene) -> mujoco.MjvCamera:
    camera = mujoco.MjvCamera()
    camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
    camera.fixedcamid = scene.model.camera(CAMERA).id
    return camera


def with_sensor_noise(frame: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """`frame` (H, W, 3) uint8 with every value up to one level higher or lower."""
    noise = rng.integers(-1, 2, frame.shape, np.int8)
    return np.clip(frame + noise.astype(np.int16), 0, 255).astype(np.uint8)


def _open_context(width: int, height: int):
    try:
        # Imported here: without libEGL even the import fails.
        from mujoco.egl import GLContext

        context = GLContext(width, height)
        context.make_current()
        return context
    except Exception as error:
        raise NoRenderer(
            "the simulation's camera needs OpenGL through EGL, which does not open here "
            f"({type(error).__name__}: {error}): sudo apt-get install libegl1 libgl1-mesa-dri"
        ) from None
