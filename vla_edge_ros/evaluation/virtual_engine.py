"""An engine on a virtual clock: the real arithmetic, with service times that are stated or were recorded."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from vla_edge_ros.control.clock import VirtualClock
from vla_edge_ros.control.record import WorkTimes
from vla_edge_ros.engine.interface import (
    Engine,
    EngineInfo,
    FrameWork,
    PromptWork,
    StageTimes,
    WorkResult,
    WorkStatus,
)

NEVER_NS = 1 << 62


@dataclass(frozen=True, slots=True)
class StatedService:
    """Every piece of work takes `service_ns`; stages are not told apart, and count as decoding.

    A pass that takes longer than its deadline allows is stopped there.
    """

    service_ns: int

    def times(self, work: PromptWork | FrameWork, now_ns: int) -> WorkTimes:
        end = now_ns + self.service_ns
        if not (isinstance(work, FrameWork) and 0 < work.deadline_ns < end):
            return WorkTimes(work.work_id, "", now_ns, now_ns, end, end)
        stopped = max(now_ns, work.deadline_ns)
        remaining = StageTimes(decode_ns=end - stopped)
        return WorkTimes(
            work.work_id, "", now_ns, now_ns, stopped, stopped, is_aborted=True, remaining=remaining
        )


class RecordedService:
    """Work takes the times that a run recorded under the same work id."""

    def __init__(self, recorded: Mapping[int, WorkTimes]) -> None:
        self._recorded = recorded

    def times(self, work: PromptWork | FrameWork, now_ns: int) -> WorkTimes:
        """What was recorded; work that the run did not see the end of never ends here either."""
        if work.work_id in self._recorded:
            return self._recorded[work.work_id]
        return WorkTimes(work.work_id, "", now_ns, now_ns, NEVER_NS, NEVER_NS)


class VirtualEngine:
    """Wraps an in-process engine: results are computed at submission and handed out at their virtual time.

    start: called with the work's times before the engine reads its frame, to have the camera that far.
    """

    def __init__(
        self,
        engine: Engine,
        clock: VirtualClock,
        service: StatedService | RecordedService,
        start: Callable[[WorkTimes], None],
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._service = service
        self._start = start
        self._result: WorkResult | None = None
        self._received_ns = 0

    def configure(self) -> EngineInfo:
        return self._engine.configure()

    def submit(self, work: PromptWork | FrameWork) -> None:
        times = self._service.times(work, self._clock.now_ns())
        self._start(times)
        if times.is_aborted:
            result = WorkResult(work.work_id, WorkStatus.ABORTED)
        elif times.kind == "frame" and times.frame_index is None:
            result = WorkResult(work.work_id, WorkStatus.NO_FRAME)
        else:
            # A deadline is of the virtual clock: whether it was met is in `times`.
            self._engine.submit(replace(work, deadline_ns=0) if isinstance(work, FrameWork) else work)
            result = self._engine.wait(NEVER_NS)
        result.started_ns, result.finished_ns = times.started_ns, times.finished_ns
        result.stages, result.steps_done, result.remaining = times.stages, times.steps_done, times.remaining
        self._result, self._received_ns = result, times.received_ns

    def wait(self, until_ns: int) -> WorkResult | None:
        if self._result is None or self._received_ns > until_ns:
            self._clock.sleep_until(until_ns)
            return None
        self._clock.sleep_until(self._received_ns)
        result, self._result = self._result, None
        return result

    def evict(self, slots: np.ndarray) -> None:
        self._engine.evict(slots)

    def stash(self, place: int, slots: np.ndarray) -> None:
        self._engine.stash(place, slots)

    def restore(self, place: int, slots: np.ndarray) -> None:
        self._engine.restore(place, slots)

    def close(self) -> None:
        self._engine.close()
