"""Work in flight: what the engine was given to do, and what memory and admission make of what came back."""

from dataclasses import dataclass

import numpy as np

from vla_edge_ros.control.admission import Admission
from vla_edge_ros.control.clock import Clock
from vla_edge_ros.control.events import Instruction
from vla_edge_ros.control.record import TickRecord, WorkTimes
from vla_edge_ros.control.reuse import Reuse
from vla_edge_ros.engine.interface import (
    Engine,
    EngineInfo,
    FrameWork,
    PromptWork,
    WorkResult,
    WorkStatus,
)
from vla_edge_ros.memory.frame_memory import Evicted, FrameMemory, NewPrompt
from vla_edge_ros.perception.frame import FrameMeta
from vla_edge_ros.perception.frame_log import FrameLog

TO_FIT = "for a pass that fits the time left"
"""The reason in the journal of a frame that the ladder had forgotten."""

COPY_BYTES_PER_S = 1_000_000_000
"""What a recall is priced by: 99 of 100 copies were faster on a busy machine (docs/forgetting.md)."""

_GRACE_NS = 100_000_000
"""A machine that was stopped as a whole (a container, a debugger) has this long to answer when it goes on."""


class EngineFailed(Exception):
    """The engine has failed or hangs, and is not to be touched before it has been replaced."""


@dataclass(slots=True)
class _Job:
    """Work that the engine has.

    epoch: tells whether memory was refilled since.
    due_ns, patience: it should be answered by then; `patience` stall timeouts later the engine is suspected.
    suspected_ns: when it first was.
    """

    work_id: int
    kind: str
    submitted_ns: int
    epoch: int
    due_ns: int
    patience: int = 1
    suspected_ns: int | None = None


