"""What one tick decided and why: the source of `~/tick`, telemetry, reports and replay."""

from dataclasses import asdict, dataclass, field

from vla_edge_ros.actions.joints import MeasuredJoints
from vla_edge_ros.control.decision import Decision
from vla_edge_ros.control.ladder import Step
from vla_edge_ros.engine.interface import StageTimes


@dataclass(slots=True)
class WorkTimes:
    """When work that this tick collected was begun, ended and seen by the control thread (steady ns).

    is_aborted: the engine stopped the pass, since it could not end by its deadline.
    steps_done, remaining: as of the result: the decode steps done, and what was to come at least.
    frame_index: the frame that a pass used; None for a prompt, where it was stopped or found no whole frame.
    retained_frame: the frame that it put into memory, None where it put none.
    tokens: (K * N,) the N token ids of each of the K steps that a pass gave; None where it gave none, and in
        records of versions that did not keep them.
    """

    work_id: int
    kind: str
    submitted_ns: int
    started_ns: int
    finished_ns: int
    received_ns: int
    stages: StageTimes = field(default_factory=StageTimes)
    is_aborted: bool = False
    steps_done: int = 0
    remaining: StageTimes = field(default_factory=StageTimes)
    frame_index: int | None = None
    retained_frame: int | None = None
    tokens: list[int] | None = None

    @property
    def total_ns(self) -> int:
        """From submission to the end, the way to the engine included."""
        return self.finished_ns - self.submitted_ns


@dataclass(slots=True)
class TickRecord:
    """One tick. Times are steady nanoseconds; None means that the tick had no such thing.

    seen_frame: index of the newest frame when the tick looked, 0 for none.
    frame_*: the frame that the tick's action is of, else the newest one when it looked.
    skipped_frames: published since the frame used before, and never used.
    pass_cutoff_ns: when a pass over the newest frame had to be finished; None where there was none to act on.
    predicted_ns: admission's estimate of the pass, asked for at this tick; predicted_by_stage: its parts.
    allowance_ns: what admission kept free beside it.
    step: what the ladder came to; None where no pass was in question. The prediction is of the pass that it
        begins. prices_ns: where a whole pass did not fit, what each step was found to need, by its name.
    held_tokens: how many of the action's tokens the pass leaves out to fit; their dimensions are held.
    forgotten_frames: how many were forgotten so that the pass fits; the journal has their names.
    submitted_work: the pass that this tick began.
    work: results that this tick collected, the late ones of earlier ticks included.
    top_probability, entropy: mean over the A tokens of the last pass that this tick collected.
    joint_states: those that came since the tick before was recorded.
    journal: lines of the eviction journal (`Evicted.to_json`).
    action: the A values of this tick's step in policy units, limited as they would be sent.
    trajectory_ns: when the last trajectory of the tick's fresh action had been handed to the middleware.
    woke_ns: when the wait for the cut-off ended: what is late from here on is the middleware's, what was late
        before it the machine's. None where a defect ended the tick.
    is_late: the last publish of the tick returned after its effect time.
    """

    tick: int
    scheduled_ns: int
    started_ns: int
    effect_stamp_ns: int
    decision: Decision = Decision.HOLD_NO_FRAME
    reason: str = ""
    is_enabled: bool = False
    seen_frame: int = 0
    skipped_frames: int = 0
    frame_index: int | None = None
    frame_stamp_ns: int | None = None
    frame_capture_ns: int | None = None
    frame_receipt_ns: int | None = None
    frame_age_ns: int | None = None
    pass_cutoff_ns: int | None = None
    predicted_ns: int | None = None
    predicted_by_stage: dict[str, int] | None = None
    allowance_ns: int | None = None
    is_probe: bool = False
    step: Step | None = None
    prices_ns: dict[str, int] | None = None
    held_tokens: int = 0
    forgotten_frames: int = 0
    submitted_work: int | None = None
    work: list[WorkTimes] = field(default_factory=list)
    top_probability: float | None = None
    entropy: float | None = None
    action: list[float] | None = None
    steps_left: int = 0
    steps_dropped: int = 0
    retained_frames: int = 0
    joint_states: list[MeasuredJoints] = field(default_factory=list)
    journal: list[dict] = field(default_factory=list)
    events: list[dict] = field(default_factory=list)
    hold_ns: int = 0
    skipped_ticks: int = 0
    trajectory_ns: int | None = None
    woke_ns: int | None = None
    published_ns: int = 0
    is_late: bool = False

    @property
    def own_pass(self) -> WorkTimes | None:
        """The pass that this tick began, where it also saw its end and the engine did not stop it."""
        own = (w for w in self.work if w.work_id == self.submitted_work)
        return next((w for w in own if not w.is_aborted), None)

    @property
    def is_miss(self) -> bool:
        """The tick began a pass that was late, stopped or failed.

        No miss: the pass ended in time, and there was no frame or the robot was not ready to move.
        """
        if self.submitted_work is None or self.decision is Decision.FRESH:
            return False
        return self.own_pass is None or self.decision not in (Decision.HOLD_NO_FRAME, Decision.SAFE_STOP)

    @property
    def start_error_ns(self) -> int:
        return self.started_ns - self.scheduled_ns

    def to_json(self) -> dict:
        record = asdict(self)
        record["decision"] = self.decision.value
        record["step"] = None if self.step is None else self.step.value
        return record


def work_times(written: dict) -> WorkTimes:
    """What `asdict` made of a WorkTimes, without whatever was written beside it."""
    known = {name: written[name] for name in WorkTimes.__slots__ if name != "tokens"}
    stages = {
        name: StageTimes(*(written[name][stage] for stage in StageTimes.__slots__))
        for name in ("stages", "remaining")
    }
    return WorkTimes(**(known | stages), tokens=written.get("tokens"))


def tick_record(written: dict) -> TickRecord:
    """What `TickRecord.to_json` wrote, without whatever was written beside it."""
    known = {name: written[name] for name in TickRecord.__slots__}
    work = [work_times(work) for work in written["work"]]
    step = None if written["step"] is None else Step(written["step"])
    return TickRecord(**(known | {"decision": Decision(written["decision"]), "step": step, "work": work}))
