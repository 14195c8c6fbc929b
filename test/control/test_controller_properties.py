"""Anything at any time against the controller, with an independent account of what must come of it."""

from itertools import count

import numpy as np
from control_rig import DEADLINE, INFO, MARGIN, MS, PERIOD, VOCABULARY, Aborts, Rig
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from vla_edge_ros.actions.policy import Dimension, Group, Interface, Kind, Policy
from vla_edge_ros.actions.statistics import Statistics
from vla_edge_ros.control.decision import Decision
from vla_edge_ros.control.events import ClockJump, Enable, EngineReplaced, Instruction, ResetMemory
from vla_edge_ros.engine.interface import FRAME_TOKENS, FrameWork, PromptWork, WorkStatus
from vla_edge_ros.memory.policies import POLICIES

MAX_PROMPT = 44
PROMPT_SLOTS = 80
N_SLOTS = PROMPT_SLOTS + 8 + 3 * FRAME_TOKENS
MAX_HOLD_NS = 300 * MS
MAX_AGE_NS = 100 * MS
STALL_NS, GRACE_NS = 700 * MS, 100 * MS
SLACK = 1e-9

ABORTS = [Aborts(round(after_ms * MS), 30 * MS) for after_ms in (0.2, 31.0, 31.2, 40.0)]

DIMENSIONS = (
    Dimension("joint", Kind.POSITION, -1.0, 1.0, 1.0, 5.0),
    Dimension("slide", Kind.POSITION, -1.0, 1.0, 2.0),
    Dimension("sum", Kind.JOINT_DELTA, -0.5, 0.5, 1.0),
    Dimension("speed", Kind.VELOCITY, -0.8, 1.0, 0.9),
    Dimension("shift", Kind.EE_DELTA, -0.02, 0.02, 0.3),
    Dimension("grip", Kind.GRIPPER, 0.0, 1.0, 3.0),
)
GROUPS = (
    Group("arm", Interface.TRAJECTORY, "~/trajectory", ("joint",)),
    Group("slides", Interface.COMMAND, "~/slides", ("slide", "sum")),
    Group("rest", Interface.COMMAND, "~/rest", ("speed", "shift", "grip")),
)
MEASURED = ("joint", "slide", "sum")
BY_NAME = {dimension.name: dimension for dimension in DIMENSIONS}
N = len(DIMENSIONS)
RANGE = Statistics("test", "q01/q99", np.full(N, -3.0), np.full(N, 3.0), np.ones(N, bool))
POLICY = Policy("anything", RANGE, PERIOD, DIMENSIONS, GROUPS)


