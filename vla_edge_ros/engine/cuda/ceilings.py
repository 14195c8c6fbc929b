"""What device memory gives: the best of several kernels that only read, and a copy."""

import ctypes

from vla_edge_ros.engine.cuda.compiler import Compiler
from vla_edge_ros.engine.cuda.device import Device, check

_BYTES = 3 << 30
_REPEATS = 7


def measure_ceilings(device: Device) -> dict[str, float]:
    """`read_ceiling_gbps` and `copy_ceiling_gbps` (read + write): medians over 3 GiB of random data."""
    driver = device.driver
    module = check(driver.cuModuleLoadData(Compiler(device.architecture).cubin("bandwidth")))
    stream = check(driver.cuStreamCreate(0))
    begin, end = (check(driver.cuEventCreate(0)) for _ in range(2))
    source, target = (device.allocate(_BYTES, "the bandwidth measurement") for _ in range(2))
    words = _BYTES // 16

    def launch(name: bytes, blocks: int, threads: int, *values: int) -> None:
        function = check(driver.cuModuleGetFunction(module, name))
        boxed = [ctypes.c_uint64(value) for value in values]
        pointers = (ctypes.c_void_p * len(boxed))(*(ctypes.addressof(value) for value in boxed))
        check(
            driver.cuLaunchKernel(
                function, blocks, 1, 1, threads, 1, 1, 0, stream, ctypes.addressof(pointers), 0
            )
        )

    def gbps(n_bytes: int, run) -> float:
        times_ms = []
        for _ in range(_REPEATS):
            check(driver.cuEventRecord(begin, stream))
            run()
            check(driver.cuEventRecord(end, stream))
            check(driver.cuEventSynchronize(end))
            times_ms.append(check(driver.cuEventElapsedTime(begin, end)))
        return n_bytes / sorted(times_ms)[_REPEATS // 2] / 1e6

    for buffer in (source, target):
        launch(b"fill_random", 2048, 256, buffer, words)
    geometries = [
        (name, device.multiprocessors * blocks, threads)
        for name in (b"read_4", b"read_8", b"read_16")
        for blocks in (1, 2, 4, 8)
        for threads in (256, 512, 1024)
    ]
    sink = target
    reads = [gbps(_BYTES, lambda g=g: launch(*g, source, words, sink)) for g in geometries]
    copies = [gbps(2 * _BYTES, lambda: check(driver.cuMemcpyDtoDAsync(target, source, _BYTES, stream)))]
    copies += [
        gbps(
            2 * _BYTES,
            lambda b=blocks: launch(b"copy_words", device.multiprocessors * b, 512, source, target, words),
        )
        for blocks in (2, 4, 8)
    ]
    for buffer in (source, target):
        device.free(buffer)
    return {"read_ceiling_gbps": max(reads), "copy_ceiling_gbps": max(copies)}
