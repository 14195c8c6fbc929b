"""Offline replay: the live node's controller on a virtual clock, faster than real time.

The same bag, parameters, seed and service times give the same decisions, actions and eviction journal, byte
for byte. Service times are stated, or those of a recorded run, whose own decisions then come out again.
"""

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

from vla_edge_ros.control import settings
from vla_edge_ros.control.admission import AdmissionConfig
from vla_edge_ros.control.clock import VirtualClock
from vla_edge_ros.control.events import ClockJump, ControlConfig, Enable, ResetMemory, Retune
from vla_edge_ros.control.record import TickRecord, WorkTimes
from vla_edge_ros.control.tick_thread import run_ticks
from vla_edge_ros.engine.factory import make_engine
from vla_edge_ros.engine.interface import EngineInfo
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.bags import Bag, BagImage
from vla_edge_ros.evaluation.playback import LONGEST_PAUSE_NS, Lap
from vla_edge_ros.evaluation.recorded_run import RecordedRun
from vla_edge_ros.evaluation.virtual_engine import RecordedService, StatedService, VirtualEngine
from vla_edge_ros.perception.camera import CameraPipeline
from vla_edge_ros.perception.frame import FrameMeta
from vla_edge_ros.perception.frame_buffer import FrameBuffer
from vla_edge_ros.perception.refusal import ImageRefused


class RecordingSink:
    """Keeps every record; messages go nowhere."""

    def __init__(self) -> None:
        self.records: list[TickRecord] = []

    def trajectory(self, trajectory) -> None:
        pass

    def command(self, command) -> None:
        pass

    def prepare(self, record: TickRecord) -> None:
        pass

    def tick(self, record: TickRecord) -> None:
        pass

    def finished(self, record: TickRecord) -> None:
        self.records.append(record)


@dataclass(slots=True)
class Replay:
    """What a replay did.

    journal: every eviction, as `Evicted.to_json`.
    remembered: (time_ns, ordinal) of each frame that memory holds at the end, oldest first: its receipt since
        the first tick, and its place among the topic's images in the bag, from 0.
    """

    info: EngineInfo
    records: list[TickRecord]
    journal: list[dict]
    remembered: list[tuple[int, int]]
    camera: CameraPipeline


def replay(
    bag: Bag,
    topic: str,
    parameters: settings.Parameters,
    service_ms: float,
    seconds: float,
    plays_instructions: bool,
) -> Replay:
    """Play `topic` from its first receipt on, every piece of work taking `service_ms`; at most `seconds`.

    plays_instructions: whether the bag's own instructions are heard too; as in the node, one that cannot
        become a prompt changes nothing.
    Raises UserError where no image can be used, and where the recording pauses for over an hour.
    """
    instruction_topic = bag.instruction_topic() if plays_instructions else None
    topics = [topic] if instruction_topic is None else [topic, instruction_topic]
    first = next(bag.images(topic))
    last_ns = 0

    def arrivals(rig: _Rig) -> Iterator[tuple[int, Callable[[], None]]]:
        nonlocal last_ns
        ordinal = 0
        for _, item in bag.play(topics):
            at_ns = max(0, item.log_ns - first.log_ns)
            if at_ns > seconds * 1e9:
                return
            if at_ns - last_ns > LONGEST_PAUSE_NS:
                last_s, at_s = last_ns / 1e9, at_ns / 1e9
                raise UserError(
                    f"{bag.path}: nothing was recorded from {last_s:.3f} s to {at_s:.3f} s after the first "
                    f"image: was a clock wrong? --seconds {last_s + 1:.0f} replays what is before"
                )
            last_ns = max(last_ns, at_ns)
            if isinstance(item, BagImage):
                yield at_ns, partial(rig.receive, item.message, ordinal)
                ordinal += 1
            else:
                yield at_ns, partial(rig.hear, item.text)

    with _Rig(
        parameters, topic, StatedService(settings.ns(service_ms)), arrivals, ros_offset_ns=first.log_ns
    ) as rig:
        schedule = settings.tick_schedule(parameters, 0)
        rig.controller.begin(schedule)
        rig.instruct(parameters["instruction.initial"])

        def has_ended() -> bool:
            now = rig.clock.now_ns()
            is_over = rig.clock.is_exhausted and now > last_ns + schedule.period_ns
            return is_over or now > seconds * 1e9 or rig.failure is not None

        run_ticks(rig.controller, schedule, rig.clock, rig.sink, has_ended)
        outcome = rig.outcome()
    camera = outcome.camera
    if not camera.published:
        raise UserError(f"none of {camera.received} images can be used: {camera.last_refusal.reason}")
    return outcome


