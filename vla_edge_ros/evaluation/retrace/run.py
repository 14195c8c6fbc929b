"""Runs the ticks of a record again from what is in the record: the node's own controller on a virtual clock.

No picture or embedding is in a record, so an engine hands out the recorded results at their times
(`stand_ins`). Admission, the ladder, memory, actions of tokens, limits, holds and every decision are computed
anew. Of records of older versions, which have no tokens, actions are taken as they were limited.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from vla_edge_ros.control import settings
from vla_edge_ros.control.admission import AdmissionConfig
from vla_edge_ros.control.decision import Decision
from vla_edge_ros.control.events import ClockJump, ControlConfig, Enable, EngineReplaced, ResetMemory, Retune
from vla_edge_ros.control.ladder import Step
from vla_edge_ros.control.record import TickRecord
from vla_edge_ros.engine.vision import FRAME_HEIGHT, FRAME_WIDTH
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.json_shape import WrongShape, check
from vla_edge_ros.evaluation.recorded_run import RecordedRun
from vla_edge_ros.evaluation.retrace.stand_ins import (
    INFO,
    RecordedChoice,
    RecordedClock,
    RecordedEngine,
    RecordedPictures,
    RecordedPlanner,
    targets,
)
from vla_edge_ros.evaluation.virtual_run import RecordingSink
from vla_edge_ros.perception.frame_buffer import FrameBuffer

BY_AGE = ("fifo", "sliding_window", "random", "uniform_stride", "sinks_recent")
"""Eviction policies that look at no picture: whom they name is computed anew."""

_DEFECT = "internal error: "
_HANGS = "the engine hangs: "


def check_whole(recorded: RecordedRun) -> None:
    """Raises UserError where ticks or frames are missing or a tick had a defect: the rest is unknown then."""
    if not recorded.ticks:
        raise UserError("the recorded run has no ticks")
    recorded.check_frames()
    for before, tick in pairwise(recorded.ticks):
        number = tick["tick"]
        if number <= before["tick"]:
            raise UserError(
                f"the ticks cannot be run again: after tick {before['tick']} comes tick {number}, since the "
                "node was activated again"
            )
        if number - before["tick"] - 1 != tick["skipped_ticks"]:
            raise UserError(
                f"the ticks cannot be run again: not every one from {before['tick']} to {number} was recorded"
            )
    for tick in recorded.ticks:
        if tick["reason"].startswith(_DEFECT):
            before_s = tick["tick"] * recorded.run["parameters"]["control.period_ms"] / 1000
            raise UserError(
                f"a defect at tick {tick['tick']} ({tick['reason']}) cannot be made to happen again; "
                f"--seconds {before_s:.3f} runs the ticks before it"
            )


def retrace(parameters: settings.Parameters, recorded: RecordedRun) -> list[TickRecord]:
    """The records of the ticks, run again. Raises UserError for what the record does not hold."""
    check_whole(recorded)
    _check_recorded_enough(parameters, recorded)
    rig = _Rig(parameters, recorded)
    try:
        return rig.run()
    finally:
        rig.close()


def _check_recorded_enough(parameters: settings.Parameters, recorded: RecordedRun) -> None:
    if parameters["memory.host_bytes"]:
        raise UserError(
            "the ticks cannot be run again from the record alone: with memory.host_bytes frames come back by "
            "their pictures, which are not in it; name the recording: vla-edge replay BAG --ticks RUN"
        )
    has_tokens = recorded.vocabulary_size is not None
    for tick in recorded.ticks:
        if not has_tokens and tick["steps_left"] + tick["steps_dropped"] > 1:
            raise UserError(
                "the ticks cannot be run again from the record alone: a pass gave more than one step at tick "
                f"{tick['tick']}, and those to come are not in it"
            )


class _Sink(RecordingSink):
    """The last message of each tick is out when the run's was."""

    def __init__(self, clock: RecordedClock) -> None:
        super().__init__()
        self._clock = clock
        self.published_ns = 0

    def tick(self, record: TickRecord) -> None:
        self._clock.sleep_until(self.published_ns)


