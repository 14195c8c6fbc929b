"""Faults that are planted in an engine: what is slow is slow once, or until it ends."""

import re
import shutil
import signal
import subprocess

import numpy as np
import pytest

from vla_edge_ros.engine.fake import FakeEngine
from vla_edge_ros.engine.interface import EngineSpec, FrameWork, WorkStatus
from vla_edge_ros.nodes import fault_engine
from vla_edge_ros.nodes.fault_engine import (
    CUDA,
    NAN,
    SLOW,
    SLOW_ONCE,
    STORE_NOWHERE,
    USUAL,
    Wanted,
    plant_in_cuda,
    plant_in_fake,
)
from vla_edge_ros.nodes.fault_gpu_hog import BURN
from vla_edge_ros.perception.frame_buffer import FrameBuffer

MS = 1_000_000


@pytest.fixture(autouse=True)
def handlers():
    """Those of the process that runs the tests, put back."""
    before = {n: signal.getsignal(n) for n in range(signal.SIGRTMIN, signal.SIGRTMIN + 5)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def passes(service_ms: float, *asked: int | None) -> list[int]:
    """Durations in ms of passes without a deadline, the signals of `asked` coming before each."""
    now = [0]
    frames = FrameBuffer.create()
    frames.write(np.zeros((64, 128, 3), np.uint8), 1, 1, 1)
    engine = FakeEngine(
        EngineSpec("fake", f"fake:service_ms={service_ms}"),
        frames,
        lambda: now[0],
        lambda until_ns: now.__setitem__(0, max(now[0], until_ns)),
    )
    engine.configure()
    wanted = Wanted()
    plant_in_fake(engine, wanted)
    found, slots = [], np.arange(39, dtype=np.int32)
    for number in asked:
        if number is not None:
            signal.raise_signal(number)
        engine.submit(FrameWork(1, slots[:0], slots[:32], slots[32:]))
        result = engine.wait(1 << 60)
        assert result.status is WorkStatus.DONE
        found.append((result.finished_ns - result.started_ns) // MS)
    frames.close()
    return found


def test_a_stage_is_slow_in_one_pass_alone():
    assert passes(10, None, SLOW_ONCE, None, None) == [10, 100, 10, 10]


def test_a_stage_is_slow_until_that_is_over_and_too_slow_for_a_tick_however_fast_it_was():
    assert passes(1, None, SLOW, None, None, USUAL, None) == [1, 41, 41, 41, 1, 1]


class StubDecoder:
    """Writes down what is done to the device."""

    def __init__(self):
        self.done = []
        self.device = self
        self.driver = self
        self.stream = 7
        self.arena = {"norms": 4096}

    def fill(self, address, byte, n_bytes):
        self.done.append(("fill", address, byte, n_bytes))

    def synchronize(self):
        self.done.append("synchronize")

    def cuModuleLoadData(self, image):
        return 0, image

    def cuModuleGetFunction(self, module, name):
        return 0, name

    def cuLaunchKernel(self, function, *rest):
        self.done.append((function, rest[7]))
        return (0,)


class StubEngine:
    def __init__(self):
        self._decoder = StubDecoder()

    def _launch(self, work):
        self._decoder.done.append("pass")

    def _tell(self, work, told):
        pass


def test_in_the_cuda_engine_a_fault_comes_right_before_one_pass_in_its_own_context():
    engine, wanted = StubEngine(), Wanted()
    plant_in_cuda(engine, wanted)
    work = FrameWork(1, None, None, None)
    for number in (None, NAN, CUDA, None):
        if number is not None:
            signal.raise_signal(number)
        engine._launch(work)
        engine._tell(work, None)
    filled = ("fill", 4096, 0xFF, 4), "synchronize"
    assert engine._decoder.done == ["pass", *filled, "pass", (b"store_nowhere", 7), "pass", "pass"]
    assert np.isnan(np.frombuffer(b"\xff" * 4, np.float32)[0])


def test_in_the_cuda_engine_a_slow_pass_is_launched_at_its_deadline_at_the_latest(monkeypatch):
    engine, wanted = StubEngine(), Wanted()
    slept_s = []
    monkeypatch.setattr(fault_engine.time, "sleep", slept_s.append)
    monkeypatch.setattr(fault_engine.time, "monotonic_ns", lambda: 1_000 * MS)
    plant_in_cuda(engine, wanted)
    signal.raise_signal(SLOW)
    for deadline_ms in (0, 1_025, 1_500, 900):
        work = FrameWork(1, None, None, None, deadline_ms * MS)
        engine._launch(work)
        engine._tell(work, None)
    assert slept_s == [0.04, 0.025, 0.04, 0.0]


@pytest.mark.parametrize("source", [STORE_NOWHERE, BURN], ids=["store_nowhere", "burn"])
def test_the_kernels_can_be_assembled_and_do_something(source, tmp_path):
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        pytest.skip("ptxas is not installed (CUDA toolkit)")
    file = tmp_path / "kernel.ptx"
    file.write_text(source)
    command = [ptxas, "-v", "-arch=sm_90", str(file), "-o", str(tmp_path / "kernel.cubin")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(re.search(r"Used (\d+) registers", done.stderr).group(1)) >= 4


def test_the_engines_process_is_found_whether_it_can_have_faults_or_not():
    from vla_edge_ros.nodes.engine_process import MODULES

    assert fault_engine.__name__.encode() in MODULES
