"""From the control loop's results to ROS messages.

Those of the tick thread are serialised here: rclpy's own conversion, attribute by attribute, took several
times as long.
"""

from functools import cache

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.serialization import deserialize_message, serialize_message

from vla_edge_ros.actions.messages import GroupCommand, GroupTrajectory
from vla_edge_ros.control.decision import Decision
from vla_edge_ros.control.ladder import PRICED
from vla_edge_ros.control.latency_model import PASS_STAGES
from vla_edge_ros.control.promise import Rates
from vla_edge_ros.control.record import TickRecord
from vla_edge_ros.engine.interface import STAGES
from vla_edge_ros.nodes import cdr

_LEVELS = dict.fromkeys(Decision, DiagnosticStatus.WARN) | {
    Decision.FRESH: DiagnosticStatus.OK,
    Decision.FRESH_LATE: DiagnosticStatus.OK,
    Decision.SAFE_STOP: DiagnosticStatus.ERROR,
    Decision.FAULT: DiagnosticStatus.ERROR,
}
_NOTHING = cdr.string("")
_PREDICTED_KEYS = [(stage, f"predicted_{stage}_ms") for stage in PASS_STAGES]
_STAGE_KEYS = [(f"{stage}_ms", f"{stage}_ns") for stage in STAGES]
_PRICE_KEYS = [(step.value, f"price_{step.value}_ms") for step in PRICED]
_NO_LAYOUT = cdr.ENCAPSULATION + cdr.uint32(0) + cdr.uint32(0)
_NO_ACCELERATIONS_NO_EFFORT = cdr.uint32(0) + cdr.uint32(0)


def trajectory_message(trajectory: GroupTrajectory) -> bytes:
    """The JointTrajectory that joint_trajectory_controller takes; a stamp of 0 means "from now" there."""
    message = bytearray(cdr.ENCAPSULATION)
    message += cdr.time(trajectory.stamp_ns)
    message += _frame_and_joints(trajectory.joints)
    message += cdr.uint32(len(trajectory.points))
    for point in trajectory.points:
        cdr.append_doubles(message, point.positions)
        cdr.append_doubles(message, point.velocities)
        message += _NO_ACCELERATIONS_NO_EFFORT
        message += cdr.time(point.time_from_start_ns)
    return bytes(message)


def command_message(command: GroupCommand) -> bytes:
    """The Float64MultiArray that forward_command_controller takes."""
    message = bytearray(_NO_LAYOUT)
    cdr.append_doubles(message, command.values)
    return bytes(message)


class TickMessage:
    """The `~/tick` message: one DiagnosticStatus whose values are strings under fixed keys."""

    def __init__(self, hardware_id: str, plan_id: str) -> None:
        self._plan_id = plan_id
        figures = self._figures(TickRecord(0, 0, 0, 0))
        self._keys = [cdr.string(key) for key in figures]
        self._begin = {
            decision: cdr.ENCAPSULATION
            + cdr.padded(level)
            + b"".join(map(cdr.string, ("tick", str(decision), hardware_id)))
            + cdr.uint32(len(figures))
            for decision, level in _LEVELS.items()
        }

    def of(self, record: TickRecord) -> bytes:
        parts = [self._begin[record.decision]]
        for key, value in zip(self._keys, self._figures(record).values(), strict=True):
            parts += key, _NOTHING if value is None or value == "" else cdr.string(str(value))
        return b"".join(parts)

    def _figures(self, record: TickRecord) -> dict[str, object]:
        own = record.own_pass
        predicted, prices = record.predicted_by_stage or {}, record.prices_ns or {}
        return {
            "tick": record.tick,
            "decision": record.decision,
            "reason": record.reason,
            "is_enabled": record.is_enabled,
            "effect_stamp_ns": record.effect_stamp_ns,
            "start_error_ms": _ms(record.start_error_ns),
            "frame_index": record.frame_index,
            "frame_stamp_ns": record.frame_stamp_ns,
            "frame_age_ms": _ms(record.frame_age_ns),
            "predicted_ms": _ms(record.predicted_ns),
            "allowance_ms": _ms(record.allowance_ns),
            **{key: _ms(predicted.get(stage)) for stage, key in _PREDICTED_KEYS},
            "step": record.step,
            "decoded_tokens": own and own.steps_done,
            "held_tokens": record.held_tokens,
            "forgotten_frames": record.forgotten_frames,
            **{key: _ms(prices.get(step)) for step, key in _PRICE_KEYS},
            "pass_ms": _ms(own and own.total_ns),
            **{key: _ms(own and getattr(own.stages, field)) for key, field in _STAGE_KEYS},
            "retained_frames": record.retained_frames,
            "evicted": " ".join(str(line["frame"]) for line in record.journal),
            "hold_ms": _ms(record.hold_ns),
            "steps_left": record.steps_left,
            "steps_dropped": record.steps_dropped,
            "skipped_ticks": record.skipped_ticks,
            "top_probability": record.top_probability,
            "entropy": record.entropy,
            "plan_id": self._plan_id,
            "events": " ".join(event["event"] for event in record.events),
        }


def telemetry(record: TickRecord, rates: Rates) -> dict[str, float]:
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
        "hold_streak": float(rates.hold_streak),
        "miss_rate": rates.miss_rate,
        "refusal_rate": rates.refusal_rate,
        "goodput": rates.goodput,
        "retained_frames": float(record.retained_frames),
        "top_probability": nan if record.top_probability is None else record.top_probability,
    }


def warm_up(*types: type) -> None:
    """Take one message of each type through its type support: the first Image of a process costs 119 ms."""
    for message_type in types:
        deserialize_message(serialize_message(message_type()), message_type)


def _ms(nanoseconds: int | None) -> str:
    return "" if nanoseconds is None else f"{nanoseconds / 1e6:.3f}"


@cache
def _frame_and_joints(joints: tuple[str, ...]) -> bytes:
    """The frame_id, which is empty, and joint_names."""
    return cdr.string("") + cdr.uint32(len(joints)) + b"".join(map(cdr.string, joints))