class AnyRig(Rig):
    """A camera of 60 Hz that shows `n_left` more frames, each `age_ns` old; slots that know their use."""

    def __init__(self, **arguments):
        self.n_left, self.age_ns = 0, 0
        self.captures = {0: 0}
        super().__init__(frames_ms=count(1, 16.67), policy=POLICY, n_slots=N_SLOTS, **arguments)
        self.garbles = None
        self.holds, self.prompt = {}, list(range(10))
        self.void = {}
        self.results, self.accepted = [], []
        submit, wait, evict = self.engine.submit, self.engine.wait, self.engine.evict
        accept, reset = self.controller.planner.accept, self.controller.planner.reset

        def checked_submit(work):
            submit(work)
            self.garble(self.engine._pending)
            self.take(work, self.engine._pending.frame)

        def heard_wait(until_ns):
            result = wait(until_ns)
            if result is not None:
                self.results.append(result)
            return result

        def checked_evict(slots):
            evict(slots)
            for slot in slots.tolist():
                assert self.holds.pop(slot, self.void.get(slot))[0] == "frame"

        def heard_accept(*arguments):
            self.accepted.append(accept(*arguments))
            return self.accepted[-1]

        def heard_reset():
            reset()
            self.n_before_reset = len(self.sink.commands)

        self.engine.submit, self.engine.wait, self.engine.evict = checked_submit, heard_wait, checked_evict
        self.controller.planner.accept, self.controller.planner.reset = heard_accept, heard_reset

    def publish(self):
        if self.n_left:
            self.n_left -= 1
            now = self.clock.now_ns()
            index = self.frames.write(self._pixels, 10**18 + now, now - self.age_ns, now)
            self.captures[index] = now - self.age_ns

    def garble(self, result):
        if result.frame is None:
            return
        if self.garbles is None:
            result.tokens = VOCABULARY - 1 - (result.frame.index * np.arange(1, N + 1) * 37 % 256)
            result.tokens = np.tile(result.tokens.astype(np.int32), (self.engine.steps, 1))
        elif self.garbles == "tokens":
            result.tokens = result.tokens - 256
        else:
            result.embedding = np.full_like(result.embedding, np.nan)
        self.garbles = None

    def take(self, work, frame):
        """No slot has two uses; the context is the prompt, then whole frames in the order of time.

        What a prompt's slot holds is its token and all tokens before it.
        """
        self.void = {}
        if isinstance(work, PromptWork):
            slots, cached = work.slots.tolist(), work.context_slots.tolist()
            assert len(set(slots + cached)) == len(work.tokens) + len(cached)
            assert not any(self.holds.get(slot, ("",))[0] == "frame" for slot in slots)
            tokens = [*self.prompt_in(cached), *work.tokens.tolist()]
            for rank, slot in enumerate(slots, len(cached)):
                self.holds[slot] = ("prompt", tuple(tokens[: rank + 1]))
            return
        context, block = work.context_slots.tolist(), work.frame_slots.tolist()
        used = context + block + work.action_slots.tolist()
        assert len(set(used)) == len(used)
        assert all(0 <= slot < N_SLOTS for slot in used)
        assert self.prompt_in(context[: work.prompt_tokens]) == self.prompt
        frames = [
            index for kind, index in map(self.holds.get, context[work.prompt_tokens :]) if kind == "frame"
        ]
        assert work.prompt_tokens + len(frames) == len(context)
        assert frames == sorted(frames)
        assert all(frames.count(index) == FRAME_TOKENS for index in frames)
        is_free = [self.holds.get(slot, ("prompt",))[0] == "prompt" for slot in block]
        assert all(is_free), "a block was given away before it was evicted"
        for slot in block:
            self.holds.pop(slot, None)
        if frame is not None:
            assert frame.index not in frames[-1:]
            self.holds |= {slot: ("frame", frame.index) for slot in block}

    def prompt_in(self, slots):
        """The tokens whose keys and values these slots hold, if they stand in this order."""
        prompt = self.holds[slots[-1]][1] if slots else ()
        assert [self.holds[slot] for slot in slots] == [
            ("prompt", prompt[: rank + 1]) for rank in range(len(slots))
        ]
        return list(prompt)

    def void_frames(self, keeps_frames):
        """Frames are forgotten; at least the one that a pass in flight was to bring.

        Several events of a tick may come to this before the first of them is applied.
        """
        self.void |= self.holds
        pending = self.engine.submitted[-1] if self.engine._pending is not None else None
        if not keeps_frames:
            self.holds = {slot: held for slot, held in self.holds.items() if held[0] == "prompt"}
        elif isinstance(pending, FrameWork):
            for slot in pending.frame_slots.tolist():
                self.holds.pop(slot, None)


