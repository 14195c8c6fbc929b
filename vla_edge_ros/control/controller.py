"""One tick, from the newest frame to one decision; clock, engine and publishers are passed in."""

import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from vla_edge_ros.actions.messages import GroupCommand
from vla_edge_ros.actions.planner import ActionPlanner
from vla_edge_ros.control.admission import Admission
from vla_edge_ros.control.clock import Clock
from vla_edge_ros.control.decision import Decision
from vla_edge_ros.control.events import (
    ClockJump,
    ControlConfig,
    Enable,
    EngineReplaced,
    Event,
    Instruction,
    ResetMemory,
    Retune,
)
from vla_edge_ros.control.ladder import Step
from vla_edge_ros.control.promise import Promise
from vla_edge_ros.control.record import TickRecord
from vla_edge_ros.control.reuse import Reuse
from vla_edge_ros.control.schedule import TickSchedule, TickTimes
from vla_edge_ros.control.sink import Sink
from vla_edge_ros.control.work import EngineFailed, WorkInFlight, recall_price_ns
from vla_edge_ros.engine.interface import Engine, EngineInfo, WorkResult, WorkStatus
from vla_edge_ros.memory.frame_memory import FrameMemory
from vla_edge_ros.perception.frame import FrameMeta
from vla_edge_ros.perception.frame_buffer import FrameBuffer
from vla_edge_ros.perception.frame_log import FrameLog

Hold = tuple[Decision, str]

_WHAT_IS_LESS = {
    Step.FEWER_TOKENS: "no whole pass fits: the first tokens were decoded, the last dimensions are held",
    Step.REUSE: "no pass: the picture is still that of the last one, whose action stands",
}
"""The reason of a FRESH tick that the ladder made so."""


@dataclass(slots=True)
class Totals:
    """Counts since the controller was made.

    skipped_frames: published, but overtaken by a newer one before any pass began.
    misses: ticks that are a `TickRecord.is_miss`.
    aborted_passes: stopped by the engine, since they could not end by their deadline.
    """

    ticks: int = 0
    skipped_frames: int = 0
    late_publishes: int = 0
    skipped_ticks: int = 0
    misses: int = 0
    aborted_passes: int = 0
    evictions: int = 0


