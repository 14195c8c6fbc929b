"""One CUDA device through its driver: context, memory and errors, all calls checked.

PyCUDA owns the context, allocations, streams and events; cuda-bindings loads modules and makes graphs, which
PyCUDA lacks. Both speak of the same driver handles.
"""

from vla_edge_ros.engine.interface import EngineError

_OLDEST_ARCHITECTURE = 80


def check(returned: tuple):
    """The values of a cuda-bindings call: none, one or a tuple. Raises EngineError unless it succeeded."""
    code, *values = returned
    if int(code) != 0:
        raise EngineError(f"CUDA call failed: {code.name} ({int(code)})")
    if len(values) == 1:
        return values[0]
    return tuple(values) or None


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
            if major * 10 + minor < _OLDEST_ARCHITECTURE:
                raise EngineError(
                    f"{device.name()} is sm_{major}{minor}: the kernels need sm_{_OLDEST_ARCHITECTURE}"
                )
            # Set before the context exists: a blocking wait leaves the processor to the control thread.
            check(driver.cuDevicePrimaryCtxSetFlags(ordinal, driver.CUctx_flags.CU_CTX_SCHED_BLOCKING_SYNC))
            self._context = device.retain_primary_context()
            self._context.push()
        except pycuda.Error as error:
            raise EngineError(f"the CUDA device cannot be used: {error}") from error
        attribute = pycuda.device_attribute
        self.name = device.name()
        self.architecture = f"sm_{major}{minor}"
        self.multiprocessors = device.get_attribute(attribute.MULTIPROCESSOR_COUNT)
        self.shared_bytes = device.get_attribute(attribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
        self.driver_version = ".".join(map(str, divmod(pycuda.get_driver_version(), 1000)))

    def used_bytes(self) -> int:
        """Memory in use on the device, of all processes, as the driver sees it."""
        free, total = self.pycuda.mem_get_info()
        return total - free

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
