"""The compiled kernels of a plan, loaded; and passes captured as CUDA graphs."""

import ctypes
from dataclasses import dataclass

import numpy as np

from vla_edge_ros.engine.cuda.compiler import Compiler, version_of
from vla_edge_ros.engine.cuda.device import Device, check
from vla_edge_ros.engine.cuda.plan import Plan
from vla_edge_ros.engine.interface import EngineError

SIZE_NAMES = (
    *("qkv", "output", "gate_up", "down", "head", "vision"),
    *("words", "prefill", "trace_floats", "command", "result"),
)
"""The order of SIZES in cuda/pack.cu."""

_POINTERS_BEFORE = (
    *("weights", "vision", "vision_bias", "norms", "qkv_bias", "rows", "rope"),
    *("cache", "ranked", "ranked_slots", "command", "host_command", "prompt_rows", "frame_buffer"),
)
_POINTERS_AFTER = ("words", "prefill", "result", "trace", "prefill_trace")


class Arguments(ctypes.Structure):
    """`Arguments` of cuda/workspace.cuh: device addresses."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in _POINTERS_BEFORE),
        ("pixel_offsets", ctypes.c_uint64 * 2),
        *((name, ctypes.c_uint64) for name in _POINTERS_AFTER),
    )


def command_dtype(n_slots: int) -> np.dtype:
    """`Command` of cuda/geometry.cuh."""
    return np.dtype(
        [
            *((name, np.uint32) for name in ("epoch", "n_context", "n_tokens", "n_steps")),
            *((name, np.uint32) for name in ("is_frame", "is_void", "is_aborted", "frame_index")),
            ("abort_ns", np.uint64),
            *((name, np.uint32) for name in ("prefill_layer_ns", "decode_layer_ns")),
            ("token_slots", np.int32, 32),
            ("context_slots", np.int32, n_slots),
        ]
    )


STAGE_MARKS = ("fetched_ns", "prefill_began_ns", "embedded_ns", "prefill_ended_ns")
"""Device times of a pass, in order; decoding follows, up to the last of `step_ended_ns`."""

_TIMES = ("fetched_ns", "prefill_began_ns", "prefill_ended_ns", "embedded_ns", "stopped_ns", "unused")


def result_dtype(hidden_size: int) -> np.dtype:
    """`Result` of cuda/geometry.cuh."""
    return np.dtype(
        [
            *((name, np.uint32) for name in ("is_void", "is_aborted", "steps_done", "frame_index")),
            ("frame_meta", np.int64, 4),
            *((name, np.uint64) for name in _TIMES),
            ("step_ended_ns", np.uint64, 8),
            ("actions", np.int32, 8),
            ("logits", np.float32, (8, 256)),
            ("embedding", np.float32, hidden_size),
        ]
    )


TRACED = "-DTRACED"
"""Built to write every operator's output, for checks."""

LOSES_SPLIT = "-DLOST_SPLIT=0"
"""Built with a fault, for a check that must find it: attention leaves out its first split."""


# A pass leaves in `Result` what an earlier one wrote, where it does not come to it.


def part_ends_ns(told: np.void) -> list[int]:
    """Device times at which copy, vision, prefill and the steps ended, as far as the pass came."""
    ends = [int(told["prefill_began_ns"]), int(told["embedded_ns"])]
    # A stopped prefill ends after it was stopped.
    if told["is_aborted"] and told["stopped_ns"] <= told["prefill_ended_ns"]:
        return ends
    return [*ends, int(told["prefill_ended_ns"]), *map(int, told["step_ended_ns"][: int(told["steps_done"])])]