class Controller:
    """Runs ticks on one thread; other threads speak to it through `post` alone.

    frames: the buffer that the camera callback writes and the engine reads.
    on_fault: called from the tick thread with what happened, when the engine fails or a tick has a defect;
        whoever replaces the engine posts `EngineReplaced`. Until then the engine is not touched.
    signatures: what frames are compared by, in place of the engine's embeddings.
    reuse: where the action of an unchanged picture may be used again.
    """

    def __init__(
        self,
        config: ControlConfig,
        clock: Clock,
        engine: Engine,
        info: EngineInfo,
        frames: FrameBuffer,
        memory: FrameMemory,
        planner: ActionPlanner,
        admission: Admission,
        on_fault: Callable[[str], None] = lambda error: None,
        signatures: FrameLog | None = None,
        reuse: Reuse | None = None,
    ) -> None:
        self.config = config
        self.memory = memory
        self.planner = planner
        self.admission = admission
        self.totals = Totals()
        self.promise = Promise()
        self.decision_counts = dict.fromkeys(Decision, 0)
        self.last_record: TickRecord | None = None
        self._clock = clock
        self._work = WorkInFlight(engine, clock, memory, admission, signatures, reuse)
        self._info = info
        self._frames = frames
        self._on_fault = on_fault
        self._events: deque[Event] = deque()
        self._schedule: TickSchedule | None = None
        self._instruction: Instruction | None = None
        self._last_tick = -1
        self._fresh_effect_ns = 0
        # Of the last action of which every token was decoded, since motion was last cancelled.
        self._whole_effect_ns: int | None = None
        self._is_enabled = False
        self._is_stopped = False
        self._fault: str | None = None
        # Set by a fault; it outlives the fault until motion is enabled again.
        self._is_latched = False

    @property
    def is_enabled(self) -> bool:
        return self._is_enabled

    @property
    def last_used_frame(self) -> int:
        """Index of the newest frame that was used or declared void, 0 where there is none."""
        return self._work.last_used_frame

    def post(self, event: Event) -> None:
        """Have `event` applied at the start of the next tick; may be called from any thread."""
        self._events.append(event)

    def begin(self, schedule: TickSchedule) -> None:
        """Start over on a new schedule: frames received before it are void, memory is empty, disabled."""
        self._schedule = schedule
        self._last_tick = -1
        self._fresh_effect_ns = schedule.origin_ns
        self._whole_effect_ns = None
        self._is_enabled = False
        self._is_stopped = False
        self.planner.reset()
        self._void_frames()
        # An enabling that no tick has seen was meant for the run before.
        for event in list(self._events):
            if isinstance(event, Enable):
                self._events.remove(event)
        self._refill_prompt()

    def stop(self, sink: Sink) -> None:
        """End motion for good: braking points and last commands. To be called when no tick runs any more."""
        now, ros_now = self._clock.pair()
        self._cancel(now, now, ros_now, sink)
        self._send_rest(sink)
        self._is_enabled = False

    def tick(self, tick: int, sink: Sink) -> TickRecord:
        """Run tick `tick` to its end and publish exactly one record; returns the record."""
        times = self._schedule.times(tick)
        now, ros_now = self._clock.pair()
        record = TickRecord(tick, times.start_ns, now, ros_now + times.effect_ns - now)
        record.skipped_ticks = tick - self._last_tick - 1
        self._last_tick = tick
        try:
            commands = self._run(record, times, sink)
            self._complete(record)
            sink.prepare(record)
            # All that can be done before is: from here on every microsecond may make the tick late.
            self._clock.sleep_until(times.cutoff_ns)
            record.woke_ns = self._clock.now_ns()
            for command in commands:
                sink.command(command)
        except Exception as error:  # a defect here must still end in one decision, and in no motion
            record.decision = Decision.FAULT
            record.reason = f"internal error: {type(error).__name__}: {error}"
            self._fail(record.reason, traceback.format_exc())
            self._rest(record, times, sink)
            self._complete(record)
            sink.prepare(record)
        sink.tick(record)
        self._finish(record, times, sink)
        return record

    def _run(self, record: TickRecord, times: TickTimes, sink: Sink) -> list[GroupCommand]:
        """Decide, and send what a trajectory controller takes; returns the commands for the cut-off."""
        self._apply_events(record, times, sink)
        record.hold_ns = max(0, times.effect_ns - self._fresh_effect_ns)
        overdue = self._result_of(self._work.take_overdue, record, record.started_ns)
        if not self._is_latched:
            self._work.fill_prompt(record.started_ns)
        hold = self._hold_before_work(record, record.started_ns, times)
        result = None
        if hold is None and record.step is Step.REUSE:
            result = self._work.reuse(record)
        elif hold is None:
            deadline_ns = self._deadline_ns(record)
            self._work.begin_pass(record, record.started_ns, deadline_ns, self._may_recall(record))
            result = self._result_of(self._work.await_pass, record, record.pass_cutoff_ns)
        record.decision, record.reason = self._decide(record, times, hold, result, overdue)
        self._act(record, times, sink)
        commands = self.planner.commands(times.effect_ns, record.hold_ns)
        return commands if self._is_enabled else []

    def _apply_events(self, record: TickRecord, times: TickTimes, sink: Sink) -> None:
        while self._events:
            event = self._events.popleft()
            record.events.append(event.to_json())
            if isinstance(event, Retune):
                self.config, self.admission.config = event.control, event.admission
                continue
            if isinstance(event, EngineReplaced):
                self._info = event.info
                self._fault = None
                self._work.engine_replaced()
                self._refill_prompt()
                continue
            if event == Enable(self._is_enabled) and not self._is_latched:
                continue
            self._cancel(record.started_ns, times.effect_ns, record.effect_stamp_ns, sink)
            match event:
                case Enable():
                    self._send_rest(sink)
                    self._is_enabled = event.is_enabled
                    if event.is_enabled and self._fault is None:
                        self._is_latched = False
                    self._fresh_effect_ns = times.effect_ns
                    self.planner.reset()
                case Instruction():
                    self._instruction = event
                    if self._fault is None:
                        self._work.instruct(event, record)
                case ResetMemory():
                    self._refill_prompt()
                case ClockJump():
                    self._void_frames()
                    self._refill_prompt()
                    self._fresh_effect_ns = times.effect_ns

    def _cancel(self, now_ns: int, effect_ns: int, stamp_ns: int, sink: Sink) -> None:
        """Drop what is queued and send each trajectory controller the point where it comes to rest."""
        self._whole_effect_ns = None
        for trajectory in self.planner.cancel(now_ns, effect_ns, stamp_ns):
            if self._is_enabled:
                sink.trajectory(trajectory)

    def _send_rest(self, sink: Sink) -> None:
        """The last commands before silence, since their controllers keep the last value for ever."""
        if self._is_enabled:
            for command in self.planner.rest_commands():
                sink.command(command)

    def _rest(self, record: TickRecord, times: TickTimes, sink: Sink) -> None:
        """Bring motion to rest after a defect, of which this may be a part as well."""
        try:
            self._cancel(record.started_ns, times.effect_ns, record.effect_stamp_ns, sink)
            self._send_rest(sink)
        except Exception as error:
            record.reason += f"; and stopping failed: {type(error).__name__}: {error}"

    def _void_frames(self) -> None:
        newest = self._frames.peek()
        self._work.last_used_frame = newest.index if newest is not None else 0

    def _refill_prompt(self) -> None:
        """Forget every frame and have the prompt written again; work in flight belongs to the past."""
        if self._instruction is not None:
            self._work.refill(self._instruction)

    def _result_of(
        self, look: Callable[[TickRecord, int, int], WorkResult | None], record: TickRecord, until_ns: int
    ) -> WorkResult | None:
        """What `look` finds of the work in flight; None where the engine has failed."""
        if self._fault is not None:
            return None
        try:
            return look(record, until_ns, self.config.stall_timeout_ns)
        except EngineFailed as failure:
            self._fail(str(failure), str(failure))
            return None

    def _deadline_ns(self, record: TickRecord) -> int:
        """When the pass that begins now is of no use any more, and the engine is to be free again.

        A late result that the next tick may use lives as long as its action does, not for ever: an engine
        that is busy with what nobody can use would cost the ticks in between.
        """
        if not self.config.uses_late_result:
            return record.pass_cutoff_ns
        return max(record.pass_cutoff_ns, self.planner.expiry_ns(record.frame_capture_ns))

    def _may_recall(self, record: TickRecord) -> bool:
        """Whether the pass is predicted to leave the time that a recall is priced at."""
        if not self._info.ring_blocks or record.step is not Step.FULL or record.is_probe:
            return False
        if record.predicted_ns is None:
            return False
        needed_ns = record.predicted_ns + (record.allowance_ns or 0) + recall_price_ns(self._info)
        return record.started_ns + needed_ns <= record.pass_cutoff_ns

    def _fail(self, reason: str, details: str) -> None:
        if self._fault is None:
            self._fault = reason
            self._is_latched = True
            self._on_fault(details)

    def _hold_before_work(self, record: TickRecord, now_ns: int, times: TickTimes) -> Hold | None:
        """The first hold that stands in the way of a pass, in the order of `Decision`; None if none does."""
        if self._is_latched:
            return Decision.HOLD_NO_FRAME, "stopped"
        newest = self._frames.peek()
        record.seen_frame = newest.index if newest is not None else 0
        if record.seen_frame <= self._work.last_used_frame:
            return Decision.HOLD_NO_FRAME, "no frame newer than the last used"
        _describe_frame(record, newest, now_ns)
        if record.frame_age_ns > self.config.max_frame_age_ns:
            return Decision.HOLD_STALE_FRAME, (
                f"the newest frame is {record.frame_age_ns / 1e6:.0f} ms old, "
                f"allowed are {self.config.max_frame_age_ns / 1e6:.0f} ms"
            )
        record.pass_cutoff_ns = self._schedule.pass_cutoff_ns(times, newest.capture_ns)
        if record.pass_cutoff_ns <= times.start_ns:
            return Decision.HOLD_STALE_FRAME, (
                f"the newest frame is {record.frame_age_ns / 1e6:.0f} ms old: its deadline, counted from "
                "capture, was over before the tick began"
            )
        if (busy := self._work.why_busy()) is not None:
            return Decision.HOLD_BUSY, busy
        memory = self.memory
        verdict = self.admission.ask(
            now_ns,
            record.pass_cutoff_ns,
            memory.context_tokens,
            len(memory.frames),
            lambda: self._work.can_reuse(record.seen_frame),
            len(memory.action_slots) if self._may_hold_dimensions(times) else 0,
        )
        record.step, record.prices_ns = verdict.step, verdict.prices_ns
        record.held_tokens, record.forgotten_frames = verdict.holds_tokens, verdict.forgets_frames
        record.predicted_ns = verdict.predicted_ns
        record.predicted_by_stage = verdict.predicted_by_stage
        record.allowance_ns = verdict.allowance_ns
        record.is_probe = verdict.is_probe
        if verdict.step is Step.HOLD:
            return Decision.HOLD_REFUSED, verdict.refusal
        return None

    def _may_hold_dimensions(self, times: TickTimes) -> bool:
        """Whether a part of an action is enough: no dimension is held for longer than all of them may be."""
        whole_ns = self._whole_effect_ns
        return whole_ns is not None and times.effect_ns - whole_ns <= self.config.max_hold_ns

    def _decide(
        self,
        record: TickRecord,
        times: TickTimes,
        hold: Hold | None,
        result: WorkResult | None,
        overdue: WorkResult | None,
    ) -> tuple[Decision, str]:
        """The tick's decision: the first that applies, in the order of `Decision`."""
        if self._fault is not None:
            return Decision.FAULT, self._fault
        if self._is_latched:
            return Decision.SAFE_STOP, "a fault was latched; call ~/enable to go on"
        if self._is_enabled and (not_ready := self.planner.why_not_ready(record.started_ns)) is not None:
            return Decision.SAFE_STOP, not_ready
        if hold is None:
            hold = self._use(record, result, times)
            if hold is None:
                return Decision.FRESH, _WHAT_IS_LESS.get(record.step, "")
        if self.config.uses_late_result and self._use(record, overdue, times) is None:
            return Decision.FRESH_LATE, f"the pass of an earlier tick, since {hold[1]}"
        if record.hold_ns > self.config.max_hold_ns:
            return Decision.SAFE_STOP, f"no fresh action for {record.hold_ns / 1e6:.0f} ms: {hold[1]}"
        return hold

    def _use(self, record: TickRecord, result: WorkResult | None, times: TickTimes) -> Hold | None:
        """Queue the action steps of a pass; returns the hold where it has none to give."""
        if result is None:
            late = "the pass had not finished at the cut-off"
            stops = record.own_pass is None and not self.config.uses_late_result
            return Decision.HOLD_LATE, f"{late}, which stops it" if stops else late
        if result.status is WorkStatus.ABORTED:
            return Decision.HOLD_LATE, (
                f"the engine stopped the pass after {result.steps_done} tokens: it could not end in time"
            )
        if result.status is WorkStatus.NO_FRAME:
            return Decision.HOLD_NO_FRAME, "the engine found no whole frame"
        accepted = self.planner.accept(
            result.tokens, self._info.vocabulary_size, result.frame.capture_ns, times.effect_ns
        )
        record.steps_left = accepted.steps_left
        record.steps_dropped = accepted.steps_dropped
        if accepted.steps_left == 0:
            return Decision.HOLD_LATE, accepted.refusal or "every action step was due too soon or is too old"
        if self._work.is_whole(result):
            self._whole_effect_ns = times.effect_ns
        _describe_frame(record, result.frame, record.started_ns)
        return None

    def _act(self, record: TickRecord, times: TickTimes, sink: Sink) -> None:
        """Send the trajectory of a fresh action, or bring motion to rest where the tick says stop."""
        if record.decision.is_fresh:
            self._fresh_effect_ns = times.effect_ns
            self._is_stopped = False
            record.hold_ns = 0
            if self._is_enabled:
                for trajectory in self.planner.trajectories(times.effect_ns, record.effect_stamp_ns):
                    sink.trajectory(trajectory)
                    record.trajectory_ns = self._clock.now_ns()
        elif not record.decision.is_hold and not self._is_stopped:
            self._is_stopped = True
            self._cancel(record.started_ns, times.effect_ns, record.effect_stamp_ns, sink)

    def _complete(self, record: TickRecord) -> None:
        """What the record says beside its decision."""
        record.is_enabled = self._is_enabled
        record.retained_frames = len(self.memory.frames)
        if record.decision is Decision.SAFE_STOP and record.step is Step.HOLD:
            record.step = Step.STOP
        record.action = self.planner.last_action
        record.joint_states += self.planner.joints.take_untold()

    def _finish(self, record: TickRecord, times: TickTimes, sink: Sink) -> None:
        record.published_ns = self._clock.now_ns()
        record.is_late = record.published_ns > times.effect_ns
        self.admission.settle(record.is_miss)
        self.promise.count(record, self.admission.config.target_miss_rate)
        self.decision_counts[record.decision] += 1
        totals = self.totals
        totals.ticks += 1
        totals.skipped_frames += record.skipped_frames
        totals.misses += record.is_miss
        totals.aborted_passes += sum(work.is_aborted for work in record.work)
        totals.evictions += len(record.journal)
        totals.late_publishes += record.is_late
        totals.skipped_ticks += record.skipped_ticks
        self.last_record = record
        sink.finished(record)


def _describe_frame(record: TickRecord, frame: FrameMeta, now_ns: int) -> None:
    record.frame_index = frame.index
    record.frame_stamp_ns = frame.stamp_ns
    record.frame_capture_ns = frame.capture_ns
    record.frame_receipt_ns = frame.receipt_ns
    record.frame_age_ns = frame.age_ns(now_ns)