def replay_recorded(bag: Bag, topic: str, parameters: settings.Parameters, recorded: RecordedRun) -> Replay:
    """Repeat a recorded run tick by tick at its own times.

    With the run's own parameters its decisions come out again; with another eviction policy one sees what
    that would have remembered.
    Raises UserError if the bag lacks a recorded frame or for events that cannot be repeated.
    """
    recorded.check_replayable()
    if not recorded.ticks:
        raise UserError("the recorded run has no ticks")
    frames = _images_of(recorded, bag, topic)
    n_received = 0

    def receive_until(index: int | None) -> None:
        """Have the camera publish up to frame `index`: what was seen decides, not when it was received."""
        nonlocal n_received
        while index is not None and n_received < index:
            if (frame := next(frames, None)) is None:
                raise UserError(f"the recorded run used frame {index} and holds {n_received} frames")
            rig.receive_as(*frame)
            n_received += 1

    first = recorded.ticks[0]
    origin_ns = first["scheduled_ns"] - first["tick"] * settings.ns(parameters["control.period_ms"])
    ros_offset_ns = first["effect_stamp_ns"] - origin_ns
    service = RecordedService(recorded.service())

    def start(times: WorkTimes) -> None:
        try:
            receive_until(times.frame_index)
        except UserError as error:
            rig.fail(error)

    def arrivals(rig: _Rig) -> Iterator[tuple[int, Callable[[], None]]]:
        for tick in recorded.ticks:
            for state in tick["joint_states"]:
                yield state["receipt_ns"], partial(rig.feel, state["positions"], state["receipt_ns"])

    with _Rig(parameters, topic, service, arrivals, ros_offset_ns, start) as rig:
        receive_until(recorded.begin["frame"])
        rig.clock.sleep_until(recorded.begin["at_ns"])
        rig.controller.begin(settings.tick_schedule(parameters, origin_ns))
        for tick in recorded.ticks:
            receive_until(tick["seen_frame"])
            rig.clock.sleep_until(tick["started_ns"])
            for event in tick["events"]:
                rig.repeat(event)
            rig.controller.tick(tick["tick"], rig.sink)
            if rig.failure is not None:
                break
        return rig.outcome()


