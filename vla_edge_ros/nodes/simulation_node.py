"""`simulation`: a table with an arm, its camera and its controllers, in real time.

Publishes   image (sensor_msgs/Image, 128x64 rgb8, `camera_hz`), joint_states (sensor_msgs/JointState,
            100 Hz), instruction (std_msgs/String, transient local), ~/episode
            (diagnostic_msgs/DiagnosticStatus, 30 Hz: how the task stands)
Subscribes  vla_edge_node/trajectory (trajectory_msgs/JointTrajectory) and vla_edge_node/command
            (std_msgs/Float64MultiArray, the gripper), as joint_trajectory_controller and
            forward_command_controller do; instruction (std_msgs/String): what someone else tells the arm is
            judged in place of the task until the next ~/reset
Services    ~/reset (std_srvs/Trigger): begin the episode that the parameters `task` and `seed` name
Parameters  docs/parameters.md
Exit codes: 0 on Ctrl-C and on SIGTERM; 1 after a defect; 2 where a parameter or the renderer cannot be had.
"""

import array
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticStatus, KeyValue
from rcl_interfaces.msg import SetParametersResult
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, qos_profile_sensor_data
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64MultiArray, String
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from vla_edge_ros.control.clock import SteadyClock
from vla_edge_ros.control.realtime import set_fifo_priority
from vla_edge_ros.errors import UserError
from vla_edge_ros.nodes.bag_recorder import BagRecorder
from vla_edge_ros.nodes.images import rgb8_image
from vla_edge_ros.nodes.parameters import declare
from vla_edge_ros.parameters import SIMULATION, ParameterRefused, validate
from vla_edge_ros.simulation.controllers import Waypoint
from vla_edge_ros.simulation.live_table import LiveTable
from vla_edge_ros.simulation.renderer import Renderer, with_sensor_noise
from vla_edge_ros.simulation.scene import JOINTS

_NANOSECONDS = 1_000_000_000
JOINT_STATES_HZ = 100
PHYSICS_PRIORITY = 50
"""SCHED_FIFO, as ros2_control's controller_manager asks for: above the edge node's."""
SPIN_S = 0.1
ECHO_NS = _NANOSECONDS
"""A text that was sent itself so shortly before is no one else's."""
RECORDED = {
    "image": "sensor_msgs/msg/Image",
    "joint_states": "sensor_msgs/msg/JointState",
    "instruction": "std_msgs/msg/String",
    "vla_edge_node/trajectory": "trajectory_msgs/msg/JointTrajectory",
    "vla_edge_node/command": "std_msgs/msg/Float64MultiArray",
}
"""Topics of `record_path`, by their names in the node, and what they are of."""
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


