"""Publishes what a tick says."""

import time
from collections import deque
from collections.abc import Sequence

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.duration import Duration
from rclpy.node import Node
from std_msgs.msg import Float64, Float64MultiArray
from trajectory_msgs.msg import JointTrajectory

from vla_edge_ros.actions.messages import GroupCommand, GroupTrajectory
from vla_edge_ros.actions.policy import Group, Interface
from vla_edge_ros.control.promise import Promise, Rates
from vla_edge_ros.control.record import TickRecord
from vla_edge_ros.control.recorder import Recorder
from vla_edge_ros.nodes.messages import TickMessage, command_message, telemetry, trajectory_message

LAST_MESSAGES_S = 0.3
"""Longest wait for the controllers to have what was sent last: one that hangs must not hold up the end."""
MOST_UNSENT = 300
"""Ticks whose telemetry is kept for an executor that hangs, 10 s; of a longer pause the oldest are lost."""


class RosSink:
    """The publishers of the tick thread, reliable with depth 1, and the recorder beside them.

    Telemetry is of no use to the robot and is left to the executor's thread: `send_telemetry`.

    plan_id: the engine's; one that replaces it follows the same plan.
    """

    def __init__(
        self,
        node: Node,
        groups: Sequence[Group],
        recorder: Recorder | None,
        promise: Promise,
        plan_id: str,
    ) -> None:
        self._node = node
        self._promise = promise
        self._groups = {
            group.name: node.create_publisher(
                JointTrajectory if group.interface is Interface.TRAJECTORY else Float64MultiArray,
                group.topic,
                1,
            )
            for group in groups
        }
        self._tick = node.create_publisher(DiagnosticStatus, "~/tick", 1)
        self._telemetry = {
            name: node.create_publisher(Float64, f"~/telemetry/{name}", 1)
            for name in telemetry(TickRecord(0, 0, 0, 0), promise.rates())
        }
        self._tick_message = TickMessage(node.get_fully_qualified_name(), plan_id)
        self._told = b""
        self._figure = Float64()
        self._unsent: deque[tuple[TickRecord, Rates]] = deque(maxlen=MOST_UNSENT)
        self._recorder = recorder

    def destroy(self) -> None:
        """Destroy the publishers once the controllers have the last messages, the stop of the motion.

        A message goes down with its publisher where that is destroyed at once: one stop in three was lost.
        """
        end_s = time.monotonic() + LAST_MESSAGES_S
        for publisher in self._groups.values():
            publisher.wait_for_all_acked(Duration(seconds=max(0.0, end_s - time.monotonic())))
        for publisher in (*self._groups.values(), self._tick, *self._telemetry.values()):
            self._node.destroy_publisher(publisher)

    def trajectory(self, trajectory: GroupTrajectory) -> None:
        self._groups[trajectory.group].publish(trajectory_message(trajectory))

    def command(self, command: GroupCommand) -> None:
        self._groups[command.group].publish(command_message(command))

    def prepare(self, record: TickRecord) -> None:
        self._told = self._tick_message.of(record)

    def tick(self, record: TickRecord) -> None:
        self._tick.publish(self._told)

    def finished(self, record: TickRecord) -> None:
        self._unsent.append((record, self._promise.rates()))
        if self._recorder is not None:
            self._recorder.put(record)

    def send_telemetry(self) -> None:
        """Publish the figures of every tick that has ended since the last call, in their order."""
        while self._unsent:
            for name, value in telemetry(*self._unsent.popleft()).items():
                self._figure.data = value
                self._telemetry[name].publish(self._figure)
