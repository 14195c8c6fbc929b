"""The managed node `vla_edge_node`: images in, exactly one decision out on every tick.

Subscribes  image (sensor_msgs/Image, or CompressedImage where `camera.is_compressed`), instruction
            (std_msgs/String), joint_states (sensor_msgs/JointState)
Publishes   the policy's action groups (~/trajectory, ~/command), ~/tick (every tick),
            ~/telemetry/NAME (every tick), /diagnostics (1 Hz), ~/memory_strip (1 Hz, where it is watched)
Services    ~/enable (std_srvs/SetBool), ~/reset_memory (std_srvs/Trigger)
States      configure loads the model into a process of its own and checks the memory budget; activate
            starts the ticks, disabled: decisions but no commands until ~/enable; deactivate stops motion.
"""

import gc
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import rclpy
from rcl_interfaces.msg import SetParametersResult
from rclpy.clock import JumpThreshold, TimeJump
from rclpy.duration import Duration
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.lifecycle import LifecycleNode, State, TransitionCallbackReturn
from rclpy.qos import DurabilityPolicy, QoSProfile, qos_profile_sensor_data
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import String
from std_srvs.srv import SetBool, Trigger

from vla_edge_ros.control import settings
from vla_edge_ros.control.bare_loop import BareLoop
from vla_edge_ros.control.clock import SteadyClock
from vla_edge_ros.control.decision import Decision
from vla_edge_ros.control.events import ClockJump, Enable, Event, ResetMemory
from vla_edge_ros.control.floor import require_time
from vla_edge_ros.control.realtime import (
    apply_realtime,
    priority_above_others,
    set_fifo_priority,
    settle_memory,
    step_above_others,
)
from vla_edge_ros.control.recorder import Recorder
from vla_edge_ros.control.schedule import TickSchedule
from vla_edge_ros.control.tick_thread import TickThread
from vla_edge_ros.engine.interface import EngineInfo
from vla_edge_ros.engine.process import ProcessEngine
from vla_edge_ros.errors import UserError
from vla_edge_ros.nodes import diagnostics, parameters
from vla_edge_ros.nodes.memory_strip import MemoryStrip
from vla_edge_ros.nodes.messages import warm_up
from vla_edge_ros.nodes.sink import RosSink
from vla_edge_ros.nodes.supervisor import EngineSupervisor
from vla_edge_ros.parameters import defaults
from vla_edge_ros.perception.camera import CameraPipeline
from vla_edge_ros.perception.frame_buffer import FrameBuffer
from vla_edge_ros.perception.frame_log import THUMBNAIL_SHAPE, FrameLog, thumbnail
from vla_edge_ros.perception.refusal import Refusal
from vla_edge_ros.perception.serialized import read_compressed_image, read_image

try:
    from rclpy.event_handler import SubscriptionEventCallbacks
except ImportError:  # Humble
    from rclpy.qos_event import SubscriptionEventCallbacks

NODE_NAME = "vla_edge_node"
SPIN_S = 0.1
"""Longest wait for a callback, so that a signal is seen soon after it arrives."""
QUIET_LOOK_S = 0.0002
"""How often it is looked whether a tick's last messages are out."""


