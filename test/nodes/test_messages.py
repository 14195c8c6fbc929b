"""The figures of a tick as messages."""

import math
from array import array

import pytest
from builtin_interfaces.msg import Duration, Time
from diagnostic_msgs.msg import DiagnosticStatus, KeyValue
from rclpy.serialization import deserialize_message
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from vla_edge_ros.actions.messages import GroupCommand, GroupTrajectory, TrajectoryPoint
from vla_edge_ros.control.decision import Decision
from vla_edge_ros.control.promise import Promise
from vla_edge_ros.control.record import TickRecord, WorkTimes
from vla_edge_ros.engine.interface import STAGES, StageTimes
from vla_edge_ros.nodes.messages import TickMessage, command_message, telemetry, trajectory_message

MS = 1_000_000


def test_a_stage_has_one_name_and_one_meaning_on_the_tick_and_in_telemetry():
    stages = StageTimes(copy_ns=1 * MS, vision_ns=2 * MS, prefill_ns=3 * MS, decode_ns=4 * MS)
    record = TickRecord(0, 0, 0, 0, submitted_work=7)
    record.work.append(WorkTimes(7, "frame", 0, 0, 10 * MS, 10 * MS, stages))
    wanted = {"copy_ms": 1.0, "vision_ms": 2.0, "prefill_ms": 3.0, "decode_ms": 4.0}
    assert wanted.items() <= telemetry(record, Promise().rates()).items()
    message = deserialize_message(TickMessage("node", "cuda-1").of(record), DiagnosticStatus)
    tick = {value.key: value.value for value in message.values}
    assert {name: float(tick[name]) for name in wanted} == wanted
    assert tick["plan_id"] == "cuda-1"


def test_a_tick_without_a_pass_leaves_a_gap_in_each_stage():
    figures = telemetry(TickRecord(0, 0, 0, 0), Promise().rates())
    assert all(math.isnan(figures[f"{stage}_ms"]) for stage in STAGES)


@pytest.mark.parametrize("n_joints", [0, 1, 6, 7])
@pytest.mark.parametrize("n_points", [0, 1, 3])
@pytest.mark.parametrize("has_velocities", [False, True])
def test_a_trajectory_is_the_message_that_was_meant(n_joints, n_points, has_velocities):
    joints = tuple(f"joint{'x' * i}" for i in range(n_joints))
    points = [
        TrajectoryPoint(
            array("d", [0.1 * i + k for i in range(n_joints)]),
            array("d", [0.0] * n_joints if has_velocities else []),
            2_000_000_001 + k,
        )
        for k in range(n_points)
    ]
    wanted = JointTrajectory(joint_names=list(joints))
    wanted.header.stamp = Time(sec=1_700_000_000, nanosec=5)
    wanted.points = [
        JointTrajectoryPoint(
            positions=point.positions,
            velocities=point.velocities,
            time_from_start=Duration(sec=2, nanosec=1 + k),
        )
        for k, point in enumerate(points)
    ]
    sent = trajectory_message(GroupTrajectory("arm", joints, 1_700_000_000 * 1000 * MS + 5, points))
    assert deserialize_message(sent, JointTrajectory) == wanted


@pytest.mark.parametrize("n", [0, 1, 6])
def test_a_command_is_the_message_that_was_meant(n):
    values = array("d", [1.5 - i for i in range(n)])
    sent = command_message(GroupCommand("arm", tuple(map(str, range(n))), values))
    assert deserialize_message(sent, Float64MultiArray) == Float64MultiArray(data=values)


@pytest.mark.parametrize("decision", Decision)
def test_a_tick_says_its_decision_its_level_and_its_reason_in_any_script(decision):
    record = TickRecord(7, 0, 0, 0, decision, reason="zu spät: 遅い")
    message = deserialize_message(TickMessage("/arm/node", "").of(record), DiagnosticStatus)
    assert (message.name, message.hardware_id, message.message) == ("tick", "/arm/node", str(decision))
    assert (message.level == DiagnosticStatus.OK) == decision.is_fresh
    assert message.values[:3] == [
        KeyValue(key="tick", value="7"),
        KeyValue(key="decision", value=str(decision)),
        KeyValue(key="reason", value="zu spät: 遅い"),
    ]
    assert message.values[-1] == KeyValue(key="events", value="")
