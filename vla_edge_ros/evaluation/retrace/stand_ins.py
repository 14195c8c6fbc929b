"""What stands in for the parts whose inputs no record holds: pictures, embeddings, and tokens in older ones.

Each gives what the record says came of them; when it is asked and what follows is the controller's own doing.
"""

from collections.abc import Callable, Mapping

import numpy as np

from vla_edge_ros.actions.planner import ActionPlanner
from vla_edge_ros.control.clock import VirtualClock
from vla_edge_ros.control.decision import Decision
from vla_edge_ros.control.record import WorkTimes
from vla_edge_ros.engine.interface import EngineInfo, FrameWork, PromptWork, WorkResult, WorkStatus
from vla_edge_ros.evaluation.virtual_engine import NEVER_NS
from vla_edge_ros.memory.eviction_policy import Victim, WhenFull
from vla_edge_ros.perception.frame import FrameMeta
from vla_edge_ros.perception.picture import CELLS_SHAPE

EMBEDDING_SIZE = 1
VOCABULARY = 256
INFO = EngineInfo("recorded", "recorded", VOCABULARY, EMBEDDING_SIZE)

NO_STEP_LEFT = "every action step was due too soon or is too old"
"""How the controller's reason ends where the steps were read and their times were not good."""
_SAFE_STOP_PREFIX = " ms: "


class RecordedClock(VirtualClock):
    """ros_offset_ns: ROS time minus steady time, as the tick that runs read them."""

    ros_offset_ns = 0

    def pair(self) -> tuple[int, int]:
        now_ns = self.now_ns()
        return now_ns, now_ns + self.ros_offset_ns


class RecordedEngine:
    """Hands out what the run recorded of each piece of work, at the time at which it was received.

    service: by work id. metas: of frames by index. confidence: (top_probability, entropy) by work id.
    failures: (tick's start, error) of each failure; the work in flight then fails at that time.
    """

    def __init__(
        self,
        clock: VirtualClock,
        service: Mapping[int, WorkTimes],
        metas: Mapping[int, FrameMeta],
        confidence: Mapping[int, tuple[float, float]],
        failures: list[tuple[int, str]],
    ) -> None:
        self._clock = clock
        self._service, self._metas, self._confidence = service, metas, confidence
        self._failures = failures
        self._work: PromptWork | FrameWork | None = None

    def submit(self, work: PromptWork | FrameWork) -> None:
        self._work = work

    def wait(self, until_ns: int) -> WorkResult | None:
        work = self._work
        times = self._service.get(work.work_id) if work is not None else None
        if work is not None and times is None and self._failures and self._failures[0][0] <= until_ns:
            self._work = None
            return WorkResult(work.work_id, WorkStatus.FAILED, self._failures.pop(0)[1])
        received_ns = NEVER_NS if times is None else times.received_ns
        self._clock.sleep_until(min(until_ns, received_ns))
        if received_ns > until_ns:
            return None
        self._work = None
        return self._result(work, times)

    def replaced(self) -> None:
        """A fresh engine has nothing to do."""
        self._work = None

    def _result(self, work: PromptWork | FrameWork, times: WorkTimes) -> WorkResult:
        result = WorkResult(
            work.work_id,
            WorkStatus.DONE,
            stages=times.stages,
            steps_done=times.steps_done,
            remaining=times.remaining,
            started_ns=times.started_ns,
            finished_ns=times.finished_ns,
        )
        if times.is_aborted:
            result.status = WorkStatus.ABORTED
        elif isinstance(work, FrameWork) and times.frame_index is None:
            result.status = WorkStatus.NO_FRAME
        elif isinstance(work, FrameWork):
            result.frame = self._metas[times.frame_index]
            result.tokens = _tokens(times, len(work.action_slots))
            top_probability, entropy = self._confidence.get(work.work_id, (0.0, 0.0))
            result.top_probability = np.full((1, 1), top_probability, np.float32)
            result.entropy = np.full((1, 1), entropy, np.float32)
            result.embedding = np.zeros(EMBEDDING_SIZE, np.float32)
        return result

    def evict(self, slots: np.ndarray) -> None:
        """Nothing is kept."""


