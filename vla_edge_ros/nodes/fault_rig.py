"""What faults are injected into: the real node as a process, its camera, its robot, and who listens."""

import contextlib
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from lifecycle_msgs.msg import Transition
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile
from rclpy.time import Time
from rosgraph_msgs.msg import Clock
from std_msgs.msg import String
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from vla_edge_ros.actions.policy import Interface
from vla_edge_ros.control import settings
from vla_edge_ros.engine.linux import process_memory
from vla_edge_ros.evaluation.fault_verdict import ToldTick
from vla_edge_ros.evaluation.faults import LINES
from vla_edge_ros.nodes.engine_process import engine_of
from vla_edge_ros.nodes.fault_camera import FaultCamera
from vla_edge_ros.nodes.live_run import CONFIGURE_TIMEOUT_S, START_TIMEOUT_S, Driver, Process, resting
from vla_edge_ros.nodes.parameters import to_ros

NODE = "/vla_edge_node"
PATIENCE_S = 15.0
_ALL = QoSProfile(depth=1000)
_LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


class FaultRig:
    """Messages flow while a method here waits; a wait that is in vain raises UserError.

    module: the node's module. folder: for the files of the processes and what the node records, by the name
    `record`.
    ticks: every `~/tick` heard. trajectories: the newest by topic, for each that the policy sends them to.
    edge: the node's process, another one after `start`.
    """

    def __init__(self, values: dict, module: str, folder: Path, record: str = LINES) -> None:
        self.folder = folder
        self.ticks: list[ToldTick] = []
        self.statuses: dict[str, DiagnosticStatus] = {}
        self.trajectories: dict[str, JointTrajectory | None] = dict.fromkeys(_trajectory_topics(values))
        self.record = folder / record
        self.values, self._module = values, module
        self._cleanup = contextlib.ExitStack()

    def __enter__(self) -> "FaultRig":
        with contextlib.ExitStack() as cleanup:
            self._cleanup = cleanup
            self.start()
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(self, *_) -> None:
        self._cleanup.close()

    def start(self) -> None:
        """Start a node with a camera and a robot around it, active and disabled."""
        self._cleanup.close()
        self.trajectories = dict.fromkeys(self.trajectories)
        values = self.values | {"control.record_path": str(self.record)}
        self.edge = Process(self._module, to_ros(values), self.folder)
        self._cleanup.callback(self.edge.kill)
        self.driver = Driver(self.edge)
        self._cleanup.callback(self.driver.close)
        node = self.driver.node
        node.create_subscription(DiagnosticStatus, f"{NODE}/tick", self._on_tick, _ALL)
        for topic in self.trajectories:
            node.create_subscription(JointTrajectory, topic, partial(self._on_trajectory, topic), _ALL)
        node.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, _ALL)
        self._instructions = node.create_publisher(String, "instruction", _LATCHED)
        self._clock = node.create_publisher(Clock, "/clock", 10)
        self._parameters = node.create_client(SetParameters, f"{NODE}/set_parameters")
        self._reset = node.create_client(Trigger, f"{NODE}/reset_memory")
        self.driver.meet()
        self.driver.change(Transition.TRANSITION_CONFIGURE, "configure", CONFIGURE_TIMEOUT_S)
        self.camera = FaultCamera(node)
        self._cleanup.callback(self.camera.close)
        self.driver.change(Transition.TRANSITION_ACTIVATE, "activate", START_TIMEOUT_S)
        self.driver.be_robot(resting(settings.policy_of(self.values).dimensions))

    def stop(self) -> None:
        """End the node as one should: a killed one leaves its shared memory behind."""
        self.driver.change(Transition.TRANSITION_DEACTIVATE, "deactivate", START_TIMEOUT_S)
        self.edge.stop()

    # Waiting

    def until(self, is_done: Callable[[], bool], purpose: str, timeout_s: float = PATIENCE_S) -> None:
        """Return once `is_done()`. Raises UserError that the node did not do what `purpose` names."""
        self.driver.wait_for(is_done, purpose, timeout_s)

    def spin(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= end_s, "stay alive", seconds + PATIENCE_S)

    def spin_until(self, is_done: Callable[[], bool], seconds: float) -> bool:
        """Let messages flow until `is_done()`, at most so long; whether it was."""
        end_s = time.monotonic() + seconds
        self.until(lambda: is_done() or time.monotonic() >= end_s, "stay alive", seconds + PATIENCE_S)
        return is_done()

    def since(self, mark: int) -> list[ToldTick]:
        """The ticks heard since there were `mark` of them."""
        return self.ticks[mark:]

    def has_event(self, mark: int, event: str, times: int = 1) -> bool:
        """Whether it took effect so often since there were `mark` ticks."""
        return sum(tick.events.count(event) for tick in self.since(mark)) >= times

    # The node

    @property
    def is_fifo(self) -> bool:
        """Whether it was granted SCHED_FIFO."""
        return os.sched_getscheduler(self.edge.pid) == os.SCHED_FIFO

    def engine_pid(self) -> int:
        """The engine's process, once there is one that lives."""
        found: list[int] = []

        def has_engine() -> bool:
            pid = engine_of(self.edge.pid)
            if pid is not None and process_memory(pid):
                found.append(pid)
            return bool(found)

        self.until(has_engine, "have an engine")
        return found[0]

    def set_parameter(self, name: str, value: object) -> bool:
        """Whether the node took it."""
        request = SetParameters.Request(parameters=[Parameter(name, value=value).to_parameter_msg()])
        future = self._parameters.call_async(request)
        self.until(future.done, f"answer to setting {name}")
        return future.result().results[0].successful

    def reset_memory(self) -> None:
        future = self._reset.call_async(Trigger.Request())
        self.until(future.done, "answer to ~/reset_memory")

    def instruct(self, text: str) -> None:
        self._instructions.publish(String(data=text))

    def show_clock(self, seconds: float) -> None:
        self._clock.publish(Clock(clock=Time(nanoseconds=round(seconds * 1e9)).to_msg()))

    def is_at_rest(self) -> bool:
        """Whether the newest trajectory of each topic is a stop, one point without velocity.

        One that was never heard is none; of a policy that sends no trajectory it is true.
        """
        return all(map(_is_stop, self.trajectories.values()))

    def camera_count(self, kind: str) -> int:
        """Pictures of this kind of stamp, as /diagnostics counts them."""
        status = self.status("camera")
        values = status.values if status is not None else ()
        return next((int(value.value) for value in values if value.key == f"stamp_{kind}"), 0)

    def status(self, part: str) -> DiagnosticStatus | None:
        """The newest in /diagnostics of the node's part."""
        return self.statuses.get(f"vla_edge_node: {part}")

    def _on_tick(self, message: DiagnosticStatus) -> None:
        values = {value.key: value.value for value in message.values}
        self.ticks.append(ToldTick.from_values(values, time.monotonic_ns()))

    def _on_trajectory(self, topic: str, message: JointTrajectory) -> None:
        self.trajectories[topic] = message

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        self.statuses.update({status.name: status for status in message.status})


def _trajectory_topics(values: dict) -> list[str]:
    """Those of the policy's trajectory groups, as the node without a namespace has them."""
    topics = [g.topic for g in settings.policy_of(values).groups if g.interface is Interface.TRAJECTORY]
    return [NODE + topic[1:] if topic.startswith("~/") else "/" + topic.removeprefix("/") for topic in topics]


def _is_stop(trajectory: JointTrajectory | None) -> bool:
    points = trajectory.points if trajectory is not None else ()
    return len(points) == 1 and len(points[0].velocities) > 0 and not any(points[0].velocities)
