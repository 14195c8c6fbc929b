"""Clocks that the controller can be given: the steady clock of the machine, or a virtual one for replay."""

import time
from collections.abc import Callable, Iterator
from typing import Protocol

from vla_edge_ros.engine.linux import sleep_until


class Clock(Protocol):
    def now_ns(self) -> int:
        """Steady nanoseconds."""

    def pair(self) -> tuple[int, int]:
        """One paired reading: (steady nanoseconds, ROS nanoseconds) of the same moment."""

    def sleep_until(self, time_ns: int) -> None:
        """Return at `time_ns` on the steady clock, at once where it is past."""


class SteadyClock:
    """CLOCK_MONOTONIC, paired with a ROS clock that is read through `ros_now_ns`."""

    def __init__(self, ros_now_ns: Callable[[], int] = time.time_ns) -> None:
        self._ros_now_ns = ros_now_ns

    now_ns = staticmethod(time.monotonic_ns)
    sleep_until = staticmethod(sleep_until)

    def pair(self) -> tuple[int, int]:
        before = time.monotonic_ns()
        ros = self._ros_now_ns()
        return (before + time.monotonic_ns()) // 2, ros


class VirtualClock:
    """A clock that starts at 0 and moves only when told to, delivering what arrives on the way at its time.

    arrivals: (time_ns, deliver) in order of time; `deliver()` is called with the clock standing at `time_ns`.
    """

    def __init__(self, arrivals: Iterator[tuple[int, Callable[[], None]]], ros_offset_ns: int = 0) -> None:
        self._now = 0
        self._arrivals = arrivals
        self._next = next(arrivals, None)
        self._ros_offset = ros_offset_ns

    def now_ns(self) -> int:
        return self._now

    def pair(self) -> tuple[int, int]:
        return self._now, self._now + self._ros_offset

    def sleep_until(self, time_ns: int) -> None:
        while self._next is not None and self._next[0] <= time_ns:
            arrival_ns, deliver = self._next
            self._now = max(self._now, arrival_ns)
            deliver()
            self._next = next(self._arrivals, None)
        self._now = max(self._now, time_ns)

    @property
    def is_exhausted(self) -> bool:
        return self._next is None