class _Rig:
    def __init__(self, parameters: settings.Parameters, recorded: RecordedRun) -> None:
        ticks = self._ticks = recorded.ticks
        self._recorded = recorded
        self._metas = recorded.frames
        self._n_frames = 0
        self._journal: list[dict] = []
        self._tick: dict = ticks[0]
        policy = settings.policy_of(parameters)
        self._targets = targets(ticks, policy.action_period_ns)
        period_ns = settings.ns(parameters["control.period_ms"])
        origin_ns = ticks[0]["scheduled_ns"] - ticks[0]["tick"] * period_ns
        self._schedule = settings.tick_schedule(parameters, origin_ns)
        self._clock = RecordedClock(self._joint_states())
        self._sink = _Sink(self._clock)
        service = recorded.service()
        metas = {frame.index: frame for frame in recorded.frames}
        used = {times.frame_index for times in service.values() if times.frame_index is not None}
        if missing := used - metas.keys():
            raise UserError(f"the ticks cannot be run again: frame {min(missing)} was used and not recorded")
        vocabulary_size = recorded.vocabulary_size
        self._info = INFO if vocabulary_size is None else replace(INFO, vocabulary_size=vocabulary_size)
        self._engine = RecordedEngine(self._clock, service, metas, _confidence(ticks), _failures(ticks))
        pictures = RecordedPictures(used, lambda: self._tick["step"] == Step.REUSE.value)
        self._prompter = settings.Prompter(parameters)
        self._frames = FrameBuffer.create()
        self._pixels = np.zeros((FRAME_HEIGHT, FRAME_WIDTH, 3), np.uint8)
        self._controller = settings.build_controller(
            parameters,
            policy,
            self._clock,
            self._engine,
            self._info,
            self._frames,
            lambda error: None,
            None,
            pictures if parameters["ladder.reuse_ticks"] else None,
        )
        self._taken: RecordedPlanner | None = None
        if vocabulary_size is None:
            self._taken = RecordedPlanner(policy, settings.action_config(parameters))
            self._controller.planner = self._taken
        name = parameters["memory.policy"]
        if name not in BY_AGE:
            self._controller.memory.policy = RecordedChoice(name, lambda: self._journal)

    def close(self) -> None:
        self._frames.close()

    def run(self) -> list[TickRecord]:
        begin = self._recorded.begin
        self._receive_until(begin["frame"])
        self._clock.sleep_until(begin["at_ns"])
        self._controller.begin(self._schedule)
        for tick, target in zip(self._ticks, self._targets, strict=True):
            self._tick = tick
            self._journal = list(tick["journal"])
            if self._taken is not None:
                self._taken.record, self._taken.target = tick, target
            self._sink.published_ns = tick["published_ns"]
            self._receive_until(tick["seen_frame"])
            self._clock.sleep_until(tick["started_ns"])
            # Both clocks were read at the start of the tick, and the effect time was told from that.
            effect_ns = self._schedule.times(tick["tick"]).effect_ns
            self._clock.ros_offset_ns = tick["effect_stamp_ns"] - effect_ns
            for event in tick["events"]:
                self._repeat(event)
            self._controller.tick(tick["tick"], self._sink)
        return self._sink.records

    def _receive_until(self, index: int) -> None:
        if index > len(self._metas):
            raise UserError(f"the ticks cannot be run again: frame {index} was seen and not recorded")
        for meta in self._metas[self._n_frames : index]:
            self._frames.write(self._pixels, meta.stamp_ns, meta.capture_ns, meta.receipt_ns)
        self._n_frames = max(self._n_frames, index)

    def _joint_states(self):
        for tick in self._ticks:
            for state in tick["joint_states"]:
                yield state["receipt_ns"], lambda state=state: self._feel(state)

    def _feel(self, state: dict) -> None:
        planner = self._controller.planner
        planner.observe_joints(planner.joints.names, state["positions"], None, state["receipt_ns"])

    def _repeat(self, event: dict) -> None:
        """Post an event as it was recorded. Raises UserError."""
        name = event["event"]
        try:
            match name:
                case "instruction":
                    posted = self._prompter.changed_to(event["text"])
                case "reset_memory":
                    posted = ResetMemory()
                case "clock_jump":
                    posted = ClockJump(event["delta_ns"])
                case "enable" | "disable":
                    posted = Enable(name == "enable")
                case "retune":
                    check(event["control"], ControlConfig)
                    check(event["admission"], AdmissionConfig)
                    control = ControlConfig(**event["control"])
                    posted = Retune(control, AdmissionConfig(**event["admission"]))
                case "engine_replaced":
                    self._engine.replaced()
                    posted = EngineReplaced(replace(self._info, plan_id=event["plan_id"]))
                case _:
                    raise UserError(f"the recorded run has an event that is not known here: {name}")
        except (KeyError, TypeError, WrongShape):
            raise UserError(f"the recorded run has an event that is not complete: {name}") from None
        if posted is not None:
            self._controller.post(posted)


def _confidence(ticks: list[dict]) -> dict[int, tuple[float, float]]:
    """What each tick says of the last pass that it collected, by work id."""
    found = {}
    for tick in ticks:
        passes = [work["work_id"] for work in tick["work"] if work["frame_index"] is not None]
        if passes and None not in (tick["top_probability"], tick["entropy"]):
            found[passes[-1]] = (tick["top_probability"], tick["entropy"])
    return found


def _failures(ticks: list[dict]) -> list[tuple[int, str]]:
    """(start of the tick, error) of each time that the engine failed; whether it hangs the clock says."""
    found, was_fault = [], False
    for tick in ticks:
        is_fault = tick["decision"] == Decision.FAULT.value
        is_new = not was_fault or any(event["event"] == "engine_replaced" for event in tick["events"])
        if is_fault and is_new and not tick["reason"].startswith(_HANGS):
            found.append((tick["started_ns"], tick["reason"]))
        was_fault = is_fault
    return found
