"""Acquire, release and fence on a 64-bit word of shared memory, for publishing between processes.

x86-64 keeps loads in order with loads and stores with stores by itself; Arm (every Jetson) does not, and
there a frame could be seen as published before its pixels are. So the version word goes through the real
atomics of libatomic (`__atomic_load_8`, `__atomic_store_8`, `atomic_thread_fence`).

An address must be aligned to 8 bytes and stay mapped during the call; neither is checked.
"""

import ctypes
import platform
from collections.abc import Callable
from typing import NamedTuple

_ACQUIRE, _RELEASE, _SEQ_CST = 2, 3, 5
"""GCC's __ATOMIC_ACQUIRE, __ATOMIC_RELEASE and __ATOMIC_SEQ_CST."""


class Atomics(NamedTuple):
    """load_acquire(address) -> int; store_release(address, value); fence(), between plain accesses."""

    load_acquire: Callable[[int], int]
    store_release: Callable[[int, int], None]
    fence: Callable[[], None]


def bind(library_name: str = "libatomic.so.1", machine: str | None = None) -> Atomics:
    """The atomics of this machine.

    Raises ImportError where libatomic is missing and the machine needs it.
    """
    try:
        # PyDLL keeps the interpreter lock: giving it up would cost more than these calls take.
        library = ctypes.PyDLL(library_name)
    except OSError:
        machine = machine or platform.machine()
        if machine in ("x86_64", "AMD64"):
            return Atomics(_plain_load, _plain_store, _plain_fence)
        raise ImportError(
            f"{library_name} was not found, and {machine} needs it to share frames between processes: "
            "install the package libatomic1 (apt install libatomic1)"
        ) from None
    load, store, thread_fence = library.__atomic_load_8, library.__atomic_store_8, library.atomic_thread_fence
    load.argtypes, load.restype = (ctypes.c_void_p, ctypes.c_int), ctypes.c_uint64
    store.argtypes, store.restype = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int), None
    thread_fence.argtypes, thread_fence.restype = (ctypes.c_int,), None
    return Atomics(
        load_acquire=lambda address: load(address, _ACQUIRE),
        store_release=lambda address, value: store(address, value, _RELEASE),
        fence=lambda: thread_fence(_SEQ_CST),
    )


# Enough on x86-64 alone: an aligned 8-byte access is one indivisible load or store, the processor reorders
# neither loads with loads nor stores with stores, and no compiler stands between two ctypes calls.
# A store followed by a load of another address may still swap; a frame buffer does not depend on that order.


def _plain_load(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def _plain_store(address: int, value: int) -> None:
    ctypes.c_uint64.from_address(address).value = value


def _plain_fence() -> None:
    pass


load_acquire, store_release, fence = bind()
