"""From `EngineSpec.backend` to an engine."""

import ctypes
import importlib
from dataclasses import replace

import numpy as np

from vla_edge_ros.engine.interface import Engine, EngineError, EngineInfo, EngineSpec
from vla_edge_ros.perception.frame_buffer import FrameBuffer

BACKENDS = ("auto", "cuda", "numpy", "fake")

_ATTRIBUTES = (75, 76, 16, 97)
"""CU_DEVICE_ATTRIBUTE_: COMPUTE_CAPABILITY_MAJOR and _MINOR, MULTIPROCESSOR_COUNT,
MAX_SHARED_MEMORY_PER_BLOCK_OPTIN."""


def make_engine(spec: EngineSpec, frames: FrameBuffer) -> Engine:
    """An engine, not yet configured; `auto` is `cuda` where that can run, else `numpy`; a note says why.

    Raises EngineError where the backend is unknown, cannot run here, does not give what is asked for, or
    cannot follow the plan asked for.
    """
    if spec.backend in ("cuda", "fake"):
        for missing, instead in _missing(spec, spec.backend):
            raise EngineError(f"backend {spec.backend} has no {missing}: use backend numpy, or {instead}")
    if spec.backend == "auto":
        obstacle = cuda_obstacle(spec)
        chosen = "numpy" if obstacle else "cuda"
        note = f"backend auto chose {chosen}: {obstacle or 'device, driver, libraries and kernels are there'}"
        if spec.plan and obstacle:
            raise EngineError(f"engine.plan is {spec.plan} and {note}; empty it to let numpy sum its own way")
        return _WithNote(make_engine(replace(spec, backend=chosen), frames), note)
    if spec.plan and spec.backend in ("numpy", "fake"):
        raise EngineError(f"engine.plan is {spec.plan}: backend {spec.backend} has no plans, empty it")
    if spec.backend == "cuda":
        obstacle = cuda_obstacle()
        if obstacle:
            raise EngineError(f"backend cuda cannot run: {obstacle}; use backend numpy or auto")
        return importlib.import_module("vla_edge_ros.engine.cuda.engine").CudaEngine(spec, frames)
    if spec.backend == "numpy":
        from vla_edge_ros.engine.numpy_engine import NumpyEngine

        return NumpyEngine(spec, frames)
    if spec.backend == "fake":
        from vla_edge_ros.engine.fake import FakeEngine

        return FakeEngine(spec, frames)
    raise EngineError(f"unknown engine backend {spec.backend!r}: use one of {', '.join(BACKENDS)}")


def _missing(spec: EngineSpec, backend: str) -> list[tuple[str, str]]:
    """What `spec` asks for and the NumPy engine alone has, and what to use instead."""
    alone = (
        (spec.gives_signals, "attention and value norms", "a memory.policy that needs none"),
        (spec.embedding != "pooled", f"embedding {spec.embedding}", "memory.embedding patch_signature"),
        (backend == "cuda" and spec.host_bytes > 0, "host ring", "memory.host_bytes 0"),
    )
    return [(what, instead) for is_wanted, what, instead in alone if is_wanted]


def cuda_obstacle(spec: EngineSpec | None = None) -> str:
    """Why the CUDA engine cannot run on this machine, or not this spec, in one line; empty where it can."""
    for missing, _ in _missing(spec, "cuda") if spec is not None else ():
        return f"the CUDA engine has no {missing}"
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver (libcuda.so.1 is not installed)"
    count = ctypes.c_int(0)
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status or not count.value:
        return f"the NVIDIA driver finds no device (CUDA error {status})"
    try:
        importlib.import_module("vla_edge_ros.engine.cuda.engine")
    except ImportError as error:
        return f"the CUDA engine cannot be imported ({error})"
    version, *found = (ctypes.c_int(0) for _ in range(1 + len(_ATTRIBUTES)))
    status = driver.cuDriverGetVersion(ctypes.byref(version))
    for attribute, value in zip(_ATTRIBUTES, found, strict=True):
        status = status or driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0)
    if status:
        return f"the NVIDIA driver does not describe its device (CUDA error {status})"
    try:
        _require_fit(spec, version.value, *(value.value for value in found))
    except EngineError as error:
        return str(error)
    return ""


def _require_fit(
    spec: EngineSpec | None, version: int, major: int, minor: int, multiprocessors: int, shared_bytes: int
) -> None:
    from vla_edge_ros.engine.cuda.compiler import find_build
    from vla_edge_ros.engine.cuda.device import require_fit
    from vla_edge_ros.engine.cuda.plan import make_plan, require_room
    from vla_edge_ros.engine.weights import open_weights

    require_fit("the device", version, major, minor)
    find_build(f"sm_{major}{minor}")
    if spec is not None:
        config, _ = open_weights(spec.model, spec.seed)
        require_room(make_plan(config, spec.n_slots, multiprocessors, shared_bytes), shared_bytes)


class _WithNote:
    """An engine whose information says one thing more."""

    def __init__(self, engine: Engine, note: str):
        self._engine = engine
        self._note = note
        self.submit = engine.submit
        self.wait = engine.wait
        self.evict = engine.evict
        self.close = engine.close

    def configure(self) -> EngineInfo:
        info = self._engine.configure()
        return replace(info, notes=(*info.notes, self._note))

    def stash(self, place: int, slots: np.ndarray) -> None:
        """Of an engine with a ring; the others have no such call."""
        self._engine.stash(place, slots)

    def restore(self, place: int, slots: np.ndarray) -> None:
        self._engine.restore(place, slots)
