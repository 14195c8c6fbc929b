"""From the control loop's results to ROS messages; the messages are made once and filled in again."""

from builtin_interfaces.msg import Duration, Time
from diagnostic_msgs.msg import DiagnosticStatus, KeyValue
from rclpy.serialization import deserialize_message, serialize_message
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from vla_edge_ros.actions.messages import GroupCommand, GroupTrajectory
from vla_edge_ros.control.decision import Decision
from vla_edge_ros.control.latency_model import PASS_STAGES
from vla_edge_ros.control.promise import Promise
from vla_edge_ros.control.record import TickRecord
from vla_edge_ros.engine.interface import STAGES

NANOSECONDS = 1_000_000_000

_LEVELS = dict.fromkeys(Decision, DiagnosticStatus.WARN) | {
    Decision.FRESH: DiagnosticStatus.OK,
    Decision.FRESH_LATE: DiagnosticStatus.OK,
    Decision.SAFE_STOP: DiagnosticStatus.ERROR,
    Decision.FAULT: DiagnosticStatus.ERROR,
}


def trajectory_message(trajectory: GroupTrajectory) -> JointTrajectory:
    """What joint_trajectory_controller takes; a stamp of 0 means "from now" there."""
    message = JointTrajectory(joint_names=list(trajectory.joints))
    message.header.stamp = ros_time(trajectory.stamp_ns)
    for point in trajectory.points:
        message.points.append(
            JointTrajectoryPoint(
                positions=point.positions,
                velocities=point.velocities,
                time_from_start=_duration(point.time_from_start_ns),
            )
        )
    return message


def command_message(command: GroupCommand) -> Float64MultiArray:
    return Float64MultiArray(data=command.values)


class TickMessage:
    """The `~/tick` message: one DiagnosticStatus whose values are strings under fixed keys."""

    def __init__(self, hardware_id: str, plan_id: str) -> None:
        self._plan_id = plan_id
        self.message = DiagnosticStatus(name="tick", hardware_id=hardware_id)
        self._values: dict[str, KeyValue] = {}

    def fill(self, record: TickRecord) -> DiagnosticStatus:
        self.message.level = _LEVELS[record.decision]
        self.message.message = str(record.decision)
        own = record.own_pass
        self._set("tick", record.tick)
        self._set("decision", record.decision)
        self._set("reason", record.reason)
        self._set("is_enabled", record.is_enabled)
        self._set("effect_stamp_ns", record.effect_stamp_ns)
        self._set("start_error_ms", _ms(record.start_error_ns))
        self._set("frame_index", record.frame_index)
        self._set("frame_stamp_ns", record.frame_stamp_ns)
        self._set("frame_age_ms", _ms(record.frame_age_ns))
        self._set("predicted_ms", _ms(record.predicted_ns))
        self._set("allowance_ms", _ms(record.allowance_ns))
        for stage in PASS_STAGES:
            self._set(f"predicted_{stage}_ms", _ms((record.predicted_by_stage or {}).get(stage)))
        self._set("pass_ms", _ms(own and own.total_ns))
        for stage in STAGES:
            self._set(f"{stage}_ms", _ms(own and getattr(own.stages, f"{stage}_ns")))
        self._set("retained_frames", record.retained_frames)
        self._set("evicted", " ".join(str(line["frame"]) for line in record.journal))
        self._set("hold_ms", _ms(record.hold_ns))
        self._set("steps_left", record.steps_left)
        self._set("steps_dropped", record.steps_dropped)
        self._set("skipped_ticks", record.skipped_ticks)
        self._set("top_probability", record.top_probability)
        self._set("entropy", record.entropy)
        self._set("plan_id", self._plan_id)
        self._set("events", " ".join(e["event"] for e in record.events))
        return self.message

    def _set(self, key: str, value: object) -> None:
        pair = self._values.get(key)
        if pair is None:
            pair = self._values[key] = KeyValue(key=key)
            self.message.values.append(pair)
        pair.value = "" if value is None else str(value)


def telemetry(record: TickRecord, promise: Promise) -> dict[str, float]:
    """The figures of `~/telemetry/NAME`, NaN where the tick has none: a gap in a plot, not a zero.

    The rates are those since the start, this tick included.
    """
    own = record.own_pass
    nan = float("nan")

    def ms(nanoseconds: int | None) -> float:
        return nan if nanoseconds is None else nanoseconds / 1e6

    return {
        "is_fresh": float(record.decision.is_fresh),
        "is_miss": float(record.is_miss),
        "aborted_passes": float(sum(work.is_aborted for work in record.work)),
        "is_late": float(record.is_late),
        "start_error_ms": ms(record.start_error_ns),
        "publish_ms": ms(record.published_ns - record.scheduled_ns),
        "frame_age_ms": ms(record.frame_age_ns),
        "predicted_ms": ms(record.predicted_ns),
        "allowance_ms": ms(record.allowance_ns),
        "pass_ms": ms(own and own.total_ns),
        **{f"{stage}_ms": ms(own and getattr(own.stages, f"{stage}_ns")) for stage in STAGES},
        "hold_ms": ms(record.hold_ns),
        "hold_streak": float(promise.hold_streak),
        "miss_rate": promise.miss_rate,
        "refusal_rate": promise.refusal_rate,
        "goodput": promise.goodput,
        "retained_frames": float(record.retained_frames),
        "top_probability": nan if record.top_probability is None else record.top_probability,
    }


def warm_up(*types: type) -> None:
    """Take one message of each type through its type support: the first Image of a process costs 119 ms."""
    for message_type in types:
        deserialize_message(serialize_message(message_type()), message_type)


def _ms(nanoseconds: int | None) -> str:
    return "" if nanoseconds is None else f"{nanoseconds / 1e6:.3f}"


def ros_time(stamp_ns: int) -> Time:
    seconds, nanoseconds = divmod(stamp_ns, NANOSECONDS)
    return Time(sec=int(seconds), nanosec=int(nanoseconds))


def _duration(duration_ns: int) -> Duration:
    seconds, nanoseconds = divmod(duration_ns, NANOSECONDS)
    return Duration(sec=int(seconds), nanosec=int(nanoseconds))