class RecordedChoice(WhenFull):
    """An eviction policy that compares pictures or attention: whom it named is read from the journal.

    When it is asked, and how often, is memory's doing, not the record's.
    """

    def __init__(self, name: str, journal: Callable[[], list[dict]]) -> None:
        """journal: the lines of the tick that runs; those that were used are taken out."""
        self.name = name
        self._journal = journal
        self._frames: list[int] = []

    def prepare(self, capacity: int, embedding_size: int) -> None:
        self.clear()

    def observe(self, meta: FrameMeta, embedding: np.ndarray, signals: object) -> None:
        self._frames.append(meta.index)

    def forget(self, place: int) -> None:
        self._frames.pop(place)

    def clear(self) -> None:
        self._frames = []

    def _choose(self, n_frames: int) -> Victim:
        journal = self._journal()
        line = journal.pop(0) if journal else None
        if line is None or line["frame"] not in self._frames:
            return Victim(0, "the record names no frame here")
        return Victim(self._frames.index(line["frame"]), line.get("reason", ""))


class RecordedPictures:
    """Cells by which `Reuse` finds a picture unchanged where the run did.

    used: frames that a pass used. is_unchanged: whether the tick that runs found it so.
    """

    def __init__(self, used: set[int], is_unchanged: Callable[[], bool]) -> None:
        self._used, self._is_unchanged = used, is_unchanged

    def of(self, index: int) -> np.ndarray:
        is_alike = index in self._used or self._is_unchanged()
        return np.full(CELLS_SHAPE, 0.0 if is_alike else 1e9, np.float32)


class RecordedPlanner(ActionPlanner):
    """Takes the recorded action for the step that a pass gave: what is limited already, limits do not change.

    So limits, holds, stops and times are applied again to actions whose tokens an older record does not have.
    """

    record: dict
    """Of the tick that runs."""
    target: list[float]
    """The action that its step came to (`targets`)."""

    def _read(self, tokens: np.ndarray, vocabulary_size: int) -> list[list[float]]:
        reason = self.record["reason"]
        is_unread = self.record["steps_left"] == 0 and not reason.endswith(NO_STEP_LEFT)
        if is_unread and self.record["decision"] in (Decision.HOLD_LATE.value, Decision.SAFE_STOP.value):
            raise ValueError(reason.rpartition(_SAFE_STOP_PREFIX)[2])
        return [list(self.target)]

    def _add_deltas(self, steps: list[list[float]], start: np.ndarray, measured: np.ndarray) -> None:
        """The recorded action has been added up."""


def targets(ticks: list[dict], action_period_ns: int) -> list[list[float]]:
    """For each tick the action that its step had come to when it was followed for the last time.

    A step may last longer than a tick, and a command is limited tick by tick on its way there.
    """
    found = []
    for place, tick in enumerate(ticks):
        last = tick
        for later in (ticks[i] for i in range(place + 1, len(ticks))):
            is_over = later["scheduled_ns"] - tick["scheduled_ns"] >= action_period_ns
            if is_over or later["events"] or not Decision(later["decision"]).is_hold:
                break
            last = later
        found.append(last["action"] or [])
    return found


def _tokens(times: WorkTimes, n_actions: int) -> np.ndarray:
    """(K, n_actions) as recorded, or zeros where not; of another number one row, which is no action."""
    if times.tokens is None:
        return np.zeros((1, n_actions), np.int64)
    n_steps = len(times.tokens) // n_actions
    is_whole = n_steps * n_actions == len(times.tokens)
    return np.array(times.tokens, np.int64).reshape(n_steps if n_steps and is_whole else 1, -1)