class SimulationNode(Node):
    """Callbacks share the executor's thread; physics and camera have one each, paced by the steady clock.

    failure: what ended one of the two; the node is of no use any more.
    """

    def __init__(self) -> None:
        """Raises UserError where a parameter is refused, or the recording cannot be written."""
        super().__init__("simulation")
        self.failure: Exception | None = None
        # What `destroy_node` needs comes first: a parameter may be refused.
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._recorder: BagRecorder | None = None
        self._values = declare(self, SIMULATION)
        self.add_on_set_parameters_callback(self._on_set_parameters)
        self._steady_clock = SteadyClock(lambda: self.get_clock().now().nanoseconds)
        self._lock = threading.Lock()
        self._table = LiveTable(
            self._values["seed"], self._values["task"], time.monotonic_ns(), self._values["instruction"]
        )
        self._images = self.create_publisher(Image, "image", qos_profile_sensor_data)
        self._joint_states = self.create_publisher(JointState, "joint_states", 10)
        self._instructions = self.create_publisher(String, "instruction", LATCHED)
        self._episode = self.create_publisher(DiagnosticStatus, "~/episode", 1)
        self.create_subscription(JointTrajectory, "vla_edge_node/trajectory", self._on_trajectory, 1)
        self.create_subscription(Float64MultiArray, "vla_edge_node/command", self._on_command, 1)
        self.create_subscription(String, "instruction", self._on_instruction, 10)
        self.create_service(Trigger, "~/reset", self._on_reset)
        self._n_images = self._n_joint_states = 0
        self._said: tuple[int, str] | None = None
        self._said_ns: dict[str, int] = {}
        if self._values["record_path"]:
            path = Path(self._values["record_path"])
            topics = {self.resolve_topic_name(topic): name for topic, name in RECORDED.items()}
            self._recorder = BagRecorder(path, topics)
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), name=work.__name__.strip("_"))
            for work in (self._run_physics, self._run_camera)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def destroy_node(self) -> None:
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        if self._recorder is not None:
            self._recorder.close()
            self.failure = self.failure or self._recorder.failure
        super().destroy_node()

    # Callbacks

    def _on_set_parameters(self, changes: list) -> SetParametersResult:
        taken = {}
        try:
            for change in changes:
                parameter = next((row for row in SIMULATION if row.name == change.name), None)
                if parameter is None:  # use_sim_time
                    continue
                if not parameter.is_live:
                    raise ParameterRefused(f"{change.name} is read once: start the simulation anew")
                taken[change.name] = validate(change.name, change.value, SIMULATION)
        except UserError as error:
            return SetParametersResult(successful=False, reason=str(error))
        self._values |= taken
        return SetParametersResult(successful=True)

    def _on_reset(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        with self._lock:
            self._table.reset(
                self._values["seed"], self._values["task"], time.monotonic_ns(), self._values["instruction"]
            )
            number = self._table.number
        response.success = True
        response.message = f"episode {number}: {self._values['task']}, seed {self._values['seed']}"
        return response

    def _on_instruction(self, message: String) -> None:
        """Someone tells the arm what to do; what the simulation said itself comes back here as well."""
        with self._lock:
            said_ns = self._said_ns.get(message.data, -ECHO_NS)
            if time.monotonic_ns() - said_ns > ECHO_NS:
                # The physics thread then says it too: who comes later hears it, and not the task's own words.
                self._table.instruct(message.data)

    def _on_trajectory(self, message: JointTrajectory) -> None:
        self._record("vla_edge_node/trajectory", message)
        points = [
            Waypoint(point.positions, point.velocities, _nanoseconds(point.time_from_start))
            for point in message.points
        ]
        steady_ns, ros_ns = self._steady_clock.pair()
        stamp_ns = _nanoseconds(message.header.stamp)
        start_ns = stamp_ns - ros_ns + steady_ns if stamp_ns else None
        with self._lock:
            refusal = self._table.trajectory.follow(message.joint_names, points, start_ns, steady_ns)
        if refusal is not None:
            self.get_logger().warning(refusal, throttle_duration_sec=5.0)

    def _on_command(self, message: Float64MultiArray) -> None:
        self._record("vla_edge_node/command", message)
        with self._lock:
            refusal = self._table.gripper.take(message.data)
        if refusal is not None:
            self.get_logger().warning(refusal, throttle_duration_sec=5.0)

    # Threads

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            # A context that was shut down from outside makes every publish raise.
            if self.context.ok():
                self.failure = error

    def _run_physics(self) -> None:
        # Where it is refused physics runs as it can, and what it skips is counted.
        set_fifo_priority(PHYSICS_PRIORITY)
        names = [*JOINTS, "gripper"]
        while self._wait_for_next(JOINT_STATES_HZ):
            state = JointState(name=names)
            with self._lock:
                is_judged = self._table.run_to(time.monotonic_ns())
                scene = self._table.scene
                state.header.stamp = self.get_clock().now().to_msg()
                state.position = array.array("d", [*scene.joint_positions, scene.gripper])
                state.velocity = array.array("d", [*scene.joint_velocities, 0.0])
                episode = self._table_to_message() if is_judged else None
                instruction = self._table.number, self._table.task.instruction
                is_new = instruction != self._said
                if is_new:
                    self._remember_saying(instruction)
            self._joint_states.publish(state)
            self._record("joint_states", state)
            self._n_joint_states += 1
            if is_new:
                said = String(data=instruction[1])
                self._instructions.publish(said)
                self._record("instruction", said)
            if episode is not None:
                self._episode.publish(episode)

    def _run_camera(self) -> None:
        renderer = Renderer(self._table.scene)
        noise = np.random.default_rng(0)
        try:
            while self._wait_for_next(self._values["camera_hz"]):
                stamp_ns = self.get_clock().now().nanoseconds
                # A sensor never gives one picture twice, which the node takes for a frozen camera.
                image = rgb8_image(with_sensor_noise(renderer.render(self._lock), noise), stamp_ns)
                image.header.frame_id = "camera"
                self._images.publish(image)
                self._record("image", image)
                self._n_images += 1
        finally:
            renderer.close()

    def _remember_saying(self, instruction: tuple[int, str]) -> None:
        now_ns = time.monotonic_ns()
        recent = {text: at_ns for text, at_ns in self._said_ns.items() if now_ns - at_ns <= ECHO_NS}
        self._said, self._said_ns = instruction, recent | {instruction[1]: now_ns}

    def _record(self, topic: str, message: object) -> None:
        if self._recorder is not None:
            self._recorder.put(self.resolve_topic_name(topic), self.get_clock().now().nanoseconds, message)

    def _wait_for_next(self, rate_hz: float) -> bool:
        """Sleep until the next multiple of the period, so that no delay adds up; false at the end."""
        period_ns = round(_NANOSECONDS / rate_hz)
        remaining_ns = period_ns - time.monotonic_ns() % period_ns
        return not self._stop.wait(remaining_ns / _NANOSECONDS)

    def _table_to_message(self) -> DiagnosticStatus:
        table = self._table
        values = {
            "episode": table.number,
            "task": table.task_name,
            "seed": table.seed,
            "time_s": table.time_s,
            "instruction": table.task.instruction,
            "is_over": table.task.is_over,
            "has_succeeded": table.task.has_succeeded,
            "distance_m": table.distance_m,
            "skipped_steps": table.skipped_steps,
            "trajectories_refused": table.trajectory.refused,
            "commands_refused": table.gripper.refused,
            "not_recorded": 0 if self._recorder is None else self._recorder.dropped,
            "images": self._n_images,
            "joint_states": self._n_joint_states,
        }
        outcome = "succeeded" if table.task.has_succeeded else "failed" if table.task.is_over else "running"
        return DiagnosticStatus(
            name="episode",
            message=outcome,
            hardware_id=self.get_fully_qualified_name(),
            values=[KeyValue(key=key, value=str(value)) for key, value in values.items()],
        )


def _nanoseconds(time_or_duration) -> int:
    return time_or_duration.sec * _NANOSECONDS + time_or_duration.nanosec


def main(argv: list[str] | None = None) -> int:
    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: signals.append(number))
    # rclpy's own handlers shut its context down under the publishing threads.
    rclpy.init(args=argv, signal_handler_options=SignalHandlerOptions.NO)
    try:
        node = SimulationNode()
    except UserError as error:
        print(f"simulation: {error}", file=sys.stderr)
        rclpy.try_shutdown()
        return 2
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    node.start()
    try:
        while not signals and node.failure is None and rclpy.ok():
            executor.spin_once(timeout_sec=SPIN_S)
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        executor.shutdown()
        node.destroy_node()
        rclpy.try_shutdown()
    if node.failure is None:
        return 0
    print(f"simulation: {node.failure}", file=sys.stderr)
    return 2 if isinstance(node.failure, UserError) else 1


if __name__ == "__main__":
    sys.exit(main())