class AnyController(RuleBasedStateMachine):
    @initialize(
        steps=st.sampled_from([1, 8]),
        eviction=st.sampled_from(POLICIES),
        uses_late=st.booleans(),
        service_ms=st.sampled_from([5.0, 20.0, 30.0, 40.0]),
        heeds_deadlines=st.booleans(),
        prompt_slots=st.sampled_from([0, PROMPT_SLOTS]),
        keeps_frames=st.booleans(),
        from_capture=st.booleans(),
    )
    def start(
        self,
        steps,
        eviction,
        uses_late,
        service_ms,
        heeds_deadlines,
        prompt_slots,
        keeps_frames,
        from_capture,
    ):
        self.rig = AnyRig(
            service_ms=service_ms,
            steps=steps,
            eviction=eviction,
            max_frame_age_ns=MAX_AGE_NS,
            max_hold_ns=MAX_HOLD_NS,
            uses_late_result=uses_late,
            heeds_deadlines=heeds_deadlines,
            stall_timeout_ns=STALL_NS,
            prompt_slots=prompt_slots,
            keeps_frames=keeps_frames,
            counts_from_capture=from_capture,
        )
        self.keeps_frames = keeps_frames
        self.from_capture = from_capture
        self.uses_late = uses_late
        self.events = []
        self.tick = 0
        self.is_faulty = self.is_latched = self.is_enabled = False
        self.is_followed = False
        self.suspected, self.suspected_ns = None, 0
        self.starts_afresh = True
        self.sees_joints, self.measured = True, dict.fromkeys(MEASURED, 0.0)
        self.seen, self.seen_ns = {}, None
        self.used = 0
        self.forgotten = None
        self.fresh_ns = 0
        self.sent = {}
        self.camera_shows(1000, 0)
        self.post(Enable(True))

    def teardown(self):
        if hasattr(self, "rig"):
            self.rig.controller.stop(self.rig.sink)
            self.rig.frames.close()

    # What may happen

    @rule(n=st.integers(1, 8), late_ms=st.sampled_from([0, 0, 0, 8, 25, 32, 40, 200]))
    def let_time_pass(self, n, late_ms):
        for _ in range(n):
            self.run_tick(late_ms)
            late_ms = 0

    @rule(n=st.sampled_from([1000, 1000, 0, 1, 3]), age_ms=st.sampled_from([0, 0, 60, 99, 150]))
    def camera_shows(self, n, age_ms):
        self.rig.n_left, self.rig.age_ns = n, age_ms * MS

    @rule(does=st.sampled_from([0.1, 31.0, 31.1, 80.0, 500.0, "no_frame", "fail", "hang", *ABORTS]))
    def engine_will(self, does):
        self.rig.engine.script_next(does)

    @rule(what=st.sampled_from(["tokens", "embedding"]))
    def engine_will_garble(self, what):
        self.rig.garbles = what

    @rule(values=st.lists(st.floats(-1.5, 1.5), min_size=3, max_size=3), sees=st.booleans())
    def joints_move(self, values, sees):
        self.measured = dict(zip(MEASURED, values, strict=True))
        self.sees_joints = sees

    @rule(n=st.integers(0, MAX_PROMPT) | st.sampled_from([34, 40, MAX_PROMPT]))
    def instruct(self, n):
        self.post(Instruction(f"{n} tokens", np.arange(n, dtype=np.int32)))

    @rule(event=st.sampled_from([Enable(True), Enable(True), Enable(False), ResetMemory(), ClockJump(-5)]))
    def happens(self, event):
        self.post(event)

    @precondition(lambda self: self.is_faulty and not any(isinstance(e, EngineReplaced) for e in self.events))
    @rule()
    def engine_is_replaced(self):
        self.rig.engine.is_dead, self.rig.engine._pending = False, None
        self.rig.holds = {}
        self.post(EngineReplaced(INFO))

    def post(self, event):
        self.events.append(event)
        self.rig.controller.post(event)

    # What must come of it

    def run_tick(self, late_ms):
        rig, sink, times = self.rig, self.rig.sink, self.rig.schedule.times(self.tick)
        rig.clock.sleep_until(times.start_ns + late_ms * MS)
        if self.sees_joints:
            values = [self.measured[name] for name in MEASURED]
            rig.controller.planner.observe_joints(MEASURED, values, [], rig.clock.now_ns())
            self.seen, self.seen_ns = self.measured, rig.clock.now_ns()
        self.started_ns = rig.clock.now_ns()
        for heard in (sink.trajectories, sink.commands, sink.ticks, rig.results, rig.accepted):
            heard.clear()
        rig.n_before_reset = None
        n_submitted = len(rig.engine.submitted)
        self.newest = max(rig.captures)
        self.pending = rig.engine._pending
        was_enabled = self.is_enabled
        self.apply_events(times)

        record = rig.controller.tick(self.tick, sink)

        assert [tick for _, tick in sink.ticks] == [self.tick]
        assert record is sink.records[-1]
        assert record.decision is self.expected_decision(record, times, rig.engine.submitted[n_submitted:])
        self.check_trajectories(record, was_enabled)
        self.check_commands(record, times, was_enabled)
        self.check_memory(record)
        if record.decision.is_fresh:
            self.fresh_ns = times.effect_ns
        if not record.decision.is_hold:
            self.starts_afresh = not record.decision.is_fresh
        assert record.is_late == (record.published_ns > times.effect_ns)
        assert sum(rig.controller.decision_counts.values()) == rig.controller.totals.ticks
        self.tick = rig.schedule.following(self.tick, rig.clock.now_ns())

    def apply_events(self, times):
        events, self.events = self.events, []
        for event in events:
            if not isinstance(event, Enable):
                self.forgotten = self.pending
            if isinstance(event, EngineReplaced):
                self.is_faulty = False
                continue
            if event == Enable(self.is_enabled) and not self.is_latched:
                continue
            self.starts_afresh = True
            if isinstance(event, Instruction):
                self.rig.prompt = event.tokens.tolist()
            if not isinstance(event, Enable):
                self.rig.void_frames(self.keeps_frames and isinstance(event, Instruction))
            if isinstance(event, Enable):
                self.is_enabled = event.is_enabled
                self.is_latched &= self.is_faulty or not event.is_enabled
            if isinstance(event, ClockJump):
                self.used = self.newest
            if isinstance(event, Enable | ClockJump):
                self.fresh_ns = times.effect_ns

    def is_given_up(self):
        """Whether work of an earlier tick is unanswered for too long, as seen since before the grace."""
        work = self.rig.engine.submitted[-1]
        if isinstance(work, FrameWork):
            silent_ns, allowed_ns = self.started_ns - work.deadline_ns, STALL_NS
        else:
            silent_ns = self.started_ns - self.pending.started_ns
            allowed_ns = max(1, len(work.tokens)) * STALL_NS
        if silent_ns > allowed_ns and self.suspected is not work:
            self.suspected, self.suspected_ns = work, self.started_ns
        return self.suspected is work and self.started_ns - self.suspected_ns >= GRACE_NS

    def expected_decision(self, record, times, submitted):
        results, accepted = self.rig.results, list(self.rig.accepted)
        passes = [work.work_id for work in submitted if isinstance(work, FrameWork)]
        own = next((result for result in results if result.work_id in passes), None)
        used = self.used
        for result in results:
            is_broken = result.frame is not None and not np.isfinite(result.embedding).all()
            if result.status is WorkStatus.FAILED or (is_broken and result is not self.forgotten):
                self.is_faulty = self.is_latched = True
            if result.frame is not None:
                self.used = max(self.used, result.frame.index)
                used = used if result is own else self.used
        is_pending = self.pending is not None and all(result is not self.pending for result in results)
        if is_pending and not self.is_faulty and self.is_given_up():
            self.is_faulty = self.is_latched = True
        if self.is_faulty:
            return Decision.FAULT
        if self.is_latched:
            return Decision.SAFE_STOP
        if self.is_enabled and (self.seen_ns is None or self.started_ns - self.seen_ns >= 100 * MS):
            return Decision.SAFE_STOP
        capture_ns, cutoff_ns = self.rig.captures[self.newest], times.cutoff_ns
        if self.from_capture:
            cutoff_ns = min(cutoff_ns, capture_ns + DEADLINE - MARGIN)
        if self.newest <= used:
            hold = Decision.HOLD_NO_FRAME
        elif self.started_ns - capture_ns > MAX_AGE_NS or cutoff_ns <= times.start_ns:
            hold = Decision.HOLD_STALE_FRAME
        elif is_pending or any(isinstance(work, PromptWork) for work in submitted):
            hold = Decision.HOLD_BUSY
        elif not passes:
            hold = Decision.HOLD_REFUSED
        elif own is None or own.finished_ns > cutoff_ns or own.status is WorkStatus.ABORTED:
            hold = Decision.HOLD_LATE
        elif own.frame is None:
            hold = Decision.HOLD_NO_FRAME
        elif accepted.pop(0).steps_left:
            return Decision.FRESH
        else:
            hold = Decision.HOLD_LATE
        if accepted and accepted.pop().steps_left:
            assert self.uses_late
            return Decision.FRESH_LATE
        return Decision.SAFE_STOP if times.effect_ns - self.fresh_ns > MAX_HOLD_NS else hold

    def check_trajectories(self, record, was_enabled):
        """Never while disabled; a stop only for what is followed, and always for what must end."""
        assert was_enabled or self.is_enabled or not self.rig.sink.trajectories
        for _, trajectory in self.rig.sink.trajectories:
            points = np.array([point.positions for point in trajectory.points])
            times_ns = [point.time_from_start_ns for point in trajectory.points]
            assert np.isfinite(points).all()
            assert min(np.diff([0, *times_ns])) > 0
            if any(len(point.velocities) for point in trajectory.points):
                assert len(points) == 1
                assert set(trajectory.points[0].velocities) == {0.0}
                assert self.is_followed
                self.is_followed = False
            else:
                assert record.decision.is_fresh and self.is_enabled
                self.is_followed = True
        if not self.is_enabled or not (record.decision.is_fresh or record.decision.is_hold):
            assert not self.is_followed

    def check_commands(self, record, times, was_enabled):
        """Never while disabled; finite, within limits, and no further in a tick than speed allows."""
        commands, n_rest = self.rig.sink.commands, self.rig.n_before_reset or 0
        last = [group for _, group, _ in commands[n_rest:]]
        assert len(set(last)) == len(last)
        for n_before, (at_ns, group, values) in enumerate(commands):
            if n_before == self.rig.n_before_reset:
                self.sent = {}
            is_rest = n_before < n_rest or record.decision is Decision.FAULT
            assert at_ns >= (self.started_ns if is_rest else times.cutoff_ns)
            assert self.is_enabled or (was_enabled and at_ns == self.started_ns)
            joints = next(g.joints for g in GROUPS if g.name == group)
            for name, value in zip(joints, values, strict=True):
                self.check_value(BY_NAME[name], value)
                self.sent[name] = value
        if self.rig.n_before_reset == len(commands):
            self.sent = {}
        action = self.rig.controller.planner.last_action
        assert action is None or np.isfinite(action).all()

    def check_value(self, dimension, value):
        before, reach = self.sent.get(dimension.name), dimension.max_velocity * PERIOD / 1e9 + SLACK
        assert np.isfinite(value)
        if dimension.kind is Kind.VELOCITY:
            assert abs(value) <= dimension.max_velocity
        elif dimension.kind is Kind.EE_DELTA:
            assert abs(value) <= reach
        if dimension.name not in MEASURED:
            assert dimension.min <= value <= dimension.max
            assert before is None or dimension.kind.is_motion or abs(value - before) <= reach
            return
        starts = [before] if before is not None else []
        if self.starts_afresh or not starts:
            starts.append(self.seen[dimension.name])
        assert min(abs(value - start) for start in starts) <= reach
        assert min(dimension.min, *starts) - SLACK <= value <= max(dimension.max, *starts) + SLACK

    def check_memory(self, record):
        memory = self.rig.controller.memory
        indexes = [frame.meta.index for frame in memory.frames]
        assert indexes == sorted(set(indexes))
        assert len(indexes) == record.retained_frames <= memory.capacity_frames
        slots = memory.context_slots()
        assert len(set(slots.tolist())) == len(slots) <= N_SLOTS


TestAnyController = AnyController.TestCase
TestAnyController.settings = settings(max_examples=300, stateful_step_count=30, deadline=None)
