"""A robot around one edge node: its camera, its joints, whoever listens, and the hand on its life cycle."""

import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.srv import SetParameters
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile, qos_profile_sensor_data
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64MultiArray, String
from std_srvs.srv import SetBool, Trigger
from trajectory_msgs.msg import JointTrajectory

from vla_edge_ros.engine.linux import process_memory
from vla_edge_ros.nodes.live_run import Process

PATIENCE_S = 15.0
ARM = [f"joint{i}" for i in range(1, 7)]
ALL = QoSProfile(depth=1000)
NEWEST = QoSProfile(depth=1)
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)

_TRANSITIONS = {
    "configure": Transition.TRANSITION_CONFIGURE,
    "cleanup": Transition.TRANSITION_CLEANUP,
    "activate": Transition.TRANSITION_ACTIVATE,
    "deactivate": Transition.TRANSITION_DEACTIVATE,
}


class Robot:
    """Messages flow while a method here waits; every wait has a bound and fails with the node's own words.

    picture: makes the message that the camera sends 60 times a second; None: no camera.
    joints: positions sent 50 times a second by joint name; None: no joint states.
    ticks: the values of each `~/tick`, with `received_ns` (steady). statuses: the newest of each name.
    """

    def __init__(self, context: rclpy.Context, edge: Process, namespace: str = "") -> None:
        self.edge = edge
        self.name = f"{namespace}/vla_edge_node"
        self.picture = None
        self.joints: dict[str, float] | None = None
        self.ticks: list[dict[str, str]] = []
        self.trajectories: list[JointTrajectory] = []
        self.commands: list[list[float]] = []
        self.statuses: dict[str, DiagnosticStatus] = {}
        self.node = rclpy.create_node("robot", namespace=namespace, context=context)
        self._executor = SingleThreadedExecutor(context=context)
        self._executor.add_node(self.node)
        self.camera = self.node.create_publisher(Image, "image", qos_profile_sensor_data)
        self._joint_states = self.node.create_publisher(JointState, "joint_states", 10)
        self.listen(DiagnosticStatus, "tick", self._on_tick)
        self.listen(JointTrajectory, "trajectory", self.trajectories.append)
        self.listen(Float64MultiArray, "command", lambda message: self.commands.append(list(message.data)))
        self.node.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, ALL)
        self._speakers = []
        self._mark = 0
        self._has_met = False
        self._clients = {
            name: self.node.create_client(kind, f"{self.name}/{name}")
            for name, kind in {
                "change_state": ChangeState,
                "set_parameters": SetParameters,
                "enable": SetBool,
                "reset_memory": Trigger,
                "get_state": GetState,
            }.items()
        }
        self.node.create_timer(1 / 60, self._send_picture)
        self.node.create_timer(1 / 50, self._send_joints)

    def close(self) -> None:
        self._executor.shutdown()
        self.node.destroy_node()

    def listen(self, kind: type, topic: str, heard) -> None:
        self.node.create_subscription(kind, f"{self.name}/{topic}", heard, ALL)

    # Waiting

    def until(self, condition, seconds: float = PATIENCE_S):
        """Let messages flow until `condition()` is true; returns what it gave."""
        end = time.monotonic() + seconds
        while not (found := condition()):
            if time.monotonic() > end:
                raise AssertionError("waited in vain; the node's last words:\n" + self.log()[-3000:])
            self._executor.spin_once(timeout_sec=0.02)
        return found

    def next_ticks(self, count: int) -> list[dict[str, str]]:
        """The next `count` ticks."""
        first = len(self.ticks)
        self.until(lambda: len(self.ticks) >= first + count)
        return self.ticks[first : first + count]

    def until_tick(self, seconds: float = PATIENCE_S, **wanted: str) -> dict[str, str]:
        """The first coming tick with these values."""
        seen = len(self.ticks)

        def found():
            return [tick for tick in self.ticks[seen:] if wanted.items() <= tick.items()]

        return self.until(found, seconds)[0]

    def until_event(self, event: str) -> dict[str, str]:
        """The first tick since the last call or message of ours at whose start `event` took effect."""

        def found():
            return [tick for tick in self.ticks[self._mark :] if event in tick["events"].split()]

        return self.until(found)[0]

    def mark(self) -> None:
        """What is waited for may happen from now on."""
        self._mark = len(self.ticks)

    def until_status(self, name: str, level: bytes, words: str = "") -> DiagnosticStatus:
        """The status of the node's part `name` once it has that level and these words in its message."""

        def found():
            status = self._status(name)
            return status if status and status.level == level and words in status.message else None

        self.statuses.clear()
        return self.until(found)

    def value(self, part: str, key: str) -> str | None:
        """A value of the newest status of the node's part, once there is one."""
        status = self.until(lambda: self._status(part))
        return next((value.value for value in status.values if value.key == key), None)

    def _status(self, part: str) -> DiagnosticStatus | None:
        return self.statuses.get(f"{self.name.removeprefix('/')}: {part}")

    # The node

    def log(self) -> str:
        return "\n".join(self.edge.log_lines())

    def until_logged(self, words: str) -> str:
        """The first line of the node's log with these words."""
        return self.until(lambda: [line for line in self.edge.log_lines() if words in line])[0]

    def request(self, service: str, request):
        """The future of the answer."""
        if not self._has_met:
            self._meet()
        client = self._clients[service]
        self.until(client.service_is_ready)
        self.mark()
        return client.call_async(request)

    def _meet(self) -> None:
        """Ask until there is an answer: a node that has just started may lose its first ones.

        Discovery goes in the order of creation: to have met the last client is to have met all.
        """
        client = self._clients["get_state"]
        self.until(client.service_is_ready)
        asked_s, future = 0.0, None

        def has_answered() -> bool:
            nonlocal asked_s, future
            if time.monotonic() - asked_s > 0.5:
                asked_s, future = time.monotonic(), client.call_async(GetState.Request())
            return future.done()

        self.until(has_answered)
        self._has_met = True

    def call(self, service: str, request):
        future = self.request(service, request)
        self.until(future.done)
        return future.result()

    def begin(self, transition: str):
        """Ask for a transition; the future of the answer."""
        request = ChangeState.Request(transition=Transition(id=_TRANSITIONS[transition]))
        return self.request("change_state", request)

    def change(self, transition: str) -> bool:
        """Whether the node made this transition."""
        future = self.begin(transition)
        self.until(future.done)
        return future.result().success

    def state(self) -> str:
        return self.call("get_state", GetState.Request()).current_state.label

    def bring_to(self, state: str) -> None:
        """Bring the node to unconfigured, inactive or active, whatever state it is in."""
        ways = {
            ("unconfigured", "inactive"): ["configure"],
            ("unconfigured", "active"): ["configure", "activate"],
            ("inactive", "unconfigured"): ["cleanup"],
            ("inactive", "active"): ["activate"],
            ("active", "inactive"): ["deactivate"],
            ("active", "unconfigured"): ["deactivate", "cleanup"],
        }
        for transition in ways.get((self.state(), state), []):
            assert self.change(transition), self.log()[-3000:]

    def set(self, **values: object) -> str:
        """Set parameters (`__` for a dot); the node's reason where it refused, else empty."""
        parameters = [Parameter(name.replace("__", "."), value=value) for name, value in values.items()]
        request = SetParameters.Request(parameters=[p.to_parameter_msg() for p in parameters])
        results = self.call("set_parameters", request).results
        return "; ".join(result.reason or "no reason" for result in results if not result.successful)

    def reconfigure(self, **values: object) -> None:
        """Have the node active with these parameters."""
        self.bring_to("unconfigured")
        assert self.set(**values) == ""
        self.bring_to("active")

    def enable(self, is_enabled: bool = True) -> SetBool.Response:
        return self.call("enable", SetBool.Request(data=is_enabled))

    def disable(self) -> None:
        """Return when the node is disabled."""
        assert self.enable(False).success
        self.until_event("disable")

    def reset_memory(self) -> None:
        assert self.call("reset_memory", Trigger.Request()).success

    def move(self) -> None:
        """Have the node enabled and sending trajectories."""
        self.picture, self.joints = noise, dict.fromkeys([*ARM, "gripper"], 0.1)
        self.until(lambda: self.enable().success)
        self.trajectories.clear()
        self.until(lambda: len(self.trajectories) >= 2)

    def until_rest(self) -> None:
        """Return when the newest trajectory is a braking point; there may be only this one."""
        self.until(lambda: self.trajectories and is_braking_point(self.trajectories[-1]))
        assert sum(map(is_braking_point, self.trajectories)) == 1

    def engine_pid(self) -> int:
        """The process id of the node's engine, once it has one that lives."""
        return self.child_pid("vla_edge_ros.engine.child")

    def child_pid(self, module: str) -> int:
        return self.until(lambda: _child(self.edge.pid, module))

    # What flows

    def replace_camera(self, kind: type, topic: str = "image") -> None:
        """Have a camera that sends messages of this type."""
        self.node.destroy_publisher(self.camera)
        self.camera = self.node.create_publisher(kind, topic, qos_profile_sensor_data)

    def tell(self, text: str, qos: QoSProfile = LATCHED):
        """Publish an instruction, once somebody listens where it is not latched; returns the publisher."""
        publisher = self.node.create_publisher(String, "instruction", qos)
        self._speakers.append(publisher)
        if qos is not LATCHED:
            self.until(publisher.get_subscription_count)
        self.mark()
        publisher.publish(String(data=text))
        return publisher

    def hush(self) -> None:
        """Take back what was told: a latched text would be heard again."""
        while self._speakers:
            self.node.destroy_publisher(self._speakers.pop())

    def _on_tick(self, message: DiagnosticStatus) -> None:
        self.ticks.append({value.key: value.value for value in message.values})

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        self.statuses.update({status.name: status for status in message.status})

    def _send_picture(self) -> None:
        if self.picture is not None:
            message = self.picture()
            message.header.stamp = self.node.get_clock().now().to_msg()
            self.camera.publish(message)

    def _send_joints(self) -> None:
        if self.joints is not None:
            message = JointState(name=list(self.joints), position=list(self.joints.values()))
            self._joint_states.publish(message)


def is_braking_point(trajectory: JointTrajectory) -> bool:
    """One point in the future at which the whole arm stands still."""
    return (
        trajectory.joint_names == ARM
        and len(trajectory.points) == 1
        and list(trajectory.points[0].velocities) == [0.0] * len(ARM)
        and nanoseconds(trajectory.points[0].time_from_start) > 0
    )


def nanoseconds(time_or_duration) -> int:
    return time_or_duration.sec * 1_000_000_000 + time_or_duration.nanosec


def assert_consecutive(ticks: list[dict[str, str]]) -> None:
    for before, tick in pairwise(ticks):
        assert int(tick["tick"]) == int(before["tick"]) + 1 + int(tick["skipped_ticks"])


def noise(width: int = 64, height: int = 48) -> Image:
    """A picture unlike every other."""
    pixels = np.random.default_rng().integers(0, 256, (height, width, 3), np.uint8)
    return Image(width=width, height=height, encoding="rgb8", step=3 * width, data=pixels.tobytes())


def _child(pid: int, module: str) -> int | None:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            if module.encode() in Path(f"/proc/{child}/cmdline").read_bytes() and process_memory(int(child)):
                return int(child)
    return None