def last_mark_ns(told: np.void) -> int:
    """The last device time that a pass left."""
    if told["is_void"]:
        return int(told["fetched_ns"])
    return int(told["stopped_ns"]) if told["is_aborted"] else part_ends_ns(told)[-1]


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel with its geometry; every kernel of a pass takes `Arguments` by value."""

    function: object
    grid: tuple[int, int]
    threads: int
    shared_bytes: int = 0
    is_cooperative: bool = False


KERNELS = ("pack", "decode", "prefill", "frame", "ranked")

BLOCK_LAUNCHES = ("fetch", "rank_context", "prefill")
"""What a block of tokens takes, in order; "decode" may follow."""

_NOT_FOR_THIS_DRIVER = ("NO_BINARY_FOR_GPU", "INVALID_IMAGE", "UNSUPPORTED_PTX_VERSION", "INVALID_PTX")


def load_module(device: Device, compiler: Compiler, name: str):
    """Raises EngineError where it cannot be compiled, or the driver does not take what the compiler made."""
    cubin = compiler.cubin(name)
    try:
        return check(device.driver.cuModuleLoadData(cubin))
    except EngineError as error:
        if not any(code in str(error) for code in _NOT_FOR_THIS_DRIVER):
            raise
        said = compiler.build.compiler
        advice = (
            f"update the driver, which is of CUDA {device.driver_version}, or use its nvcc"
            if version_of(said)[:2] > version_of(device.driver_version)[:2]
            else f"remove {compiler.build.directory}, and it is compiled again"
        )
        raise EngineError(
            f"the driver does not take {name}.cu for {device.architecture} as {said} compiled it: {advice} "
            f"({error})"
        ) from None


def read_sizes(device: Device, plan: Plan) -> dict[str, int]:
    """Bytes by SIZE_NAMES, known before anything is allocated. Raises EngineError."""
    module = load_module(device, Compiler(device.architecture, plan.defines("pack")), "pack")
    try:
        return _sizes(device, module)
    finally:
        check(device.driver.cuModuleUnload(module))


def _sizes(device: Device, module) -> dict[str, int]:
    return dict(zip(SIZE_NAMES, map(int, _constants(device, module, b"SIZES", len(SIZE_NAMES))), strict=True))


def _constants(device: Device, module, name: bytes, n: int) -> np.ndarray:
    """`n` 64-bit constants of a module."""
    address, _ = check(device.driver.cuModuleGetGlobal(module, name))
    return device.download(np.empty(n, np.uint64), int(address))


class Kernels:
    """All kernels of a plan on a device. Raises EngineError if they cannot be compiled or loaded.

    flags: TRACED, LOSES_SPLIT.
    """

    def __init__(self, device: Device, plan: Plan, flags: tuple[str, ...] = ()):
        self._device, self._driver = device, device.driver
        self._modules = {}
        try:
            self._open(plan, flags)
        except BaseException:
            self.close()
            raise

    def _open(self, plan: Plan, flags: tuple[str, ...]) -> None:
        device = self._device
        for name in KERNELS:
            compiler = Compiler(device.architecture, plan.defines(name) + flags)
            self._modules[name] = load_module(device, compiler, name)
        self.plan_id = plan.identity(compiler.build) + "".join(flags)
        self.sizes = _sizes(device, self._modules["pack"])
        persistent = {name: self._persistent(name, plan.grid) for name in ("prefill", "decode")}
        self.launches = {
            "fetch": Launch(self.function("frame", b"fetch"), (1, 1), 1024),
            "rank_context": Launch(
                self.function("ranked", b"rank_context"),
                (plan.n_chunks * plan.config.num_key_value_heads, plan.config.num_hidden_layers),
                256,
            ),
            **persistent,
        }

    def function(self, module: str, name: bytes):
        return check(self._driver.cuModuleGetFunction(self._modules[module], name))

    def _persistent(self, name: str, grid: int) -> Launch:
        shared, threads = (
            int(_constants(self._device, self._modules[name], constant, 1)[0])
            for constant in (b"SHARED_BYTES", b"BLOCK_THREADS")
        )
        if shared > self._device.shared_bytes:
            raise EngineError(
                f"{name} needs {shared} bytes of shared memory a block on {grid} multiprocessors, "
                f"{self._device.name} gives {self._device.shared_bytes}: choose a smaller model"
            )
        function = self.function(name, name.encode())
        attribute = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check(self._driver.cuFuncSetAttribute(function, attribute, shared))
        return Launch(function, (grid, 1), threads, shared, is_cooperative=True)

    def pack(self, name: str, source: int, packed: int, stream) -> None:
        """Pack the float32 matrix at `source` into `packed`, one of the first six names of SIZE_NAMES."""
        function = self.function("pack", f"pack_{name}".encode())
        values = (ctypes.c_uint64(source), ctypes.c_uint64(packed))
        pointers = (ctypes.c_void_p * 2)(*(ctypes.addressof(value) for value in values))
        check(
            self._driver.cuLaunchKernel(
                function, 1024, 1, 1, 256, 1, 1, 0, stream, ctypes.addressof(pointers), 0
            )
        )

    def launch(self, launch: Launch, arguments: Arguments, stream) -> None:
        driver = self._driver
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = *launch.grid, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = launch.threads, 1, 1
        config.sharedMemBytes, config.hStream = launch.shared_bytes, stream
        config.numAttrs = 0
        if launch.is_cooperative:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attribute.value.cooperative = 1
            config.attrs, config.numAttrs = [attribute], 1
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        check(driver.cuLaunchKernelEx(config, launch.function, ctypes.addressof(pointers), 0))

    def capture(self, names: tuple[str, ...], arguments: Arguments, stream):
        """An executable graph of these launches, one after another; `arguments` is copied."""
        driver = self._driver
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        check(driver.cuStreamBeginCapture(stream, mode))
        for name in names:
            self.launch(self.launches[name], arguments, stream)
        graph = check(driver.cuStreamEndCapture(stream))
        instantiated, destroyed = driver.cuGraphInstantiate(graph, 0), driver.cuGraphDestroy(graph)
        executable = check(instantiated)
        try:
            check(destroyed)
            check(driver.cuGraphUpload(executable, stream))
        except BaseException:
            check(driver.cuGraphExecDestroy(executable))
            raise
        return executable

    def close(self) -> None:
        for module in self._modules.values():
            check(self._driver.cuModuleUnload(module))
        self._modules = {}
