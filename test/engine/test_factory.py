"""Which engine a backend's name stands for, and what is said where it cannot run."""

import ctypes
import sys
import types
from dataclasses import replace

import numpy as np
import pytest

from vla_edge_ros.engine import factory
from vla_edge_ros.engine.cuda import compiler
from vla_edge_ros.engine.factory import cuda_obstacle, make_engine
from vla_edge_ros.engine.fake import FakeEngine
from vla_edge_ros.engine.interface import (
    EngineError,
    EngineInfo,
    EngineSpec,
    FrameWork,
    PromptWork,
    WorkStatus,
)
from vla_edge_ros.engine.numpy_engine import NumpyEngine
from vla_edge_ros.engine.presets import PRESETS
from vla_edge_ros.perception.frame_buffer import FrameBuffer

CUDA_MODULE = "vla_edge_ros.engine.cuda.engine"


@pytest.fixture
def frames():
    buffer = FrameBuffer.create()
    buffer.write(np.zeros((64, 128, 3), np.uint8), 1, 2, 3)
    yield buffer
    buffer.close()


def test_each_backend_has_its_engine(frames):
    assert isinstance(make_engine(EngineSpec(backend="numpy"), frames), NumpyEngine)
    assert isinstance(make_engine(EngineSpec(backend="fake", model="fake"), frames), FakeEngine)


def test_an_unknown_backend_is_refused_with_those_that_exist(frames):
    with pytest.raises(EngineError, match="'tpu': use one of auto, cuda, numpy, fake"):
        make_engine(EngineSpec(backend="tpu"), frames)


def test_cuda_that_cannot_run_is_refused_with_the_reason(frames, monkeypatch):
    monkeypatch.setattr(factory, "cuda_obstacle", lambda *_: "no NVIDIA driver")
    with pytest.raises(EngineError, match="cuda cannot run: no NVIDIA driver; use backend numpy or auto"):
        make_engine(EngineSpec(backend="cuda"), frames)


def test_auto_without_cuda_is_numpy_and_says_why(frames, monkeypatch):
    monkeypatch.setattr(factory, "cuda_obstacle", lambda *_: "no NVIDIA driver")
    engine = make_engine(EngineSpec(backend="auto"), frames)
    info = engine.configure()
    assert info.backend == "numpy"
    assert info.notes[-1] == "backend auto chose numpy: no NVIDIA driver"
    slots = np.arange(64, dtype=np.int32)
    engine.submit(PromptWork(1, np.zeros(3, np.int32), slots[:3]))
    assert engine.wait(0).status is WorkStatus.DONE
    engine.evict(slots[3:])
    engine.submit(FrameWork(2, slots[:3], slots[3:35], slots[35:42]))
    assert engine.wait(0).tokens.shape == (1, 7)
    engine.close()


@pytest.fixture
def cuda_runs_here(monkeypatch):
    module = types.ModuleType(CUDA_MODULE)
    module.CudaEngine = lambda spec, frames: (spec.backend, frames)
    monkeypatch.setitem(sys.modules, CUDA_MODULE, module)
    monkeypatch.setattr(factory, "cuda_obstacle", lambda *_: "")


def test_cuda_asked_for_by_name_is_the_cuda_engine(frames, cuda_runs_here):
    assert make_engine(EngineSpec(backend="cuda"), frames) == ("cuda", frames)


def test_auto_is_cuda_where_that_can_run_and_says_so(frames, monkeypatch):
    described = EngineInfo("cuda", "cuda-1x8", vocabulary_size=513, embedding_size=192)
    module = types.ModuleType(CUDA_MODULE)
    module.CudaEngine = lambda spec, frames: types.SimpleNamespace(
        configure=lambda: replace(described, backend=spec.backend, plan_id=spec.plan),
        **dict.fromkeys(("submit", "wait", "evict", "close")),
    )
    monkeypatch.setitem(sys.modules, CUDA_MODULE, module)
    monkeypatch.setattr(factory, "cuda_obstacle", lambda *_: "")
    info = make_engine(EngineSpec(backend="auto", plan="cuda-1x8"), frames).configure()
    assert (info.backend, info.plan_id) == ("cuda", "cuda-1x8")
    assert info.notes == ("backend auto chose cuda: device, driver, libraries and kernels are there",)


@pytest.mark.parametrize(
    "asked_for", [{"gives_signals": True}, {"embedding": "key_summary"}, {"host_bytes": 1_000_000}]
)
def test_auto_is_numpy_for_what_that_alone_has(frames, asked_for):
    engine = make_engine(EngineSpec(backend="auto", **asked_for), frames)
    info = engine.configure()
    assert info.backend == "numpy"
    assert any(note.startswith("backend auto chose numpy: the CUDA engine has no ") for note in info.notes)
    engine.close()