class WorkInFlight:
    """Gives the engine one piece of work at a time and takes in what comes back; for the tick thread.

    signatures: what frames are compared by, in place of the engine's embeddings.
    reuse: by what a picture is found unchanged, where its action may be used again.
    last_used_frame: index of the newest frame that a pass has used or that was declared void; 0 for none.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        memory: FrameMemory,
        admission: Admission,
        signatures: FrameLog | None = None,
        reuse: Reuse | None = None,
    ) -> None:
        self.last_used_frame = 0
        self._engine = engine
        self._clock = clock
        self._memory = memory
        self._admission = admission
        self._signatures = signatures
        self._reuse = reuse
        self._job: _Job | None = None
        self._late: WorkResult | None = None
        self._n_submitted = 0
        self._epoch = 0
        self._prompt: NewPrompt | None = None
        self._prompt_is_filled = False

    def engine_replaced(self) -> None:
        """A fresh engine, with nothing in its cache and nothing to do."""
        self._job = None
        self._forget_action()
        self._admission.forget()

    def refill(self, instruction: Instruction) -> None:
        """Forget every frame and have the prompt written again; work in flight belongs to the past."""
        self._memory.set_prompt(0)
        self._take_prompt(self._memory.instruct(instruction.tokens, 0))

    def instruct(self, instruction: Instruction, record: TickRecord) -> None:
        """Have another prompt, with what memory keeps; work in flight belongs to the past."""
        prompt = self._memory.instruct(instruction.tokens, record.tick)
        self._evict(prompt.evicted, record)
        self._take_prompt(prompt)

    def _take_prompt(self, prompt: NewPrompt) -> None:
        self._epoch += 1
        self._late = None
        self._forget_action()
        if not self._memory.frames:
            self._admission.memory_emptied()
        self._prompt = prompt
        self._prompt_is_filled = prompt.is_cached

    def why_busy(self) -> str | None:
        """Why no pass can be begun now, in one line; None where one can."""
        if self._job is not None:
            return f"an earlier {self._job.kind} still runs"
        return "no instruction has arrived" if self._prompt is None else None

    def fill_prompt(self, now_ns: int) -> None:
        """Submit the prompt where it has to be written and the engine is free for it."""
        prompt = self._prompt
        if self._job is not None or prompt is None or self._prompt_is_filled:
            return
        work = PromptWork(self._next_id(), prompt.tokens, prompt.slots, prompt.context_slots)
        patience = max(1, len(work.tokens))
        self._submit(work, _Job(work.work_id, "prompt", now_ns, self._epoch, now_ns, patience))

    def begin_pass(self, record: TickRecord, now_ns: int, deadline_ns: int, may_recall: bool = False) -> None:
        """Make room by the eviction policy and start a pass over what is then retained.

        Where the ladder says so, more frames go than there must for want of room, or tokens are left out.
        may_recall: there is time to bring a forgotten frame back.
        """
        memory = self._memory
        # Whatever becomes of the pass, memory is another one than the last action's.
        self._forget_action()
        if record.forgotten_frames:
            self._evict(memory.forget(record.forgotten_frames, record.tick, TO_FIT), record)
        self._evict(memory.make_room(record.tick), record)
        if may_recall:
            record.journal += recall(self._engine, memory, record.tick)
        work = FrameWork(
            self._next_id(),
            memory.context_slots(),
            memory.frame_slots,
            memory.action_slots[: len(memory.action_slots) - record.held_tokens],
            deadline_ns,
            memory.prompt_tokens,
        )
        record.submitted_work = work.work_id
        self._submit(work, _Job(work.work_id, "frame", now_ns, self._epoch, deadline_ns))

    def is_whole(self, result: WorkResult) -> bool:
        """Whether every token of the DONE pass's action was decoded."""
        return result.tokens.shape[1] == len(self._memory.action_slots)

    def can_reuse(self, frame_index: int) -> bool:
        """Whether frame `frame_index` still shows what the last pass saw, so that its action stands."""
        return self._reuse is not None and self._reuse.holds_for(frame_index)

    def reuse(self, record: TickRecord) -> WorkResult:
        """The last pass's action for the frame that the tick described, which `can_reuse`."""
        frame = FrameMeta(
            record.frame_index, record.frame_stamp_ns, record.frame_capture_ns, record.frame_receipt_ns
        )
        self._count_used(frame.index, record)
        return WorkResult(0, WorkStatus.DONE, frame=frame, tokens=self._reuse.take())

    def take_overdue(self, record: TickRecord, now_ns: int, stall_timeout_ns: int) -> WorkResult | None:
        """What an earlier tick's pass came to, if it is known by now. Raises EngineFailed."""
        overdue = self._collect(record, now_ns, stall_timeout_ns) or self._late
        self._late = None
        return overdue

    def await_pass(self, record: TickRecord, cutoff_ns: int, stall_timeout_ns: int) -> WorkResult | None:
        """What the tick's own pass came to, None at the cut-off. Raises EngineFailed."""
        result = self._collect(record, cutoff_ns, stall_timeout_ns)
        if result is not None and result.finished_ns > cutoff_ns:
            self._late, result = result, None
        return result

    def _evict(self, evicted: list[Evicted], record: TickRecord) -> None:
        forget(self._engine, evicted)
        record.journal += [one.to_json() for one in evicted]

    def _next_id(self) -> int:
        self._n_submitted += 1
        return self._n_submitted

    def _submit(self, work: PromptWork | FrameWork, job: _Job) -> None:
        self._job = job
        self._engine.submit(work)

    def _collect(self, record: TickRecord, until_ns: int, stall_timeout_ns: int) -> WorkResult | None:
        """Wait for the work in flight; returns a pass's result if it still belongs to this memory."""
        job = self._job
        if job is None:
            return None
        result = self._engine.wait(until_ns)
        if result is None:
            _check_answers(job, until_ns, stall_timeout_ns)
            return None
        self._job = None
        if result.status is WorkStatus.FAILED:
            raise EngineFailed(result.error)
        times = WorkTimes(
            job.work_id,
            job.kind,
            job.submitted_ns,
            result.started_ns,
            result.finished_ns,
            # The end of the wait that saw it: a replay of that wait at this time sees it too.
            min(self._clock.now_ns(), until_ns),
            result.stages,
            result.status is WorkStatus.ABORTED,
            result.steps_done,
            result.remaining,
        )
        record.work.append(times)
        if times.is_aborted:
            self._admission.observe_aborted(
                result.stages + result.remaining, times.total_ns + result.remaining.total_ns
            )
        if result.frame is not None:
            self._use(result, times, record)
        if job.epoch != self._epoch:
            return None
        if job.kind == "prompt":
            self._prompt_is_filled = True
            self._memory.prompt_written()
            return None
        if result.status is WorkStatus.DONE:
            # A late result is used in a tick that may collect another one into the same arrays.
            result.tokens = result.tokens.copy()
            if self._reuse is not None and self.is_whole(result):
                self._reuse.decoded(result.frame.index, result.tokens)
            else:
                # A part of an action is not used again: the rest of it would be held for longer.
                self._forget_action()
            embedding = embedding_of(result, self._signatures)
            if self._memory.retain(result.frame, embedding, record.tick, result.signals):
                times.retained_frame = result.frame.index
        return result

    def _use(self, result: WorkResult, times: WorkTimes, record: TickRecord) -> None:
        times.frame_index = result.frame.index
        times.tokens = result.tokens.ravel().tolist()
        self._count_used(result.frame.index, record)
        record.top_probability = _mean(result.top_probability[0])
        record.entropy = _mean(result.entropy[0])
        self._admission.observe(result.stages, times.total_ns)

    def _count_used(self, index: int, record: TickRecord) -> None:
        record.skipped_frames += max(0, index - self.last_used_frame - 1)
        self.last_used_frame = max(self.last_used_frame, index)

    def _forget_action(self) -> None:
        if self._reuse is not None:
            self._reuse.forget()


