"""An engine on a virtual clock: the real arithmetic, with service times that are stated or were recorded."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
    """Every piece of work takes `service_ns`; stages are not told apart."""

    service_ns: int

    def times(self, work_id: int, now_ns: int) -> WorkTimes:
        end = now_ns + self.service_ns
        return WorkTimes(work_id, "", now_ns, now_ns, end, end, StageTimes())


class RecordedService:
    """Work takes the times that a run recorded under the same work id."""

    def __init__(self, recorded: Mapping[int, WorkTimes]) -> None:
        self._recorded = recorded

    def times(self, work_id: int, now_ns: int) -> WorkTimes:
        """What was recorded; work that the run did not see the end of never ends here either."""
        if work_id in self._recorded:
            return self._recorded[work_id]
        return WorkTimes(work_id, "", now_ns, now_ns, NEVER_NS, NEVER_NS)


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
        times = self._service.times(work.work_id, self._clock.now_ns())
        self._start(times)
        if times.kind == "frame" and times.frame_index is None:
            result = WorkResult(work.work_id, WorkStatus.NO_FRAME)
        else:
            self._engine.submit(work)
            result = self._engine.wait(NEVER_NS)
        result.started_ns, result.finished_ns, result.stages = (
            times.started_ns,
            times.finished_ns,
            times.stages,
        )
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

    def close(self) -> None:
        self._engine.close()
