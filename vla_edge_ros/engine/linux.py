"""What Linux offers beyond the standard library: exact waits, children that cannot outlive us, memory use."""

import contextlib
import ctypes
import errno
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

_CLOCK_MONOTONIC = 1
_TIMER_ABSTIME = 1
_PR_SET_PDEATHSIG = 1
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

libc = ctypes.CDLL(None, use_errno=True)


class Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


libc.clock_nanosleep.argtypes = (
    ctypes.c_int,
    ctypes.c_int,
    ctypes.POINTER(Timespec),
    ctypes.POINTER(Timespec),
)


class _PollFd(ctypes.Structure):
    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))


def sleep_until(until_ns: int) -> None:
    """Sleep until the steady clock reads `until_ns`; returns at once where it already does.

    clock_nanosleep to an absolute time: no drift between reading the clock and sleeping, and the same on
    every Python (time.sleep is absolute from 3.11 on only). The interpreter lock is free meanwhile.
    """
    target = Timespec(*divmod(max(0, until_ns), 1_000_000_000))
    while (error := libc.clock_nanosleep(_CLOCK_MONOTONIC, _TIMER_ABSTIME, target, None)) == errno.EINTR:
        pass
    if error:
        raise OSError(error, os.strerror(error))


class BoundedPoll:
    """Waits until one file descriptor is readable or closed by its peer, but not beyond a steady-clock time.

    `select.poll` rounds its timeout up to milliseconds and `select.select` refuses descriptors above 1023;
    ppoll does neither, and the interpreter lock is free while it waits.
    """

    def __init__(self, fd: int):
        self._timeout = Timespec()
        self._poll_fd = _PollFd(fd, select.POLLIN, 0)
        self._fds = ctypes.byref(self._poll_fd), ctypes.c_ulong(1)
        self._at_most = ctypes.byref(self._timeout)

    def is_readable_by(self, until_ns: int | None) -> bool:
        """True as soon as there is something to read; False once the steady clock is at `until_ns`."""
        timeout = None if until_ns is None else self._at_most
        while True:
            if until_ns is not None:
                remaining_ns = max(0, until_ns - time.monotonic_ns())
                self._timeout.seconds, self._timeout.nanoseconds = divmod(remaining_ns, 1_000_000_000)
            ready = libc.ppoll(*self._fds, timeout, None)
            if ready >= 0:
                return ready > 0
            if ctypes.get_errno() != errno.EINTR:
                raise OSError(ctypes.get_errno(), "ppoll failed")


def start_bound_module(
    module: str, arguments: Sequence[str], pass_fds: Sequence[int] = (), environment: Mapping[str, str] = {}
) -> subprocess.Popen:
    """Start `python -m module ARGUMENTS --parent-pid PID` as a child that dies with this process.

    The child must call `die_with_parent`. The kernel sends that signal when the *thread* that started the
    child ends, so a thread that lives as long as the child starts it. The child has a session of its own
    (Ctrl-C in the terminal does not reach it), this process's `sys.path`, and its standard output on the
    error stream. Scheduling policy and priority are those of the calling thread.
    """
    command = [sys.executable, "-m", module, *arguments, "--parent-pid", str(os.getpid())]
    started: queue.SimpleQueue = queue.SimpleQueue()

    def start_and_stay() -> None:
        try:
            process = subprocess.Popen(
                command,
                env=same_imports({**os.environ, **environment}),
                pass_fds=pass_fds,
                stdin=subprocess.DEVNULL,
                stdout=2,
                start_new_session=True,
            )
        except BaseException as error:
            started.put(error)
            return
        started.put(process)
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    threading.Thread(target=start_and_stay, name=f"{module} parent", daemon=True).start()
    outcome = started.get()
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def same_imports(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment`, changed so that a Python started with it imports what this one would."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {**environment, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def end_with_parent() -> None:
    """In a child before it runs its program: the kernel sends it SIGTERM when its parent's thread ends."""
    libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM))


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends; ignore the signals that a terminal or systemd
    sends to both, which the parent obeys."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent_pid:
        os._exit(1)


def process_memory(pid: int) -> int:
    """Resident bytes of a process (RSS of /proc/PID/statm, shared pages included); 0 once it has ended."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as statm:
            return int(statm.read().split()[1]) * _PAGE_BYTES
    except (FileNotFoundError, ProcessLookupError):
        return 0


def resident_bytes(pid: int) -> dict[str, int]:
    """Resident bytes of a process by kind: `anon`, `file` and `shmem` (Rss* of /proc/PID/status).

    Their sum is the RSS of `process_memory`. All 0 once the process has ended.
    """
    found = {"RssAnon": 0, "RssFile": 0, "RssShmem": 0}
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/status") as status:
        for line in status:
            name, _, value = line.partition(":")
            if name in found:
                found[name] = int(value.split()[0]) * 1024
    return {name.removeprefix("Rss").lower(): size for name, size in found.items()}


def process_cpu_s(pid: int) -> float:
    """Processor time in seconds, to 10 ms, of a process and its ended children; 0 once it has ended."""
    return process_cpu_ticks(pid) / os.sysconf("SC_CLK_TCK")


def process_cpu_ticks(pid: int) -> int:
    """Clock ticks used by a process and its ended children (utime to cstime of /proc/PID/stat)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(map(int, fields[11:15]))
