"""`/diagnostics` once a second: what each part of the node counts, and a judgement of it."""

import os
import time
from collections.abc import Callable

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.clock import Clock, ClockType
from rclpy.node import Node

from vla_edge_ros.control.controller import Controller
from vla_edge_ros.control.decision import Decision
from vla_edge_ros.control.recorder import Recorder
from vla_edge_ros.engine.interface import EngineInfo, total_bytes
from vla_edge_ros.engine.linux import process_memory
from vla_edge_ros.engine.process import ProcessEngine
from vla_edge_ros.nodes.supervisor import EngineSupervisor
from vla_edge_ros.perception.camera import CameraPipeline
from vla_edge_ros.perception.frame_buffer import FrameBuffer

PERIOD_S = 1.0

OK = DiagnosticStatus.OK
WARN = DiagnosticStatus.WARN
ERROR = DiagnosticStatus.ERROR

Section = tuple[bytes, str, dict[str, object]]
"""Level, one-line summary, values."""


class DiagnosticsPublisher:
    """Publishes one status a section; a section is a function that looks at one part and judges it."""

    def __init__(self, node: Node, sections: dict[str, Callable[[], Section]]) -> None:
        self._node = node
        self._sections = sections
        self._publisher = node.create_publisher(DiagnosticArray, "/diagnostics", 1)
        # On ROS time it would never fire under use_sim_time without /clock.
        self._timer = node.create_timer(
            PERIOD_S, self._publish, clock=Clock(clock_type=ClockType.STEADY_TIME)
        )

    def destroy(self) -> None:
        self._node.destroy_timer(self._timer)
        self._node.destroy_publisher(self._publisher)

    def _publish(self) -> None:
        message = DiagnosticArray()
        message.header.stamp = self._node.get_clock().now().to_msg()
        # With the namespace, or an aggregator takes two arms' nodes for one.
        node_name = self._node.get_fully_qualified_name()
        for name, look in self._sections.items():
            level, summary, values = _looked(look)
            message.status.append(
                DiagnosticStatus(
                    level=level,
                    name=f"{node_name.removeprefix('/')}: {name}",
                    message=summary,
                    hardware_id=node_name,
                    values=[KeyValue(key=key, value=str(value)) for key, value in values.items()],
                )
            )
        self._publisher.publish(message)


def _looked(look: Callable[[], Section]) -> Section:
    """A defect in reporting must not stop the node that it reports on."""
    try:
        return look()
    except Exception as error:
        return ERROR, f"{type(error).__name__}: {error}", {}


class _Rate:
    """Events a second between two looks at a counter."""

    def __init__(self) -> None:
        self._count = 0
        self._seen_s = time.monotonic()

    def since_last(self, count: int) -> float:
        now_s = time.monotonic()
        rate = (count - self._count) / max(now_s - self._seen_s, 1e-9)
        self._count, self._seen_s = count, now_s
        return rate