def test_a_plan_of_cuda_is_not_quietly_dropped_by_another_engine(frames, monkeypatch):
    monkeypatch.setattr(factory, "cuda_obstacle", lambda *_: "no NVIDIA driver")
    for backend, complaint in (
        ("numpy", "engine.plan is cuda-1x8: backend numpy has no plans, empty it"),
        ("fake", "engine.plan is cuda-1x8: backend fake has no plans, empty it"),
        ("auto", "engine.plan is cuda-1x8 and backend auto chose numpy: no NVIDIA driver; empty it"),
    ):
        with pytest.raises(EngineError, match=complaint):
            make_engine(EngineSpec(backend=backend, plan="cuda-1x8"), frames)


class Driver:
    """libcuda.so.1 as far as it is asked: capability, multiprocessors and shared memory of a block."""

    def __init__(self, status, n_devices, version=13_000, device=(9, 0, 132, 232_448)):
        self.cuInit = lambda flags: status
        self.n_devices = n_devices
        self.version = version
        self.attributes = dict(zip((75, 76, 16, 97), device, strict=True))

    def cuDeviceGetCount(self, pointer):
        pointer._obj.value = self.n_devices
        return 0

    def cuDriverGetVersion(self, pointer):
        pointer._obj.value = self.version
        return 0

    def cuDeviceGetAttribute(self, pointer, attribute, device):
        pointer._obj.value = self.attributes[attribute]
        return 0


def test_what_stands_in_cudas_way_is_named(monkeypatch):
    def without_driver(name):
        raise OSError(f"{name}: cannot open")

    monkeypatch.setitem(sys.modules, CUDA_MODULE, None)
    for driver, reason in (
        (without_driver, "libcuda.so.1 is not installed"),
        (lambda name: Driver(100, 0), "no device (CUDA error 100)"),
        (lambda name: Driver(0, 0), "no device (CUDA error 0)"),
        (lambda name: Driver(0, 1), "the CUDA engine cannot be imported"),
    ):
        monkeypatch.setattr(ctypes, "CDLL", driver)
        assert reason in cuda_obstacle()
    monkeypatch.setitem(sys.modules, CUDA_MODULE, types.ModuleType(CUDA_MODULE))
    monkeypatch.setattr(compiler, "find_build", lambda architecture: None)
    for driver, reason in (
        (Driver(0, 1, version=11_040), "the NVIDIA driver is of CUDA 11.4: the engine needs 12.0, update it"),
        (Driver(0, 1, device=(7, 5, 40, 65_536)), "the device is sm_75: the kernels need sm_80 or later"),
        (Driver(0, 1), ""),
    ):
        monkeypatch.setattr(ctypes, "CDLL", lambda name, driver=driver: driver)
        assert cuda_obstacle() == reason


def test_a_model_that_the_kernels_do_not_take_stands_in_cudas_way(monkeypatch):
    monkeypatch.setitem(sys.modules, CUDA_MODULE, types.ModuleType(CUDA_MODULE))
    monkeypatch.setattr(compiler, "find_build", lambda architecture: None)
    monkeypatch.setitem(PRESETS, "wide", replace(PRESETS["tiny"], num_attention_heads=18, head_dim=32))
    orin, h200 = (8, 7, 16, 166_912), (9, 0, 132, 232_448)
    for device, model, reason in (
        (h200, "qwen2.5-coder-3b", ""),
        (h200, "wide", "18 query heads on 2 KV heads: the CUDA kernels take at most 8 a KV head"),
        (orin, "tiny", ""),
        (
            orin,
            "qwen2.5-coder-1.5b",
            "bytes of shared memory a block on 16 multiprocessors and the device gives",
        ),
    ):
        monkeypatch.setattr(ctypes, "CDLL", lambda name, device=device: Driver(0, 1, device=device))
        found = cuda_obstacle(EngineSpec(model=model, n_slots=4096))
        assert reason in found and bool(reason) == bool(found)


def test_neither_nvcc_nor_cached_kernels_stand_in_cudas_way(monkeypatch, tmp_path):
    def without_nvcc():
        raise EngineError("nvcc was not found")

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(0, 1))
    monkeypatch.setitem(sys.modules, CUDA_MODULE, types.ModuleType(CUDA_MODULE))
    monkeypatch.setattr(compiler, "find_nvcc", without_nvcc)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cuda_obstacle() == (
        f"nvcc was not found; nor are these kernels for sm_90 in the cache {compiler.cache_directory()}"
    )


@pytest.mark.parametrize("backend", ["cuda", "fake"])
@pytest.mark.parametrize(
    ("asked_for", "words"),
    [
        ({"gives_signals": True}, "attention and value norms: use backend numpy, or a memory.policy that"),
        ({"embedding": "key_summary"}, "embedding key_summary: use backend numpy, or memory.embedding"),
    ],
)
def test_what_numpy_alone_gives_is_refused_of_the_others_in_one_line(frames, backend, asked_for, words):
    with pytest.raises(EngineError, match=f"backend {backend} has no {words}"):
        make_engine(EngineSpec(backend=backend, model="fake", **asked_for), frames)
    assert make_engine(EngineSpec(backend="auto", **asked_for), frames).configure().backend == "numpy"
