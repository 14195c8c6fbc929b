"""An engine without a model, for tests and for `vla-edge bench` of the loop itself; it computes no action.

`EngineSpec.model` holds its settings: `fake` or `fake:service_ms=10,steps=8,fail_after=100`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from vla_edge_ros.engine.interface import (
    EngineBusy,
    EngineError,
    EngineInfo,
    EngineSpec,
    FrameWork,
    PromptWork,
    StageTimes,
    WorkResult,
    WorkStatus,
    ring_blocks,
)
from vla_edge_ros.engine.linux import sleep_until
from vla_edge_ros.engine.mailbox import MAX_STEPS
from vla_edge_ros.engine.model_config import ACTION_ROWS
from vla_edge_ros.perception.frame_buffer import FrameBuffer

VOCABULARY_SIZE = 512
BLOCK_BYTES = 4096
"""What a block counts for in the host ring, which keeps nothing, as there are no keys or values."""

_LONGEST_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class FakeSettings:
    """service_ms: duration of any work. steps: K. fail_after: frames served before a pass raises (-1: never).

    hidden: embedding length. configure_ms: duration of `configure`.
    """

    service_ms: float = 0.0
    steps: int = 1
    fail_after: int = -1
    hidden: int = 8
    configure_ms: float = 0.0


def parse_settings(model: str) -> FakeSettings:
    """Settings from `fake[:NAME=VALUE,...]`; raises EngineError that names what is wrong."""
    name, colon, text = model.partition(":")
    kinds = {setting.name: setting.type for setting in fields(FakeSettings)}
    if name != "fake":
        raise EngineError(f"the fake engine takes the model fake or fake:NAME=VALUE,..., not {model!r}")
    values = {}
    for item in text.split(",") if colon else ():
        key, _, value = item.partition("=")
        if key not in kinds or key in values:
            raise EngineError(f"fake engine setting {item!r}: use each of {', '.join(kinds)} at most once")
        try:
            values[key] = kinds[key](value)
        except ValueError:
            raise EngineError(f"fake engine setting {item!r}: {key} takes {kinds[key].__name__}") from None
    settings = FakeSettings(**values)
    for setting, lowest, highest in (
        ("service_ms", 0, _LONGEST_MS),
        ("steps", 1, MAX_STEPS),
        ("fail_after", -1, 2**31),
        ("hidden", 1, 16000),
        ("configure_ms", 0, _LONGEST_MS),
    ):
        value = getattr(settings, setting)
        if not lowest <= value <= highest:
            raise EngineError(f"fake engine setting {setting}={value}: use {lowest} to {highest}")
    return settings


def fake_tokens(frame_index: int, steps: int, action_tokens: int) -> np.ndarray:
    """(K, A) int32: token of step k and dimension a is V - 1 - (index + 3 k + 5 a) mod 256."""
    k, a = np.ogrid[:steps, :action_tokens]
    return (VOCABULARY_SIZE - 1 - (frame_index + 3 * k + 5 * a) % ACTION_ROWS).astype(np.int32)


def fake_embedding(frame_index: int, hidden: int) -> np.ndarray:
    """(hidden,) float32: value j is cos(index * (j + 1) / 100), so that near frames are alike."""
    return np.cos(frame_index * np.arange(1, hidden + 1) / 100).astype(np.float32)


class FakeEngine:
    """Answers every work after `service_ms`, with tokens and embedding fixed by the frame's index.

    `now_ns` and `sleep_until` are the steady clock; tests on a virtual clock pass their own. Stage times are
    half prefill, half decode, which goes by the tokens decoded. It foresees nothing: a pass that would end
    later is stopped at its deadline.
    """

    def __init__(
        self,
        spec: EngineSpec,
        frames: FrameBuffer,
        now_ns: Callable[[], int] = time.monotonic_ns,
        sleep_until: Callable[[int], None] = sleep_until,
    ):
        self._spec = spec
        self._settings = parse_settings(spec.model)
        self._frames = frames
        self._now_ns = now_ns
        self._sleep_until = sleep_until
        self._service_ns = round(self._settings.service_ms * 1_000_000)
        self._in_flight: WorkResult | None = None
        self._failure: WorkResult | None = None
        self._n_frames = 0

    def configure(self) -> EngineInfo:
        self._sleep_until(self._now_ns() + round(self._settings.configure_ms * 1_000_000))
        return EngineInfo(
            backend="fake",
            plan_id=self._spec.model,
            vocabulary_size=VOCABULARY_SIZE,
            embedding_size=self._settings.hidden,
            ring_blocks=ring_blocks(self._spec.host_bytes, BLOCK_BYTES),
            block_bytes=BLOCK_BYTES,
        )

    def submit(self, work: PromptWork | FrameWork) -> None:
        if self._in_flight is not None:
            raise EngineBusy(f"work {work.work_id} was submitted while work {self._in_flight.work_id} runs")
        started_ns, service_ns = self._now_ns(), self._service_ns
        if isinstance(work, FrameWork):
            n_left_out = self._spec.action_tokens - len(work.action_slots)
            service_ns -= (service_ns - service_ns // 2) * n_left_out // self._spec.action_tokens
        self._in_flight = WorkResult(
            work.work_id,
            WorkStatus.DONE,
            stages=self._stages(service_ns),
            started_ns=started_ns,
            finished_ns=started_ns + service_ns,
        )
        if isinstance(work, FrameWork):
            self._look(self._in_flight, len(work.action_slots))
            is_late = 0 < work.deadline_ns < self._in_flight.finished_ns
            if is_late and self._in_flight.status is WorkStatus.DONE:
                self._stop(self._in_flight, max(started_ns, work.deadline_ns))

    def wait(self, until_ns: int) -> WorkResult | None:
        if self._failure is not None:
            return self._failure
        result = self._in_flight
        if result is None or result.finished_ns > until_ns:
            self._sleep_until(until_ns)
            return None
        self._sleep_until(result.finished_ns)
        self._in_flight = None
        if result.status is WorkStatus.FAILED:
            self._failure = result
        return result

    def evict(self, slots: np.ndarray) -> None:
        """There is nothing to forget."""

    def stash(self, place: int, slots: np.ndarray) -> None:
        """There is nothing to keep."""

    def restore(self, place: int, slots: np.ndarray) -> None:
        """There is nothing to bring back."""

    def close(self) -> None:
        """There is nothing to free."""

    def _look(self, result: WorkResult, n_actions: int) -> None:
        if self._n_frames == self._settings.fail_after:
            result.status = WorkStatus.FAILED
            result.error = f"the fake engine fails after {self._n_frames} frames"
            return
        frame = self._frames.peek()
        if frame is None:
            result.status = WorkStatus.NO_FRAME
            return
        self._n_frames += 1
        result.steps_done = n_actions
        shape = (self._settings.steps, n_actions)
        result.frame = frame
        result.tokens = fake_tokens(frame.index, *shape)
        result.top_probability = np.full(shape, 1.0, np.float32)
        result.entropy = np.zeros(shape, np.float32)
        result.embedding = fake_embedding(frame.index, self._settings.hidden)

    def _stages(self, elapsed_ns: int) -> StageTimes:
        prefill_ns = min(elapsed_ns, self._service_ns // 2)
        return StageTimes(prefill_ns=prefill_ns, decode_ns=elapsed_ns - prefill_ns)

    def _stop(self, result: WorkResult, now_ns: int) -> None:
        whole, done, n_actions = result.stages, self._stages(now_ns - result.started_ns), result.steps_done
        result.status, result.finished_ns, result.stages = WorkStatus.ABORTED, now_ns, done
        result.frame = result.tokens = result.top_probability = result.entropy = result.embedding = None
        result.steps_done = n_actions * done.decode_ns // max(1, whole.decode_ns)
        result.remaining = StageTimes(
            prefill_ns=whole.prefill_ns - done.prefill_ns, decode_ns=whole.decode_ns - done.decode_ns
        )