def forget(engine: Engine, evicted: list[Evicted]) -> None:
    """Have the engine forget what memory has evicted, and keep what its host ring is to keep."""
    if not evicted:
        return
    for one in evicted:
        if one.ring_place is not None:
            engine.stash(one.ring_place, one.slots)
    engine.evict(np.concatenate([one.slots for one in evicted]))


def recall(engine: Engine, memory: FrameMemory, tick: int) -> list[dict]:
    """Bring back what `FrameMemory.recall` finds; returns the journal's lines."""
    recalled = memory.recall(tick)
    if recalled is None:
        return []
    forget(engine, [recalled.evicted])
    engine.restore(recalled.ring_place, recalled.slots)
    return [recalled.evicted.to_json()]


def recall_price_ns(info: EngineInfo) -> int:
    """Of one block from the host ring and another one to it."""
    return 2 * info.block_bytes * 1_000_000_000 // COPY_BYTES_PER_S


def embedding_of(result: WorkResult, signatures: FrameLog | None) -> np.ndarray:
    """What the frame of a DONE pass is compared by: its signature where there are some, else the engine's."""
    if signatures is None:
        return result.embedding
    signature = signatures.of(result.frame.index)
    # Zero is like nothing: the frame stays until time alone lets it go.
    return signature if signature is not None else np.zeros(signatures.shape, np.float32)


def _mean(values: np.ndarray) -> float:
    """The bits of `values.mean()`, which is Python code of NumPy's that takes longer than the sum."""
    return float(values.dtype.type(np.add.reduce(values) / len(values)))


def _check_answers(job: _Job, now_ns: int, stall_timeout_ns: int) -> None:
    """Raises EngineFailed where the engine has been silent for too long."""
    if now_ns - job.due_ns <= job.patience * stall_timeout_ns:
        return
    if job.suspected_ns is None:
        job.suspected_ns = now_ns
    if now_ns - job.suspected_ns >= _GRACE_NS:
        raise EngineFailed(
            f"the engine hangs: a {job.kind} should have been answered "
            f"{(now_ns - job.due_ns) / 1e6:.0f} ms ago (engine.stall_timeout_ms)"
        )
