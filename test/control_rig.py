"""A controller with real memory, planner and frame buffer around a scripted engine and a virtual clock."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vla_edge_ros.actions.planner import ActionConfig, ActionPlanner
from vla_edge_ros.actions.policy import load_policy
from vla_edge_ros.control.admission import Admission, AdmissionConfig
from vla_edge_ros.control.clock import VirtualClock
from vla_edge_ros.control.controller import Controller
from vla_edge_ros.control.events import ControlConfig, Instruction
from vla_edge_ros.control.record import TickRecord
from vla_edge_ros.control.schedule import TickSchedule
from vla_edge_ros.engine.interface import EngineInfo, FrameWork, StageTimes, WorkResult, WorkStatus
from vla_edge_ros.memory.frame_memory import FrameMemory
from vla_edge_ros.memory.policies import make_policy
from vla_edge_ros.perception.frame_buffer import FrameBuffer

MS = 1_000_000
PERIOD = 33 * MS
DEADLINE = 33 * MS
MARGIN = 2 * MS
VOCABULARY = 513
CONFIG = {
    "max_frame_age_ns": 100 * MS,
    "max_hold_ns": 300 * MS,
    "uses_late_result": False,
    "stall_timeout_ns": 2000 * MS,
}
INFO = EngineInfo("scripted", "scripted", VOCABULARY, 4)
POLICIES = Path(__file__).resolve().parents[1] / "config/policies"


ABORT_NS = 300_000


class Aborts(NamedTuple):
    """A pass is stopped after so long, and says that it had so long to go at least."""

    after_ns: int
    remaining_ns: int


class ScriptedEngine:
    """Takes `service_ms` for a pass, or what `script` says; obeys the protocol strictly.

    script: place of a piece of work (from 0) -> milliseconds, "fail", "no_frame", "hang", or Aborts (a
        prompt is not stopped).
    heeds_deadlines: a pass that would end later is stopped `ABORT_NS` after its deadline; an engine whose
        last step is a long one does not. What it knows of what is to come is `service_ms`.
    """

    heeds_deadlines = False

    def __init__(self, clock, frames, service_ms=20.0, steps=1, action_tokens=7):
        self.clock, self.frames, self.service_ms, self.steps = clock, frames, service_ms, steps
        self.action_tokens = action_tokens
        self.script: dict[int, float | str] = {}
        self.submitted: list = []
        self.evicted: list[np.ndarray] = []
        self.stashed: list[int] = []
        self.restored: list[int] = []
        self.is_dead = False
        self._pending = None
        self._ends_ns = 0

    def script_next(self, does):
        """Say what becomes of the work that is submitted next."""
        self.script[len(self.submitted)] = does

    def submit(self, work):
        assert self._pending is None, "work was submitted while other work ran"
        assert not self.is_dead, "work was submitted to a dead engine"
        does = self.script.get(len(self.submitted), self.service_ms if isinstance(work, FrameWork) else 1.0)
        if isinstance(does, Aborts) and not isinstance(work, FrameWork):
            does = 1.0
        self.submitted.append(work)
        now = self.clock.now_ns()
        result = WorkResult(work.work_id, WorkStatus.DONE, started_ns=now)
        if does == "fail":
            result.status, result.error, does = WorkStatus.FAILED, "the engine process ended", 1.0
        elif does == "no_frame":
            result.status, does = WorkStatus.NO_FRAME, 1.0
        elif does == "hang":
            does = 1e9
        elif isinstance(work, FrameWork) and (stopped := self._stopped(work, does, now)) is not None:
            result.status = WorkStatus.ABORTED
            result.remaining = StageTimes(decode_ns=stopped.remaining_ns)
            does = stopped.after_ns / MS
        elif isinstance(work, FrameWork):
            n_actions = len(work.action_slots)
            assert 1 <= n_actions <= self.action_tokens
            result.steps_done = n_actions
            result.frame = self.frames.peek()
            shape = (self.steps, n_actions)
            result.tokens = np.full(shape, VOCABULARY - 128, np.int32)
            result.top_probability = np.full(shape, 0.5, np.float32)
            result.entropy = np.full(shape, 1.0, np.float32)
            result.embedding = np.ones(4, np.float32)
        self._ends_ns = result.finished_ns = now + round(does * MS)
        result.stages = StageTimes(prefill_ns=round(does * MS) // 4, decode_ns=round(does * MS) // 2)
        self._pending = result

    def _stopped(self, work, does, now):
        if isinstance(does, Aborts):
            return does
        end_ns = now + round(does * MS)
        if not (self.heeds_deadlines and 0 < work.deadline_ns < end_ns):
            return None
        after_ns = max(0, work.deadline_ns - now) + ABORT_NS
        return Aborts(after_ns, max(0, round(self.service_ms * MS) - after_ns))

    def wait(self, until_ns):
        if self._pending is None or self._ends_ns > until_ns:
            self.clock.sleep_until(until_ns)
            return None
        self.clock.sleep_until(self._ends_ns)
        result, self._pending = self._pending, None
        self.is_dead = result.status is WorkStatus.FAILED
        return result

    def evict(self, slots):
        self.evicted.append(slots)

    def stash(self, place, slots):
        self.stashed.append(place)

    def restore(self, place, slots):
        assert place in self.stashed, "what was not kept cannot come back"
        self.restored.append(place)


class Sink:
    def __init__(self, clock):
        self.clock = clock
        self.trajectories, self.commands, self.ticks, self.records = [], [], [], []
        self.prepared = []

    def trajectory(self, trajectory):
        self.trajectories.append((self.clock.now_ns(), trajectory))

    def command(self, command):
        self.commands.append((self.clock.now_ns(), command.group, list(command.values)))

    def prepare(self, record):
        self.prepared.append((self.clock.now_ns(), record.tick, record.decision, record.reason))

    def tick(self, record):
        assert self.prepared[-1][1:] == (record.tick, record.decision, record.reason)
        self.ticks.append((self.clock.now_ns(), record.tick))

    def finished(self, record):
        self.records.append(record)


class Rig:
    """frames_ms: when frames arrive (capture = receipt), in ms after S_0.

    policy: a policy, or the name of a bundled one. eviction: the name of an eviction policy.
    admission: the name of a rule. heeds_deadlines: of the engine. prompt_slots, keeps_frames: of memory.
    ring_blocks, block_bytes: of the engine's host ring. counts_from_capture: of the schedule.
    """

    def __init__(
        self,
        frames_ms=None,
        service_ms=20.0,
        steps=1,
        policy="demo_arm",
        n_slots=1024,
        eviction="fifo",
        admission="ema",
        signatures=None,
        heeds_deadlines=False,
        prompt_slots=0,
        keeps_frames=False,
        ring_blocks=0,
        block_bytes=0,
        counts_from_capture=False,
        **config,
    ):
        frames_ms = np.arange(1, 5000, 16.67) if frames_ms is None else frames_ms
        self.frames = FrameBuffer.create()
        self.faults: list[str] = []
        self._pixels = np.zeros((64, 128, 3), np.uint8)
        self.clock = VirtualClock(((round(ms * MS), self.publish) for ms in frames_ms), ros_offset_ns=10**18)
        self.policy = load_policy(POLICIES / f"{policy}.yaml") if isinstance(policy, str) else policy
        self.engine = ScriptedEngine(self.clock, self.frames, service_ms, steps, len(self.policy.dimensions))
        self.engine.heeds_deadlines = heeds_deadlines
        self.schedule = TickSchedule(0, PERIOD, DEADLINE, MARGIN, counts_from_capture)
        self.controller = Controller(
            ControlConfig(**{**CONFIG, **config}),
            self.clock,
            self.engine,
            replace(INFO, ring_blocks=ring_blocks, block_bytes=block_bytes),
            self.frames,
            FrameMemory(
                n_slots,
                len(self.policy.dimensions),
                make_policy(eviction),
                prompt_slots=prompt_slots,
                keeps_frames=keeps_frames,
                ring_blocks=ring_blocks,
            ),
            ActionPlanner(self.policy, ActionConfig(period_ns=PERIOD)),
            Admission(AdmissionConfig(ema_alpha=0.2, decay=0.9, probe_after_ticks=8, estimator=admission)),
            self.faults.append,
            signatures,
        )
        self.sink = Sink(self.clock)
        self._tick = 0
        self.controller.begin(self.schedule)
        self.controller.post(Instruction("pick up the cup", np.arange(10, dtype=np.int32)))

    def publish(self):
        now = self.clock.now_ns()
        self.frames.write(self._pixels, 10**18 + now, now, now)

    def observe_joints(self):
        """Joint states of now: everything at rest in the middle of its range."""
        names = [dimension.name for dimension in self.policy.dimensions]
        middle = [(d.min + d.max) / 2 for d in self.policy.dimensions]
        assert self.controller.planner.observe_joints(names, middle, None, self.clock.now_ns()) is None

    def run(self, until_tick: int, each=None) -> list[TickRecord]:
        """Run ticks until `until_tick` is next; `each(tick)` is called at the start of each."""
        n_before = len(self.sink.records)
        while self._tick < until_tick:
            self.clock.sleep_until(self.schedule.times(self._tick).start_ns)
            if each is not None:
                each(self._tick)
            self.controller.tick(self._tick, self.sink)
            self._tick = self.schedule.following(self._tick, self.clock.now_ns())
        return self.sink.records[n_before:]

    def decisions(self, until_tick: int, **keywords) -> list[str]:
        return [record.decision.value for record in self.run(until_tick, **keywords)]
