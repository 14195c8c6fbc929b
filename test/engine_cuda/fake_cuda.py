"""A CUDA driver that computes nothing: it knows what is still held, and fails on demand."""

import ctypes
import sys
from enum import IntEnum
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import numpy as np

from vla_edge_ros.engine.cuda import compiler
from vla_edge_ros.engine.cuda.compiler import Compiler
from vla_edge_ros.engine.cuda.kernels import SIZE_NAMES, command_dtype, result_dtype

TOTAL_BYTES = 16_000_000_000
CONTEXT_BYTES = 500_000_000


class Result(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209
    CUDA_ERROR_UNKNOWN = 999


class FakeDriver:
    """The functions of cuda-bindings' driver that the engine calls.

    fail_at: number of the call that fails, from 1 on: it has made nothing, but what it frees is freed.
    fail_with: function name -> error, each time.
    logit: what every pass comes to.
    pass_ns: device time of a pass by the options that the latest decode kernel was compiled with.
    held: (kind, handle) of what was made and not destroyed yet.
    """

    CU_MEMHOSTALLOC_DEVICEMAP = CU_MEMHOSTREGISTER_DEVICEMAP = 2
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUctx_flags = SimpleNamespace(CU_CTX_SCHED_BLOCKING_SYNC=4)
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)
    CUlaunchAttributeID = SimpleNamespace(CU_LAUNCH_ATTRIBUTE_COOPERATIVE=2)

    def __init__(self, hidden_size: int, n_slots: int):
        self.fail_at, self.fail_with, self.calls = 0, {}, []
        self.pass_ns = lambda options: 1_000_000
        self.logit = 0.0
        self.held: set[tuple[str, int]] = set()
        self._sizes: dict[int, int] = {}
        self._next = 0x7000_0000_0000
        self._globals: dict[int, bytes] = {}
        self._host: dict[int, np.ndarray] = {}
        self._options = ""
        self._result_dtype = result_dtype(hidden_size)
        sizes = dict.fromkeys(SIZE_NAMES, 4096)
        sizes["command"] = self.command_bytes = -(-command_dtype(n_slots).itemsize // 8) * 8
        sizes["result"] = -(-self._result_dtype.itemsize // 8) * 8
        self.constants = {
            b"SIZES": np.array([sizes[name] for name in SIZE_NAMES], np.uint64).tobytes(),
            b"SHARED_BYTES": np.uint64(200_000).tobytes(),
            b"BLOCK_THREADS": np.uint64(256).tobytes(),
        }

    @property
    def free_bytes(self) -> int:
        held = sum(self._sizes[handle] for kind, handle in self.held if kind == "device memory")
        return TOTAL_BYTES - CONTEXT_BYTES - held

    def __getattr__(self, name: str):
        if not name.startswith("cu"):
            raise AttributeError(name)
        work = getattr(type(self), f"_{name}", lambda self, *arguments: ())

        def call(*arguments):
            self.calls.append(name)
            before = set(self.held)
            values = work(self, *arguments)
            code = self.fail_with.get(name, Result.CUDA_SUCCESS)
            if len(self.calls) == self.fail_at:
                code = Result.CUDA_ERROR_UNKNOWN
            if code:
                self.held &= before
            return (code, *values)

        return call

    def _make(self, kind: str, size: int = 0) -> tuple[int]:
        handle, self._next = self._next, self._next + max(256, size)
        self.held.add((kind, handle))
        self._sizes[handle] = size
        return (handle,)

    def _drop(self, kind: str, handle: int) -> tuple:
        self.held.remove((kind, handle))
        return ()

    def _cuMemAlloc(self, n_bytes):
        return self._make("device memory", n_bytes)

    def _cuMemFree(self, address):
        return self._drop("device memory", address)

    def _cuMemcpyDtoH(self, host, address, n_bytes):
        ctypes.memmove(host, self._globals[address], n_bytes)
        return ()

    def _cuModuleLoadData(self, cubin):
        if b"STREAM_COPIES" in cubin:
            self._options = cubin.decode(errors="replace")
        return self._make("module")

    def _cuModuleUnload(self, module):
        return self._drop("module", module)

    def _cuModuleGetGlobal(self, module, name):
        assert ("module", module) in self.held
        address = self._next = self._next + 256
        self._globals[address] = self.constants[name]
        return address, len(self.constants[name])

    def _cuModuleGetFunction(self, module, name):
        assert ("module", module) in self.held
        return (name,)

    def _cuStreamCreate(self, flags):
        return self._make("stream")

    def _cuStreamDestroy(self, stream):
        return self._drop("stream", stream)

    def _cuMemHostAlloc(self, n_bytes, flags):
        memory = np.zeros(n_bytes, np.uint8)
        self._host[memory.ctypes.data] = memory
        self.held.add(("host memory", memory.ctypes.data))
        return (memory.ctypes.data,)

    def _cuMemFreeHost(self, address):
        return self._drop("host memory", address)

    def _cuMemHostRegister(self, address, n_bytes, flags):
        self.held.add(("registration", address))
        return ()

    def _cuMemHostUnregister(self, address):
        return self._drop("registration", address)

    def _cuMemHostGetDevicePointer(self, address, flags):
        return (address,)

    def _cuStreamEndCapture(self, stream):
        return self._make("graph")

    def _cuGraphInstantiate(self, graph, flags):
        return self._make("executable graph")

    def _cuGraphDestroy(self, graph):
        return self._drop("graph", graph)

    def _cuGraphExecDestroy(self, graph):
        return self._drop("executable graph", graph)

    def _cuGraphLaunch(self, graph, stream):
        assert ("executable graph", graph) in self.held
        results = [m for m in self._host.values() if m.nbytes // 8 == -(-self._result_dtype.itemsize // 8)]
        told = results[-1][: self._result_dtype.itemsize].view(self._result_dtype)[0]
        told["logits"] = self.logit
        told["fetched_ns"], told["step_ended_ns"][-1] = 1_000, 1_000 + self.pass_ns(self._options)
        return ()

    class CUlaunchConfig(SimpleNamespace):
        pass

    class CUlaunchAttribute(SimpleNamespace):
        def __init__(self):
            super().__init__(value=SimpleNamespace())


class FakePycuda(ModuleType):
    class Error(Exception):
        pass

    device_attribute = SimpleNamespace(
        MULTIPROCESSOR_COUNT="multiprocessors", MAX_SHARED_MEMORY_PER_BLOCK_OPTIN="shared_bytes"
    )

    def __init__(self, driver: FakeDriver):
        super().__init__("pycuda.driver")
        self._driver = driver
        self.capability, self.driver_version = (9, 0), 13_000
        self.attributes = {"multiprocessors": 132, "shared_bytes": 232_448}

        class Device:
            count = staticmethod(lambda: 1)
            name = staticmethod(lambda: "Fake GPU")
            pci_bus_id = staticmethod(lambda: "0000:00:00.0")
            compute_capability = staticmethod(lambda: self.capability)
            get_attribute = staticmethod(self.attributes.__getitem__)

            def __init__(self, ordinal):
                pass

            @staticmethod
            def retain_primary_context():
                driver.held |= {("context", 1)}
                return SimpleNamespace(
                    push=lambda: driver.held.add(("current context", 1)),
                    pop=lambda: driver.held.remove(("current context", 1)),
                    detach=lambda: driver.held.remove(("context", 1)),
                )

        self.Device = Device

    def init(self) -> None:
        pass

    def get_driver_version(self) -> int:
        return self.driver_version

    def mem_get_info(self) -> tuple[int, int]:
        return self._driver.free_bytes, TOTAL_BYTES


def install(monkeypatch, cache, hidden_size: int, n_slots: int) -> tuple[FakeDriver, FakePycuda]:
    """Put the fake in the place of pycuda, cuda-bindings and nvcc; `cache`: where kernels are kept."""
    driver = FakeDriver(hidden_size, n_slots)
    pycuda = FakePycuda(driver)
    packages = {name: ModuleType(name) for name in ("pycuda", "cuda", "cuda.bindings")}
    packages["pycuda"].driver = packages["pycuda.driver"] = pycuda
    packages["cuda"].bindings = packages["cuda.bindings"]
    packages["cuda.bindings"].driver = packages["cuda.bindings.driver"] = driver
    for name, package in packages.items():
        if isinstance(package, ModuleType):
            package.__spec__ = ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, package)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setattr(compiler, "find_nvcc", lambda: cache / "nvcc")
    monkeypatch.setattr(compiler, "_nvcc_version", lambda nvcc: "13.0.48")
    monkeypatch.setattr(Compiler, "cubin", lambda self, name: f"{name} {self._flags}".encode())
    return driver, pycuda
