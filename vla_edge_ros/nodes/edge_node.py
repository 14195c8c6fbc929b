"""The managed node `vla_edge_node`: images in, exactly one decision out on every tick.

Subscribes  image (sensor_msgs/Image, or CompressedImage where `camera.is_compressed`), instruction
            (std_msgs/String), joint_states (sensor_msgs/JointState)
Publishes   the policy's action groups (~/trajectory, ~/command), ~/tick (every tick),
            ~/telemetry/NAME (every tick), /diagnostics (1 Hz)
Services    ~/enable (std_srvs/SetBool), ~/reset_memory (std_srvs/Trigger)
States      configure loads the model into a process of its own and checks the memory budget; activate
            starts the ticks, disabled: decisions but no commands until ~/enable; deactivate stops motion.
"""

import gc
import signal
import sys
import time
from pathlib import Path

import rclpy
from rclpy.clock import ClockChange, JumpThreshold
from rclpy.duration import Duration
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.lifecycle import LifecycleNode, State, TransitionCallbackReturn
from rclpy.qos import DurabilityPolicy, QoSProfile, qos_profile_sensor_data
from rclpy.serialization import deserialize_message, serialize_message
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Float64, Float64MultiArray, String
from std_srvs.srv import SetBool, Trigger
from trajectory_msgs.msg import JointTrajectory

from diagnostic_msgs.msg import DiagnosticStatus
from vla_edge_ros.actions.planner import GroupCommand, GroupTrajectory
from vla_edge_ros.control import settings
from vla_edge_ros.control.bare_loop import BareLoop
from vla_edge_ros.control.clock import SteadyClock
from vla_edge_ros.control.controller import ClockJump, Controller, Enable, Instruction, ResetMemory
from vla_edge_ros.control.realtime import apply_realtime
from vla_edge_ros.control.record import TickRecord
from vla_edge_ros.control.recorder import Recorder
from vla_edge_ros.control.tick_thread import TickThread
from vla_edge_ros.engine.process import ProcessEngine
from vla_edge_ros.errors import UserError
from vla_edge_ros.nodes.diagnostics import DiagnosticsPublisher
from vla_edge_ros.nodes.messages import TickMessage, command_message, telemetry, trajectory_message
from vla_edge_ros.nodes.parameters import declare_parameters
from vla_edge_ros.nodes.supervisor import EngineSupervisor
from vla_edge_ros.perception.camera import CameraPipeline
from vla_edge_ros.perception.frame_buffer import FrameBuffer

NODE_NAME = "vla_edge_node"
STOP_TIMEOUT_S = 1.0


class RosSink:
    """Publishes what a tick says. Made at configure, used from the tick thread."""

    def __init__(self, node: LifecycleNode, groups: list, recorder: Recorder | None) -> None:
        self._groups = {
            group.name: node.create_publisher(
                JointTrajectory if group.interface == "trajectory" else Float64MultiArray, group.topic, 1
            )
            for group in groups
        }
        self._tick = node.create_publisher(DiagnosticStatus, "~/tick", 1)
        self._telemetry = {
            name: node.create_publisher(Float64, f"~/telemetry/{name}", 1)
            for name in telemetry(TickRecord(0, 0, 0, 0))
        }
        self._tick_message = TickMessage(node.get_fully_qualified_name())
        self._figure = Float64()
        self._recorder = recorder
        self.last: TickRecord | None = None

    def trajectory(self, trajectory: GroupTrajectory) -> None:
        self._groups[trajectory.group].publish(trajectory_message(trajectory))

    def command(self, command: GroupCommand) -> None:
        self._groups[command.group].publish(command_message(command))

    def tick(self, record: TickRecord) -> None:
        self._tick.publish(self._tick_message.fill(record))

    def finished(self, record: TickRecord) -> None:
        for name, value in telemetry(record).items():
            self._figure.data = value
            self._telemetry[name].publish(self._figure)
        if self._recorder is not None:
            self._recorder.put(record)
        self.last = record