class _Rig:
    """The live node's parts around a virtual clock.

    failure: why the recording cannot be played on, if it cannot. It is met while a tick sleeps or starts its
        pass, where an exception would be taken for the engine's: `outcome` raises it.
    """

    def __init__(
        self,
        parameters: settings.Parameters,
        topic: str,
        service: StatedService | RecordedService,
        arrivals: Callable[["_Rig"], Iterator[tuple[int, Callable[[], None]]]],
        ros_offset_ns: int,
        start: Callable[[WorkTimes], None] | None = None,
    ) -> None:
        policy = settings.policy_of(parameters)
        self.sink = RecordingSink()
        self.failure: UserError | None = None
        self.clock = VirtualClock(self._until_failure(arrivals(self)), ros_offset_ns)
        self._frames = FrameBuffer.create()
        spec = settings.engine_spec(parameters, len(policy.dimensions))
        self._engine = VirtualEngine(
            make_engine(spec, self._frames),
            self.clock,
            service,
            start or (lambda times: self.clock.sleep_until(times.started_ns)),
        )
        self._info = self._engine.configure()
        signatures, pictures = settings.signature_log(parameters), settings.picture_log(parameters)
        self.controller = settings.build_controller(
            parameters,
            policy,
            self.clock,
            self._engine,
            self._info,
            self._frames,
            _say_fault,
            signatures,
            pictures,
        )
        self._camera = CameraPipeline(
            self._frames,
            settings.resizer(parameters),
            settings.stamp_watch(parameters),
            topic,
            [log for log in (signatures, pictures) if log is not None],
        )
        self._prompter = settings.Prompter(parameters)
        self._ordinals: dict[int, int] = {}

    def __enter__(self) -> "_Rig":
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.close()
        self._frames.close()

    def fail(self, error: UserError) -> None:
        self.failure = self.failure or error

    def _until_failure(self, arrivals: Iterator) -> Iterator:
        try:
            yield from arrivals
        except UserError as error:
            self.fail(error)

    def receive(self, message: object, ordinal: int) -> None:
        """An image arrives now, as in the node's callback."""
        published = self._camera.published
        self._camera.on_image(message, *self.clock.pair())
        if self._camera.published > published:
            self._ordinals[self._frames.peek().index] = ordinal

    def receive_as(self, meta: FrameMeta, message: object, ordinal: int) -> None:
        """An image arrives that a live run judged already."""
        try:
            self._camera.place(message, meta)
        except ImageRefused as refused:
            raise UserError(f"the image of recorded frame {meta.index} cannot be used: {refused}") from None
        self._ordinals[meta.index] = ordinal

    def feel(self, positions: list[float], at_ns: int) -> None:
        """A joint state arrives with the joints that the policy needs."""
        planner = self.controller.planner
        reason = planner.observe_joints(planner.joints.names, positions, None, at_ns)
        if reason is not None:
            self.fail(UserError(f"the recorded run cannot be replayed: of its policy's joints, {reason}"))

    def instruct(self, text: str) -> None:
        """An instruction arrives now; an equal text changes nothing."""
        instruction = self._prompter.changed_to(text)
        if instruction is not None:
            self.controller.post(instruction)

    def hear(self, text: str) -> None:
        """An instruction of the recording arrives now."""
        try:
            self.instruct(text)
        except UserError as error:
            print(error, file=sys.stderr)

    def repeat(self, event: dict) -> None:
        """Post an event as it was recorded. Raises UserError."""
        name = event["event"]
        try:
            match name:
                case "instruction":
                    self.instruct(event["text"])
                case "reset_memory":
                    self.controller.post(ResetMemory())
                case "clock_jump":
                    self.controller.post(ClockJump(event["delta_ns"]))
                case "enable" | "disable":
                    self.controller.post(Enable(name == "enable"))
                case "retune":
                    control = ControlConfig(**event["control"])
                    self.controller.post(Retune(control, AdmissionConfig(**event["admission"])))
                case _:
                    raise UserError(f"the recorded run has an event that is not known here: {name}")
        except (KeyError, TypeError):
            raise UserError(f"the recorded run has an event that is not complete: {name}") from None

    def outcome(self) -> Replay:
        if self.failure is not None:
            raise self.failure
        first_ns = self.sink.records[0].scheduled_ns
        remembered = [
            (frame.meta.receipt_ns - first_ns, self._ordinals[frame.meta.index])
            for frame in self.controller.memory.frames
        ]
        journal = [line for record in self.sink.records for line in record.journal]
        return Replay(self._info, self.sink.records, journal, remembered, self._camera)


def _images_of(recorded: RecordedRun, bag: Bag, topic: str) -> Iterator[tuple[FrameMeta, object, int]]:
    """Each recorded frame, its message and its place in the bag.

    It is found by the stamp it was played under; one without a stamp by its receipt, which follows the moment
    at which the camera sent it by less than a camera period.
    """
    laps = [Lap(**lap) for lap in recorded.run.get("laps", [])]
    ordinals: dict[int, int] = {}
    unstamped: list[tuple[int, int]] = []
    for ordinal, image in enumerate(bag.images(topic)):
        ordinals.setdefault(image.stamp_ns, ordinal)
        if image.stamp_ns == 0:
            unstamped.append((image.log_ns, ordinal))
    unstamped.sort()
    log_times_ns = [log_ns for log_ns, _ in unstamped]

    def find(meta: FrameMeta) -> int | None:
        if not laps:
            return ordinals.get(meta.stamp_ns) if meta.stamp_ns else None
        begun = [lap for lap in laps if lap.start_ns <= meta.receipt_ns] or laps[:1]
        if meta.stamp_ns:
            found = (ordinals.get(lap.recorded_stamp_ns(meta.stamp_ns)) for lap in reversed(begun))
            return next((ordinal for ordinal in found if ordinal is not None), None)
        n_sent = bisect_right(log_times_ns, begun[-1].log_ns(meta.receipt_ns))
        return unstamped[n_sent - 1][1] if n_sent else None

    images, following = bag.images(topic), 0
    for meta in recorded.frames:
        ordinal = find(meta)
        if ordinal is None:
            raise UserError(
                f"{bag.path}: no image on {topic} belongs to the stamp {meta.stamp_ns} of recorded frame "
                f"{meta.index}: is this the recording that the run was made with?"
            )
        if ordinal < following:
            images, following = bag.images(topic), 0
        image = next(islice(images, ordinal - following, None))
        following = ordinal + 1
        yield meta, image.message, ordinal


def _say_fault(error: str) -> None:
    print(error, file=sys.stderr)
