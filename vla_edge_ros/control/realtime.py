"""Keeping time in Python: real-time priority, locked memory, and sleeps to absolute steady-clock times."""

import contextlib
import ctypes
import gc
import os
import resource
import sys
from collections.abc import Iterable

from vla_edge_ros.engine.linux import libc

SWITCH_INTERVAL_S = 0.0001
"""How long a thread that wakes up may wait for the interpreter lock while another runs bytecode."""

_PR_SET_TIMERSLACK = 29
_TIMER_SLACK_NS = 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 32 << 20
"""The most that glibc takes for the second on every version."""
_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4


def apply_realtime(priority: int) -> list[str]:
    """Make this process keep time as well as it is allowed to; one warning for each thing refused.

    SCHED_FIFO at `priority` (1 to 99; 0 means the normal scheduler) goes to every thread there is, those of
    DDS included, and is inherited by later ones; exact timers go to this thread and those that it starts.
    Raises ValueError.
    """
    set_exact_timers()
    keep_heap()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    if priority == 0:
        leave_fifo()
        return []
    refusal = set_fifo_priority(priority, _thread_ids())
    return [refusal] if refusal else []


def set_exact_timers() -> None:
    """Take off the 50 us by which Linux may delay a normal thread's wake-up; later threads inherit."""
    libc.prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(_TIMER_SLACK_NS))


def keep_heap() -> None:
    """Have glibc keep what is freed, up to 32 MB a piece, for what is allocated next.

    By default it maps every large block anew, and the kernel clears pages that it had a moment before: for
    half of the time for which taking a 640x480 image holds the interpreter lock (two cores of an EPYC).
    """
    with contextlib.suppress(AttributeError):  # another C library
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        libc.mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)


def set_fifo_priority(priority: int, thread_ids: Iterable[int] = (0,)) -> str:
    """Give threads SCHED_FIFO at `priority` (1 to 99); the refusal in one line, or an empty text.

    thread_ids: 0 is the calling thread. Raises ValueError.
    """
    if not 1 <= priority <= 99:
        raise ValueError(f"real-time priority {priority}: use 1 to 99")
    try:
        for thread_id in thread_ids:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setscheduler(thread_id, os.SCHED_FIFO, os.sched_param(priority))
    except PermissionError:
        limit = resource.getrlimit(resource.RLIMIT_RTPRIO)[0]
        return (
            f"SCHED_FIFO {priority} refused (rtprio limit {describe_limit(limit)}), others may delay ticks; "
            f"add 'USER - rtprio {priority}' to /etc/security/limits.conf and log in again, or give a "
            "container --cap-add=SYS_NICE"
        )
    return ""


def leave_fifo() -> None:
    """Give every thread of this process the normal scheduler; no privilege is needed."""
    for thread_id in _thread_ids():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setscheduler(thread_id, os.SCHED_OTHER, os.sched_param(0))


def _thread_ids() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/task")]


def priority_above_others() -> int:
    """One SCHED_FIFO priority above the calling thread's, 0 where that has another policy."""
    if os.sched_getscheduler(0) != os.SCHED_FIFO:
        return 0
    return min(99, os.sched_getparam(0).sched_priority + 1)


def step_above_others() -> None:
    """Put the calling thread one SCHED_FIFO priority above the process's other threads, where it has one.

    Under equal priorities a thread that wakes up waits for those that run on every core.
    """
    priority = priority_above_others()
    if priority:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))


def settle_memory() -> list[str]:
    """Lock the memory used so far and take the objects alive so far out of garbage collection.

    Call once everything is configured and warm; returns a warning where locking is refused. Later mappings
    are locked too, but only where the memlock limit is infinite: under a finite one they would fail, and with
    them the process. Pages are locked when first touched: to fill every mapped library and thread stack at
    once would take several times the memory, for pages that no tick uses.
    """
    gc.collect()
    gc.freeze()
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    later = _MCL_FUTURE if limit == resource.RLIM_INFINITY else 0
    if not libc.mlockall(_MCL_CURRENT | _MCL_ONFAULT | later):
        return []
    return [
        f"memory lock refused ({os.strerror(ctypes.get_errno())}, limit {describe_limit(limit)} bytes), "
        "pages may be swapped out; add 'USER - memlock unlimited' to /etc/security/limits.conf and log in "
        "again, or give a container --ulimit memlock=-1"
    ]


def describe_limit(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