class EdgeNode(LifecycleNode):
    """See the module's docstring; each transition below makes or ends what its name says."""

    def __init__(self) -> None:
        super().__init__(NODE_NAME)
        self.parameters = declare_parameters(self)
        self._clock = SteadyClock(lambda: self.get_clock().now().nanoseconds)
        self._controller: Controller | None = None
        self._engine: ProcessEngine | None = None
        self._frames: FrameBuffer | None = None
        self._supervisor: EngineSupervisor | None = None
        self._recorder: Recorder | None = None
        self._tick_thread: TickThread | None = None
        self._bare_loop: BareLoop | None = None
        self._entities: list = []

    # Transitions

    def on_configure(self, state: State) -> TransitionCallbackReturn:
        """SUCCESS with the model loaded and everything allocated; FAILURE with one line on what is wrong."""
        try:
            self._configure()
        except (UserError, OSError) as error:
            self.get_logger().error(str(error))
            self._release()
            return TransitionCallbackReturn.FAILURE
        return super().on_configure(state)

    def on_activate(self, state: State) -> TransitionCallbackReturn:
        """Start ticking, disabled."""
        period_ns = settings.ns(self.parameters["control.period_ms"])
        schedule = settings.tick_schedule(self.parameters, time.monotonic_ns() + period_ns)
        self._controller.begin(schedule)
        gc.collect()
        gc.freeze()
        if self.parameters["control.bare_loop"]:
            self._bare_loop = BareLoop(
                schedule.origin_ns,
                schedule.period_ns,
                schedule.times(0).cutoff_ns - schedule.origin_ns,
                schedule.deadline_ns,
            )
        self._tick_thread = TickThread(
            self._controller, schedule, self._clock, self._sink, lambda: None, self._on_tick_error
        )
        return super().on_activate(state)

    def on_deactivate(self, state: State) -> TransitionCallbackReturn:
        """Stop ticking, then bring motion to rest."""
        self._stop_ticking()
        return super().on_deactivate(state)

    def on_cleanup(self, state: State) -> TransitionCallbackReturn:
        self._release()
        return super().on_cleanup(state)

    def on_shutdown(self, state: State) -> TransitionCallbackReturn:
        self._stop_ticking()
        self._release()
        return super().on_shutdown(state)

    def on_error(self, state: State) -> TransitionCallbackReturn:
        self._stop_ticking()
        self._release()
        return TransitionCallbackReturn.SUCCESS

    # What the transitions are made of

    def _configure(self) -> None:
        parameters = self.parameters.freeze()
        for warning in apply_realtime(parameters["control.priority"]):
            self.get_logger().warning(warning)
        policy = settings.policy_of(parameters)
        for warning in policy.warnings:
            self.get_logger().warning(warning)
        _warm_up_messages()

        self._frames = FrameBuffer.create()
        self._engine = ProcessEngine(settings.engine_spec(parameters, len(policy.dimensions)), self._frames)
        info = self._engine.configure()
        for note in info.notes:
            self.get_logger().info(note)
        self._supervisor = EngineSupervisor(
            self._engine, parameters["engine.restart_limit"], self.get_logger(), self._post
        )
        self._controller = settings.build_controller(
            parameters, policy, self._clock, self._engine, info, self._frames, self._supervisor.replace
        )
        self._tokenizer = settings.tokenizer(parameters)
        self._instruct(parameters["instruction.text"])

        if parameters["control.record_path"]:
            run = {"parameters": dict(parameters), "engine": settings.engine_identity(parameters, info)}
            self._recorder = Recorder(Path(parameters["control.record_path"]), run)
        self._sink = RosSink(self, policy.groups, self._recorder)
        self._subscribe(parameters)
        self._diagnostics = DiagnosticsPublisher(
            self, self._controller, self._camera, self._engine, info, self._sink
        )

    def _subscribe(self, parameters: dict) -> None:
        is_compressed = parameters["camera.is_compressed"]
        self._camera = CameraPipeline(
            self._frames, settings.resizer(parameters), settings.stamp_watch(parameters), "image"
        )
        depth_1 = QoSProfile(depth=1, reliability=qos_profile_sensor_data.reliability)
        latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        self._entities = [
            self.create_subscription(
                CompressedImage if is_compressed else Image, "image", self._on_image, depth_1
            ),
            # One subscription alone misses the publishers of the other durability.
            self.create_subscription(String, "instruction", self._on_instruction, QoSProfile(depth=1)),
            self.create_subscription(String, "instruction", self._on_instruction, latched),
            self.create_subscription(
                JointState, "joint_states", self._on_joint_states, qos_profile_sensor_data
            ),
            self.create_service(SetBool, "~/enable", self._on_enable),
            self.create_service(Trigger, "~/reset_memory", self._on_reset_memory),
        ]
        # A forward step of under a second is a simulator's clock at work; any backward one is a loop.
        self._jump_handle = self.get_clock().create_jump_callback(
            JumpThreshold(min_forward=Duration(seconds=1), min_backward=Duration(nanoseconds=-1)),
            post_callback=self._on_clock_jump,
        )

    # Callbacks, all on the executor's one thread

    def _on_image(self, message: Image | CompressedImage) -> None:
        receipt_ns, ros_now_ns = self._clock.pair()
        refusal = self._camera.on_image(message, receipt_ns, ros_now_ns)
        if refusal is not None:
            self.get_logger().warning(str(refusal), throttle_duration_sec=5.0)

    def _on_instruction(self, message: String) -> None:
        try:
            self._instruct(message.data)
        except UserError as error:
            self.get_logger().error(str(error), throttle_duration_sec=1.0)

    def _on_joint_states(self, message: JointState) -> None:
        refusal = self._controller.planner.observe_joints(
            message.name, message.position, message.velocity, time.monotonic_ns()
        )
        if refusal is not None:
            self.get_logger().warning(refusal, throttle_duration_sec=5.0)

    def _on_enable(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        if self._tick_thread is None:
            response.message = "the node is not active; activate it first"
            return response
        not_ready = self._controller.planner.is_ready(time.monotonic_ns()) if request.data else None
        if not_ready is not None:
            response.message = f"not enabled: {not_ready}"
            return response
        self._post(Enable(request.data))
        response.success = True
        response.message = "enabled from the next tick" if request.data else "disabled from the next tick"
        return response

    def _on_reset_memory(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        self._post(ResetMemory())
        response.success = True
        response.message = "memory is empty from the next tick"
        return response

    def _on_clock_jump(self, jump) -> None:
        if jump.clock_change in (ClockChange.ROS_TIME_NO_CHANGE, ClockChange.SYSTEM_TIME_NO_CHANGE):
            self._camera.watch.reset()
            self._post(ClockJump(jump.delta.nanoseconds))

    def _post(self, event) -> None:
        self._controller.post(event)

    def _instruct(self, text: str) -> None:
        """Have a new instruction take effect at the next tick; an equal text changes nothing."""
        if text == self._instruction_text:
            return
        tokens = self._tokenizer.prompt(text)
        self._controller.memory.check_prompt(len(tokens))
        self._instruction_text = text
        self._post(Instruction(text, tokens))

    def _on_tick_error(self, error: Exception) -> None:
        self.get_logger().fatal(f"the tick thread has ended: {type(error).__name__}: {error}")

    # Endings

    def _stop_ticking(self) -> None:
        """Idempotent: end the tick thread, send the braking points, free the priority process."""
        if self._tick_thread is None:
            return
        if not self._tick_thread.stop(STOP_TIMEOUT_S):
            self.get_logger().error(f"the tick thread did not end within {STOP_TIMEOUT_S:g} s")
        self._tick_thread = None
        self._controller.stop(self._sink)
        if self._bare_loop is not None:
            self._bare_loop.close()
        gc.unfreeze()

    def _release(self) -> None:
        """Idempotent: everything that configure made."""
        ...
