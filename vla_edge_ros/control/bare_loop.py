"""The bare sleep loop that the control loop's lateness is compared with, in a process of its own.

It sleeps to the cut-off of every tick and counts the wake-ups that come after the tick's effect time: what
this machine's timer and scheduler alone make late. Missed ticks are skipped by the control loop's rule.
"""

import argparse
import math
import mmap
import os
import sys
import time
from collections.abc import Callable

from vla_edge_ros.control.realtime import set_exact_timers, set_fifo_priority
from vla_edge_ros.control.schedule import next_tick
from vla_edge_ros.engine.linux import die_with_parent, sleep_until, start_bound_module

_TICKS, _LATE, _SKIPPED, _MAX_ERROR_NS, _BINS = range(5)
_BINS_PER_OCTAVE = 16
_N_BINS = 24 * _BINS_PER_OCTAVE
_COUNTS_BYTES = 8 * (_BINS + _N_BINS)


class BareLoop:
    """Starts the loop and reads its counts, which it leaves in memory shared with this process.

    Tick k starts at start_ns + k * period_ns; `cutoff_ns` and `effect_ns` are offsets from a tick's start.
    fifo_priority: SCHED_FIFO priority of the control loop's thread, 0 for the normal scheduler.
    Counting begins with the first tick that starts after the process is up, about 0.1 s after the call.
    Raises ValueError. Reads may be one tick old, and counts may differ by the tick being written.
    """

    def __init__(self, start_ns: int, period_ns: int, cutoff_ns: int, effect_ns: int, fifo_priority: int = 0):
        if not 0 <= cutoff_ns <= effect_ns <= period_ns or not period_ns:
            raise ValueError(
                f"bare loop: cut-off {cutoff_ns} ns, effect {effect_ns} ns and period {period_ns} ns "
                "must be in this order, and the period positive"
            )
        counts_fd = os.memfd_create("vla_edge_bare_loop")
        try:
            os.ftruncate(counts_fd, _COUNTS_BYTES)
            self._counts = _map_counts(counts_fd)
            values = {
                "counts-fd": counts_fd,
                "start-ns": start_ns,
                "period-ns": period_ns,
                "cutoff-ns": cutoff_ns,
                "effect-ns": effect_ns,
                "fifo-priority": fifo_priority,
            }
            arguments = [f"--{name}={value}" for name, value in values.items()]
            self._process = start_bound_module("vla_edge_ros.control.bare_loop", arguments, (counts_fd,))
        finally:
            os.close(counts_fd)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def ticks(self) -> int:
        """Wake-ups so far."""
        return self._counts[_TICKS]

    @property
    def late(self) -> int:
        """Wake-ups after their tick's effect time."""
        return self._counts[_LATE]

    @property
    def skipped(self) -> int:
        """Ticks whose whole period passed in one sleep."""
        return self._counts[_SKIPPED]

    @property
    def max_error_ns(self) -> int:
        """The latest wake-up after its cut-off."""
        return self._counts[_MAX_ERROR_NS]

    def error_percentile_ns(self, percent: float) -> int:
        """Delay after the cut-off that `percent` of the ticks kept within, at most 4.5 % + 45 ns too high."""
        bins = self._counts[_BINS:].tolist()
        rank = math.ceil(percent / 100 * sum(bins))
        for index, count in enumerate(bins):
            rank -= count
            if rank <= 0:
                return min(_upper_edge_ns(index), self.max_error_ns)
        return self.max_error_ns

    def to_json(self) -> dict:
        """The counts and wake-up errors so far."""
        return {
            "ticks": self.ticks,
            "late": self.late,
            "skipped": self.skipped,
            "error_ns": {f"p{p:g}": self.error_percentile_ns(p) for p in (50, 99, 99.9)}
            | {"max": self.max_error_ns},
        }

    def close(self) -> None:
        """Stop the loop; the counts stay readable. Safe to call twice."""
        self._process.kill()
        self._process.wait()


def run_loop(
    counts: memoryview,
    start_ns: int,
    period_ns: int,
    cutoff_ns: int,
    effect_ns: int,
    now_ns: Callable[[], int] = time.monotonic_ns,
    sleep_until: Callable[[int], None] = sleep_until,
) -> None:
    """Count for ever into `counts`, int64 words as laid out above."""
    tick = max(0, (now_ns() - start_ns) // period_ns + 1)
    while True:
        tick_start_ns = start_ns + tick * period_ns
        sleep_until(tick_start_ns + cutoff_ns)
        woke_ns = now_ns()
        error_ns = max(0, woke_ns - tick_start_ns - cutoff_ns)
        counts[_TICKS] += 1
        counts[_LATE] += woke_ns > tick_start_ns + effect_ns
        counts[_MAX_ERROR_NS] = max(counts[_MAX_ERROR_NS], error_ns)
        counts[_BINS + _bin(error_ns)] += 1
        following = next_tick(tick, woke_ns, start_ns, period_ns)
        counts[_SKIPPED] += following - tick - 1
        tick = following


def _bin(error_ns: int) -> int:
    """Bins grow by 2 ** (1 / 16) from 1 us on, to 16 s."""
    return min(_N_BINS - 1, int(_BINS_PER_OCTAVE * math.log2(1 + error_ns / 1000)))


def _upper_edge_ns(index: int) -> int:
    return round(1000 * (2 ** ((index + 1) / _BINS_PER_OCTAVE) - 1))


def _map_counts(fd: int) -> memoryview:
    return memoryview(mmap.mmap(fd, _COUNTS_BYTES)).cast("q")


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in (
        "--counts-fd",
        "--start-ns",
        "--period-ns",
        "--cutoff-ns",
        "--effect-ns",
        "--fifo-priority",
        "--parent-pid",
    ):
        parser.add_argument(name, type=int, required=True)
    arguments = parser.parse_args()
    die_with_parent(arguments.parent_pid)
    set_exact_timers()
    refusal = set_fifo_priority(arguments.fifo_priority) if arguments.fifo_priority else ""
    if refusal:
        sys.exit(f"bare loop: {refusal}")
    run_loop(
        _map_counts(arguments.counts_fd),
        arguments.start_ns,
        arguments.period_ns,
        arguments.cutoff_ns,
        arguments.effect_ns,
    )


if __name__ == "__main__":
    main()
