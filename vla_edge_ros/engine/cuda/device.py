"""One CUDA device through its driver: context, memory and errors, all calls checked.

PyCUDA owns the context, allocations, streams and events; cuda-bindings loads modules and makes graphs, which
PyCUDA lacks. Both speak of the same driver handles.
"""

import ctypes

from vla_edge_ros.engine.interface import EngineError

_OLDEST_ARCHITECTURE = 80
_OLDEST_DRIVER = 12_000
"""CUDA 12.0: the first whose graphs hold cooperative launches and whose drivers take bulk copies (sm_90)."""


def check(returned: tuple):
    """The values of a cuda-bindings call: none, one or a tuple. Raises EngineError unless it succeeded."""
    code, *values = returned
    if int(code) != 0:
        raise EngineError(f"CUDA call failed: {code.name} ({int(code)})")
    if len(values) == 1:
        return values[0]
    return tuple(values) or None


def cuda_version(number: int) -> str:
    """12040 is 12.4."""
    return f"{number // 1000}.{number % 1000 // 10}"


def require_fit(name: str, driver_version: int, major: int, minor: int) -> None:
    """Raises EngineError where the driver or the device is too old."""
    if driver_version < _OLDEST_DRIVER:
        raise EngineError(
            f"the NVIDIA driver is of CUDA {cuda_version(driver_version)}: the engine needs "
            f"{cuda_version(_OLDEST_DRIVER)}, update it"
        )
    if major * 10 + minor < _OLDEST_ARCHITECTURE:
        raise EngineError(f"{name} is sm_{major}{minor}: the kernels need sm_{_OLDEST_ARCHITECTURE} or later")


class _NvmlMemory(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_ulonglong) for name in ("total", "free", "used"))


def free_bytes(pci_bus_id: str) -> int | None:
    """Free memory of a device before this process has a context there, or None where NVML does not say.

    It tells the memory of other processes from the context's, which the driver counts together.
    """
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if nvml.nvmlInit_v2():
        return None
    try:
        handle, memory = ctypes.c_void_p(), _NvmlMemory()
        failed = nvml.nvmlDeviceGetHandleByPciBusId_v2(pci_bus_id.encode(), ctypes.byref(handle))
        failed = failed or nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
        return None if failed else int(memory.free)
    finally:
        nvml.nvmlShutdown()


class Device:
    """The primary context of a device, current in the thread that made this object.

    Raises EngineError, one line, where there is no driver, no device or no binding.
    """

    def __init__(self, ordinal: int = 0):
        try:
            import pycuda.driver as pycuda
        except ImportError as error:
            raise EngineError(f"engine.backend cuda needs pycuda and a CUDA driver: {error}") from error
        try:
            from cuda.bindings import driver
        except ImportError as error:
            raise EngineError(f"engine.backend cuda needs cuda-bindings: {error}") from error
        self.pycuda, self.driver = pycuda, driver
        try:
            pycuda.init()
            if pycuda.Device.count() <= ordinal:
                raise EngineError(f"no CUDA device {ordinal}: the driver shows {pycuda.Device.count()}")
            device = pycuda.Device(ordinal)
            major, minor = device.compute_capability()
            driver_version = pycuda.get_driver_version()
            require_fit(device.name(), driver_version, major, minor)
            # Set before the context exists: a blocking wait leaves the processor to the control thread.
            self._free_before = free_bytes(device.pci_bus_id())
            check(driver.cuDevicePrimaryCtxSetFlags(ordinal, driver.CUctx_flags.CU_CTX_SCHED_BLOCKING_SYNC))
            self._context = device.retain_primary_context()
            self._context.push()
        except pycuda.Error as error:
            raise EngineError(f"the CUDA device cannot be used: {error}") from error
        attribute = pycuda.device_attribute
        self.name = device.name()
        self.driver_version = cuda_version(driver_version)
        self.architecture = f"sm_{major}{minor}"
        self.multiprocessors = device.get_attribute(attribute.MULTIPROCESSOR_COUNT)
        self.shared_bytes = device.get_attribute(attribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)

    def used_bytes(self) -> int:
        """Memory in use on the device, of all processes, as the driver sees it."""
        free, total = self.pycuda.mem_get_info()
        return total - free

    def process_bytes(self) -> int:
        """Memory in use beyond what was when this object was made; of all processes where NVML is silent."""
        free, total = self.pycuda.mem_get_info()
        before = total if self._free_before is None else min(self._free_before, total)
        return max(0, before - free)

    def allocate(self, n_bytes: int, purpose: str) -> int:
        """The address of `n_bytes` of device memory. Raises EngineError if there are not so many."""
        try:
            return int(check(self.driver.cuMemAlloc(n_bytes)))
        except EngineError as error:
            free, total = self.pycuda.mem_get_info()
            raise EngineError(
                f"no {n_bytes / 1e6:.0f} MB of device memory for {purpose}: {free / 1e6:.0f} of "
                f"{total / 1e6:.0f} MB are free on {self.name} ({error})"
            ) from error

    def free(self, address: int) -> None:
        check(self.driver.cuMemFree(address))

    def upload(self, address: int, array) -> None:
        """Copy a C-contiguous array to the device, and wait."""
        check(self.driver.cuMemcpyHtoD(address, array.ctypes.data, array.nbytes))

    def download(self, array, address: int):
        """Copy from the device into a C-contiguous array, wait, and return it."""
        check(self.driver.cuMemcpyDtoH(array.ctypes.data, address, array.nbytes))
        return array

    def copy(self, to: int, source: int, n_bytes: int) -> None:
        """Within the device."""
        check(self.driver.cuMemcpyDtoD(to, source, n_bytes))

    def fill(self, address: int, byte: int, n_bytes: int) -> None:
        check(self.driver.cuMemsetD8(address, byte, n_bytes))

    def synchronize(self) -> None:
        check(self.driver.cuCtxSynchronize())

    def make_current(self) -> None:
        """For another thread than the one that opened the device."""
        self._context.push()

    def close(self) -> None:
        self._context.pop()
        self._context.detach()