class EdgeNode(LifecycleNode):
    """See the module's docstring. Callbacks share the executor's one thread; ticks have their own.

    is_ending: whether a signal has asked for the end; a model that is still loading is then given up.
    """

    def __init__(self, is_ending: Callable[[], bool]) -> None:
        super().__init__(NODE_NAME)
        self.tick_error: Exception | None = None
        """What ended the tick thread: nothing moves the robot, or stops it, any more."""
        self._is_ending = is_ending
        self._values = parameters.declare(self)
        for complaint in parameters.unknown(self):
            self.get_logger().warning(complaint)
        self.add_on_set_parameters_callback(self._on_set_parameters)
        self._steady_clock = SteadyClock(lambda: self.get_clock().now().nanoseconds)
        self._is_configured = False
        self._is_releasing = False
        self._tick_thread: TickThread | None = None
        self._schedule: TickSchedule | None = None
        self._bare_loop: BareLoop | None = None
        self._releases: list = []

    # Transitions

    def on_configure(self, state: State) -> TransitionCallbackReturn:
        """SUCCESS with the model loaded and everything allocated; FAILURE after one line on what is wrong."""
        if not self._tried(self._configure):
            self._release()
            return TransitionCallbackReturn.FAILURE
        self._is_configured = True
        return super().on_configure(state)

    def on_activate(self, state: State) -> TransitionCallbackReturn:
        """Start ticking, disabled: frames received before are void and memory is empty."""
        if not self._tried(self._start_ticking):
            self._stop_ticking()
            return TransitionCallbackReturn.FAILURE
        return super().on_activate(state)

    def on_deactivate(self, state: State) -> TransitionCallbackReturn:
        """Stop ticking, then bring motion to rest."""
        if not self._tried(self._stop_ticking):
            return TransitionCallbackReturn.ERROR
        return super().on_deactivate(state)

    def on_cleanup(self, state: State) -> TransitionCallbackReturn:
        if not self._tried(self._release):
            return TransitionCallbackReturn.ERROR
        return super().on_cleanup(state)

    def on_shutdown(self, state: State) -> TransitionCallbackReturn:
        if not self._tried(self.end):
            return TransitionCallbackReturn.ERROR
        return super().on_shutdown(state)

    def on_error(self, state: State) -> TransitionCallbackReturn:
        """Whatever failed: no motion and nothing kept, so that the node can be configured again."""
        if not self._tried(self.end):
            return TransitionCallbackReturn.FAILURE
        return super().on_error(state)

    def end(self) -> None:
        """Stop ticking, bring motion to rest and free everything; safe in any state."""
        self._stop_ticking()
        self._release()

    def keep_quiet(self) -> float:
        """Sleep while a tick's last messages go out, then send its telemetry; returns the seconds until that
        comes again. To be called between callbacks.

        A callback holds the interpreter lock in long calls: an image that was taken out of the middleware at
        a cut-off delayed the messages by up to 2 ms, tick after tick where the camera was in step.
        """
        if self._schedule is None:
            return SPIN_S
        begin_ns, end_ns = self._schedule.quiet(time.monotonic_ns())
        while begin_ns <= (now_ns := time.monotonic_ns()) < end_ns:
            last = self._controller.last_record
            if last is not None and last.published_ns > begin_ns:
                begin_ns += self._schedule.period_ns
                break
            time.sleep(QUIET_LOOK_S)
        self._sink.send_telemetry()
        return min(SPIN_S, max(0, begin_ns - now_ns) / 1e9)

    # What the transitions are made of

    def _tried(self, step: Callable[[], None]) -> bool:
        """Whether `step` succeeded; what is wrong is logged, since rclpy keeps exceptions to itself."""
        try:
            step()
        except (UserError, OSError) as error:
            self.get_logger().error(str(error))
        except Exception:
            self.get_logger().error(traceback.format_exc())
        else:
            return True
        return False

    def _start_ticking(self) -> None:
        values = self._values
        for warning in settle_memory():
            self.get_logger().warning(warning)
        begin_ns = time.monotonic_ns()
        schedule = settings.tick_schedule(values, begin_ns + settings.ns(values["control.period_ms"]))
        self._controller.begin(schedule)
        self._schedule = schedule
        if self._recorder is not None:
            begin = {"at_ns": begin_ns, "frame": self._controller.last_used_frame}
            self._recorder.put({"begin": begin})
        if values["control.bare_loop"]:
            self._bare_loop = BareLoop(
                schedule.origin_ns,
                schedule.period_ns,
                schedule.deadline_ns - schedule.margin_ns,
                schedule.deadline_ns,
                priority_above_others(),
            )
        self._tick_thread = TickThread(
            self._controller,
            schedule,
            self._steady_clock,
            self._sink,
            step_above_others,
            self._on_tick_error,
        )

    def _configure(self) -> None:
        self._values = values = parameters.validate_all(self._values)
        policy = settings.policy_of(values)
        for warning in apply_realtime(values["control.priority"]):
            self.get_logger().warning(warning)
        warm_up(CompressedImage if values["camera.is_compressed"] else Image, JointState, String)

        self._frames = self._keep(FrameBuffer.create())
        n_actions = len(policy.dimensions)

        def should_abandon() -> bool:
            return self._is_ending() or self._is_releasing

        self._engine = self._keep(
            ProcessEngine(
                settings.engine_spec(values, n_actions), self._frames, should_abandon=should_abandon
            )
        )
        info = self._engine.configure()
        self.get_logger().info(
            f"engine {info.backend}, plan {info.plan_id}, {settings.describe_account(info)}"
        )
        for note in info.notes:
            self.get_logger().info(note)
        if info.backend != "fake":  # whose time is what a trial wants it to be
            require_time(
                self._engine,
                self._frames,
                n_actions,
                settings.tick_schedule(values, 0),
                self._steady_clock,
                should_abandon,
            )
        self._supervisor = self._keep(
            EngineSupervisor(self._engine, values["engine.restart_limit"], self.get_logger(), self._post)
        )
        self._thumbnails = FrameLog(thumbnail, THUMBNAIL_SHAPE, np.uint8)
        self._signatures = settings.signature_log(values)
        self._pictures = settings.picture_log(values)
        self._controller = settings.build_controller(
            values,
            policy,
            self._steady_clock,
            self._engine,
            info,
            self._frames,
            self._supervisor.replace,
            self._signatures,
            self._pictures,
        )
        for warning in self._controller.planner.warnings:
            self.get_logger().warning(warning)
        self._prompter = settings.Prompter(values)
        self._refused_text: str | None = None
        self._instruct(values["instruction.initial"])

        self._recorder = None
        if values["control.record_path"]:
            run = {"parameters": values, "engine": settings.describe_engine(values, info)}
            path, max_bytes = Path(values["control.record_path"]), values["control.record_bytes"]
            self._recorder = self._keep(
                Recorder(path, run, max_bytes=max_bytes, ros_offset_ns=self._ros_offset_ns)
            )
        promise = self._controller.promise
        self._sink = RosSink(self, policy.groups, self._recorder, promise, info.plan_id)
        self._releases.append(self._sink.destroy)
        self._subscribe(values)
        self._report(info)

    def _ros_offset_ns(self) -> int:
        steady_ns, ros_ns = self._steady_clock.pair()
        return ros_ns - steady_ns

    def _keep(self, resource):
        """Have `resource.close()` called at release, the latest first."""
        self._releases.append(resource.close)
        return resource

    def _subscribe(self, values: dict) -> None:
        self._camera = CameraPipeline(
            self._frames,
            settings.resizer(values),
            settings.stamp_watch(values),
            self.resolve_topic_name("image"),
            [log for log in (self._thumbnails, self._signatures, self._pictures) if log is not None],
            read_compressed_image if values["camera.is_compressed"] else read_image,
        )
        image_type = CompressedImage if values["camera.is_compressed"] else Image
        newest = QoSProfile(depth=1, reliability=qos_profile_sensor_data.reliability)
        latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        subscriptions = [
            self.create_subscription(image_type, "image", self._on_image, newest, raw=True),
            # One subscription alone misses the publishers of the other durability.
            self.create_subscription(String, "instruction", self._on_instruction, QoSProfile(depth=1)),
            self.create_subscription(
                String,
                "instruction",
                self._on_instruction,
                latched,
                # Or each volatile publisher is warned of: "No messages will be received from it".
                event_callbacks=SubscriptionEventCallbacks(use_default_callbacks=False),
            ),
            self.create_subscription(
                JointState, "joint_states", self._on_joint_states, qos_profile_sensor_data
            ),
        ]
        services = [
            self.create_service(SetBool, "~/enable", self._on_enable),
            self.create_service(Trigger, "~/reset_memory", self._on_reset_memory),
        ]
        # A forward step of under a second is a simulator's clock at work; any backward one is a loop.
        jumps = self.get_clock().create_jump_callback(
            JumpThreshold(min_forward=Duration(seconds=1), min_backward=Duration(nanoseconds=-1)),
            post_callback=self._on_clock_jump,
        )
        self._releases.append(jumps.unregister)
        self._releases += [partial(self.destroy_subscription, entity) for entity in subscriptions]
        self._releases += [partial(self.destroy_service, entity) for entity in services]

    def _report(self, info: EngineInfo) -> None:
        sections = diagnostics.sections(
            self._controller,
            self._camera,
            self._frames,
            self._engine,
            self._supervisor,
            info,
            self._values["memory.budget_bytes"],
            self._recorder,
        )
        self._releases.append(diagnostics.DiagnosticsPublisher(self, sections).destroy)
        self._releases.append(MemoryStrip(self, self._controller.memory, self._thumbnails).destroy)

    # Callbacks

    def _on_set_parameters(self, changes: list) -> SetParametersResult:
        try:
            accepted = parameters.changed(self._values, changes, self._is_configured)
        except UserError as error:
            return SetParametersResult(successful=False, reason=str(error))
        self._values = accepted
        if self._is_configured:
            self._controller.post(settings.live_settings(accepted))
        return SetParametersResult(successful=True)

    def _on_image(self, message: bytes) -> None:
        receipt_ns, ros_now_ns = self._steady_clock.pair()
        verdict = self._camera.on_image(message, receipt_ns, ros_now_ns)
        is_refused = isinstance(verdict, Refusal)
        if verdict.reason:
            # A refusal names the topic itself.
            line = verdict.reason if is_refused else f"{self._camera.topic}: {verdict.reason}"
            self.get_logger().warning(line, throttle_duration_sec=5.0)
        if self._recorder is not None and not is_refused and verdict.is_new:
            self._recorder.put(self._frames.peek())

    def _on_instruction(self, message: String) -> None:
        if message.data == self._refused_text:  # both subscriptions hear a latched publisher
            return
        try:
            self._instruct(message.data)
        except UserError as error:
            self._refused_text = message.data
            self.get_logger().error(str(error))

    def _instruct(self, text: str) -> None:
        """Have a new instruction take effect at the next tick; an equal text changes nothing."""
        instruction = self._prompter.changed_to(text)
        if instruction is not None:
            self._post(instruction)

    def _on_joint_states(self, message: JointState) -> None:
        refusal = self._controller.planner.observe_joints(
            message.name, message.position, message.velocity, time.monotonic_ns()
        )
        if refusal is not None:
            self.get_logger().warning(refusal, throttle_duration_sec=5.0)

    def _on_enable(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        refusal = self._why_not_enabled() if request.data else ""
        if not refusal:
            self._post(Enable(request.data))
        response.success = not refusal
        response.message = refusal or f"{'enabled' if request.data else 'disabled'} from the next tick on"
        return response

    def _why_not_enabled(self) -> str:
        if self._tick_thread is None:
            return "not enabled: the node is not active, activate it first"
        last = self._controller.last_record
        if last is not None and last.decision is Decision.FAULT:
            return f"not enabled: {last.reason}"
        not_ready = self._controller.planner.why_not_ready(time.monotonic_ns())
        return f"not enabled: {not_ready}" if not_ready is not None else ""

    def _on_reset_memory(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        self._post(ResetMemory())
        response.success = True
        response.message = "memory is empty from the next tick on"
        return response

    def _on_clock_jump(self, jump: TimeJump) -> None:
        self._camera.watch.reset()
        self._post(ClockJump(jump.delta.nanoseconds))

    def _post(self, event: Event) -> None:
        self._controller.post(event)

    def _on_tick_error(self, error: Exception) -> None:
        self.get_logger().fatal(f"the tick thread has ended: {type(error).__name__}: {error}")
        self.tick_error = error

    # Endings

    def _stop_ticking(self) -> None:
        self._schedule = None
        if self._tick_thread is None:
            return
        # At worst it has just begun to sleep until the next tick, and that tick must run to its end.
        timeout_s = 0.5 + 2 * self._values["control.period_ms"] / 1000
        if not self._tick_thread.stop(timeout_s):
            self.get_logger().error(f"the tick thread did not end within {timeout_s:g} s")
        end = {
            "recorder_dropped": self._recorder.dropped if self._recorder is not None else 0,
            "tick_thread_cpu_ns": self._tick_thread.cpu_ns,
        }
        self._tick_thread = None
        self._controller.stop(self._sink)
        self._sink.send_telemetry()
        if self._bare_loop is not None:
            self._bare_loop.close()
            end["bare_loop"] = self._bare_loop.to_json()
            self._bare_loop = None
        if self._recorder is not None:
            self._recorder.put({"end": end})
        gc.unfreeze()

    def _release(self) -> None:
        self._is_configured = False
        self._is_releasing = True
        try:
            while self._releases:
                self._releases.pop()()
        finally:
            self._is_releasing = False


def main(argv: list[str] | None = None) -> int:
    """Spin until SIGINT or SIGTERM; motion is brought to rest before rclpy shuts down.

    Exit code 0; 2 where the parameters given are refused; 1 after a defect.
    """
    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: signals.append(number))
    # The threads of DDS inherit it. Once configured, `control.priority` counts, and a refusal is said.
    set_fifo_priority(defaults()["control.priority"])
    # rclpy's own handlers shut the context down at once, and the stop could no longer be published.
    rclpy.init(args=argv, signal_handler_options=SignalHandlerOptions.NO)
    try:
        node = EdgeNode(lambda: bool(signals))
    except UserError as error:
        print(f"vla_edge_node: {error}", file=sys.stderr)
        rclpy.try_shutdown()
        return 2
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    try:
        while not signals and node.tick_error is None and rclpy.ok():
            executor.spin_once(timeout_sec=node.keep_quiet())
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        node.end()
        executor.shutdown()
        node.destroy_node()
        rclpy.try_shutdown()
    return 0 if node.tick_error is None else 1


if __name__ == "__main__":
    sys.exit(main())