def sections(
    controller: Controller,
    camera: CameraPipeline,
    frames: FrameBuffer,
    engine: ProcessEngine,
    supervisor: EngineSupervisor,
    info: EngineInfo,
    budget_bytes: int,
    recorder: Recorder | None,
) -> dict[str, Callable[[], Section]]:
    """What is looked at, by name."""
    frames_rate, refusals_rate, ticks_rate = _Rate(), _Rate(), _Rate()

    def camera_section() -> Section:
        rate_hz = frames_rate.since_last(camera.received)
        refused = sum(camera.refused.values())
        newest = frames.peek()
        values = {
            "rate_hz": f"{rate_hz:.1f}",
            "received": camera.received,
            "published": camera.published,
            "withheld": camera.withheld,
            "stamp_delay_ms": "" if newest is None else f"{newest.age_ns(newest.receipt_ns) / 1e6:.1f}",
            "buffer_is_locked": frames.is_locked,
            "buffer_retries": frames.retries,
            "buffer_contended": frames.contended,
            "refused": refused,
            **{f"refused_{kind.value}": count for kind, count in camera.refused.items() if count},
            **{f"stamp_{kind.value}": count for kind, count in camera.watch.counts.items() if count},
        }
        if rate_hz == 0:
            return ERROR, "no images arrive", values
        if camera.is_frozen:
            return ERROR, "the camera is frozen", values
        if refusals_rate.since_last(refused):
            return WARN, camera.last_refusal.reason, values
        if not frames.is_locked:
            return WARN, "the frame buffer is not locked in memory, see the memlock limit", values
        return OK, f"{rate_hz:.1f} Hz", values

    def control_section() -> Section:
        totals = controller.totals
        rate_hz = ticks_rate.since_last(totals.ticks)
        values = {
            "rate_hz": f"{rate_hz:.1f}",
            "is_enabled": controller.is_enabled,
            "ticks": totals.ticks,
            "skipped_ticks": totals.skipped_ticks,
            "late_publishes": totals.late_publishes,
            "misses": totals.misses,
            "aborted_passes": totals.aborted_passes,
            "refusals": controller.admission.refusals,
            "longest_refusal_ticks": controller.admission.longest_refusal,
            "probes": controller.admission.probes,
            "steps_dropped": controller.planner.steps_dropped,
            "joint_states_refused": controller.planner.joint_states_refused,
            **{decision.value: count for decision, count in controller.decision_counts.items()},
        }
        last = controller.last_record
        if rate_hz == 0:
            return WARN, "no ticks: the node is not active", values
        values["reason"] = last.reason
        if last.decision in (Decision.FAULT, Decision.SAFE_STOP):
            return ERROR, f"{last.decision}: {last.reason}", values
        if last.decision.is_hold:
            return WARN, f"{last.decision}: {last.reason}", values
        return OK, str(last.decision), values

    def promise_section() -> Section:
        promise = controller.promise
        low, high = promise.miss_interval()
        values = {
            "estimator": controller.admission.config.estimator,
            "target_miss_rate": promise.target,
            "ticks": promise.ticks,
            "misses": promise.misses,
            "miss_rate": f"{promise.miss_rate:.6f}",
            "miss_rate_wilson_95_low": f"{low:.6f}",
            "miss_rate_wilson_95_high": f"{high:.6f}",
            "refusal_rate": f"{promise.refusal_rate:.6f}",
            "longest_refusal_ticks": promise.longest_refusal,
            "goodput": f"{promise.goodput:.6f}",
            "hold_streak_ticks": promise.hold_streak,
            "longest_hold_ticks": promise.longest_hold,
            **{f"step_{step}_ticks": count for step, count in promise.steps.items()},
            **{f"blamed_on_{stage}": count for stage, count in promise.blame.items()},
        }
        last = controller.last_record
        if last is not None and last.own_pass is not None and last.predicted_ns is not None:
            values["predicted_ms"] = f"{last.predicted_ns / 1e6:.3f}"
            values["pass_ms"] = f"{last.own_pass.total_ns / 1e6:.3f}"
        return (ERROR if promise.is_broken else OK), promise.in_words(), values

    def memory_section() -> Section:
        memory = controller.memory
        values = {
            "retained_frames": len(memory.frames),
            "capacity_frames": memory.capacity_frames,
            "evictions": controller.totals.evictions,
            "policy": memory.policy.name,
        }
        return OK, f"{len(memory.frames)} of {memory.capacity_frames} frames", values

    def engine_section() -> Section:
        rss_bytes = engine.rss_bytes()
        values = {
            "backend": info.backend,
            "plan_id": info.plan_id,
            "pid": engine.pid,
            "restarts": supervisor.restarts,
            "node_rss_bytes": process_memory(os.getpid()),
            "engine_rss_bytes": rss_bytes,
            **{f"{purpose}_bytes": count for purpose, count in info.account_bytes.items()},
            "total_bytes": total_bytes(info.account_bytes),
            "budget_bytes": budget_bytes,
        }
        if not rss_bytes:
            return ERROR, "the engine process is gone", values
        return OK, f"process {engine.pid}", values

    def recorder_section() -> Section:
        if recorder is None:
            return OK, "not recording", {}
        values = {"dropped": recorder.dropped}
        if recorder.error is not None:
            return ERROR, recorder.error, values
        return (WARN if recorder.dropped else OK), f"{recorder.dropped} items dropped", values

    return {
        "camera": camera_section,
        "control": control_section,
        "promise": promise_section,
        "memory": memory_section,
        "engine": engine_section,
        "recorder": recorder_section,
    }
