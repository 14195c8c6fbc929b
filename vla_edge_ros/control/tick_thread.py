"""The thread that keeps the clock of the control loop."""

import threading
import time
from collections.abc import Callable

from vla_edge_ros.control.clock import Clock
from vla_edge_ros.control.controller import Controller
from vla_edge_ros.control.schedule import TickSchedule
from vla_edge_ros.control.sink import Sink


def run_ticks(
    controller: Controller,
    schedule: TickSchedule,
    clock: Clock,
    sink: Sink,
    should_stop: Callable[[], bool],
) -> None:
    """Sleep to each tick's absolute start and run it, skipping those that were wholly missed."""
    tick = schedule.following(-1, clock.now_ns())
    while True:
        clock.sleep_until(schedule.times(tick).start_ns)
        if should_stop():
            return
        controller.tick(tick, sink)
        tick = schedule.following(tick, clock.now_ns())


class TickThread:
    """Runs ticks until stopped. One plain thread: executors starve timers of this period.

    prepare: called first on the new thread, to give it its priority.
    on_error: called with the exception if a tick could not even publish; the thread then ends.
    cpu_ns: processor time that the thread has used, known once it has ended.
    """

    def __init__(
        self,
        controller: Controller,
        schedule: TickSchedule,
        clock: Clock,
        sink: Sink,
        prepare: Callable[[], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self.cpu_ns = 0
        self._is_stopping = threading.Event()

        def run() -> None:
            try:
                prepare()
                run_ticks(controller, schedule, clock, sink, self._is_stopping.is_set)
            except Exception as error:
                on_error(error)
            finally:
                self.cpu_ns = time.thread_time_ns()

        self._thread = threading.Thread(target=run, name="tick", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Ask for the end and wait for it, at most `timeout_s`; returns whether the thread has ended."""
        self._is_stopping.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()
