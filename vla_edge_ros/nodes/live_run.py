"""Runs the node and the bag camera as processes of their own and drives the node's life cycle."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import rclpy
import yaml
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from sensor_msgs.msg import JointState
from std_srvs.srv import SetBool

from vla_edge_ros.actions.policy import Dimension
from vla_edge_ros.engine.linux import end_with_parent
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.bags import TopicInfo
from vla_edge_ros.evaluation.doctor import FAIL, check_shared_memory
from vla_edge_ros.evaluation.playback import read_stamps_line
from vla_edge_ros.evaluation.recorded_run import RecordedRun
from vla_edge_ros.nodes.parameters import to_ros
from vla_edge_ros.nodes.private_domain import private_domain
from vla_edge_ros.share import large_image_variables

CONFIGURE_TIMEOUT_S = 600.0
START_TIMEOUT_S = 20.0
ASK_AGAIN_S = 0.5
STOP_TIMEOUT_S = 20.0
"""A GPU's memory is given back within seconds; the figures of a long run must not be lost to that."""
END_S = 3.0
"""Within which a process that is asked to ends, else it is killed."""
JOINT_STATES_HZ = 100


class Process:
    """A node of this package as a child process; what it prints goes to a file that errors quote."""

    def __init__(
        self, module: str, parameters: dict, folder: Path, remappings: Mapping[str, str] = {}
    ) -> None:
        self.name = module.rpartition(".")[2]
        self._log = folder / f"{self.name}.log"
        file = folder / f"{self.name}.yaml"
        file.write_text(yaml.safe_dump({"/**": {"ros__parameters": parameters}}), encoding="utf-8")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", module, "--ros-args", "--params-file", str(file)),
                    *(word for old, new in remappings.items() for word in ("-r", f"{old}:={new}")),
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def log_lines(self) -> list[str]:
        return self._log.read_text(encoding="utf-8", errors="replace").splitlines()

    def complaint(self) -> str:
        """The last line that it printed, without the logger's prefix and what Python ignored at its end."""
        lines = [line for line in _without_ignored(self.log_lines()) if line.strip()]
        return lines[-1].rpartition("]: ")[2] if lines else "it printed nothing"

    def stop(self) -> int:
        """SIGTERM, then wait; returns the exit code. Raises UserError if it does not end in time."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise UserError(f"{self.name} did not end within {STOP_TIMEOUT_S:g} s of SIGTERM") from None

    def end(self) -> None:
        """Stop it; raises UserError with its complaint where its exit code is not 0."""
        code = self.stop()
        if code != 0:
            raise UserError(f"{self.name} ended with exit code {code}: {self.complaint()}")

    def kill(self) -> None:
        """End it: by itself if it can, since a killed one leaves its shared memory behind."""
        if not self.is_running:
            return
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _without_ignored(lines: Iterable[str]) -> Iterator[str]:
    """Without Python's reports on what a destructor raised: a heading, a traceback, the exception's line."""
    is_ignored = False
    for line in lines:
        if line.startswith("Exception ignored "):
            is_ignored = True
        elif not is_ignored:
            yield line
        elif not line.startswith((" ", "Traceback ")):
            is_ignored = False


class Question:
    """A request that is sent again until an answer `is_enough`: Fast DDS can lose one of a new node.

    answers: all that have come, whatever they say.
    """

    def __init__(self, client, request, is_enough: Callable[[object], bool] = lambda answer: True) -> None:
        self.answers: list = []
        self._client, self._request, self._is_enough = client, request, is_enough
        self._asked_s = -ASK_AGAIN_S

    def is_answered(self) -> bool:
        if time.monotonic() - self._asked_s > ASK_AGAIN_S:
            self._asked_s = time.monotonic()
            future = self._client.call_async(self._request)
            future.add_done_callback(lambda done: self.answers.append(done.result()))
        return any(map(self._is_enough, self.answers))


class Driver:
    """Speaks to the node as `ros2 lifecycle` and `ros2 topic echo` would.

    node: the driver's own, whose callbacks run while a method here waits.
    """

    def __init__(self, edge: Process) -> None:
        """Raises UserError where ROS does not start."""
        self._edge = edge
        with _ros_that_starts():
            self.node = rclpy.create_node("vla_edge_driver")
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self.node)
        self._enable = self.node.create_client(SetBool, "/vla_edge_node/enable")
        self._change = self.node.create_client(ChangeState, "/vla_edge_node/change_state")
        self._state = self.node.create_client(GetState, "/vla_edge_node/get_state")

    def close(self) -> None:
        self._executor.shutdown()
        self.node.destroy_node()

    def meet(self) -> None:
        """Return when the node answers."""
        self.wait_for(self._change.service_is_ready, "offer its life cycle", START_TIMEOUT_S)
        question = Question(self._state, GetState.Request())
        self.wait_for(question.is_answered, "say its state", START_TIMEOUT_S)

    def change(self, transition: int, name: str, timeout_s: float) -> None:
        """Ask for a transition and wait for its end. Raises UserError with the node's own complaint."""
        request = ChangeState.Request(transition=Transition(id=transition))
        future = self._change.call_async(request)
        self.wait_for(future.done, name, timeout_s)
        if not future.result().success:
            raise UserError(f"the node refused to {name}: {self._edge.complaint()}")

    def wait_for_images(self, camera: Process) -> None:
        """Return when the node has received an image. Raises UserError if the camera ends before."""
        received = []

        def on_diagnostics(message: DiagnosticArray) -> None:
            for status in message.status:
                if status.name == "vla_edge_node: camera":
                    received.extend(v for v in status.values if v.key == "received" and v.value != "0")

        subscription = self.node.create_subscription(DiagnosticArray, "/diagnostics", on_diagnostics, 10)
        self.wait_for(lambda: received or not camera.is_running, "receive an image", START_TIMEOUT_S)
        self.node.destroy_subscription(subscription)
        if not received:
            raise UserError(f"the camera ended at once: {camera.complaint()}")

    def be_robot(self, joints: Mapping[str, float]) -> None:
        """Say from now on that the joints stand at these positions, and have the node move them."""
        publisher = self.node.create_publisher(JointState, "/joint_states", 10)
        state = JointState(name=list(joints), position=list(joints.values()))

        def send() -> None:
            state.header.stamp = self.node.get_clock().now().to_msg()
            publisher.publish(state)

        self.node.create_timer(1 / JOINT_STATES_HZ, send)
        self.enable()

    def enable(self, is_enabled: bool = True) -> None:
        """Have the node move the robot, or not; it is asked until joint states have reached it."""
        self.wait_for(self._enable.service_is_ready, "offer ~/enable", START_TIMEOUT_S)
        question = Question(self._enable, SetBool.Request(data=is_enabled), lambda answer: answer.success)
        purpose = f"let itself be {'en' if is_enabled else 'dis'}abled"
        try:
            self.wait_for(question.is_answered, purpose, START_TIMEOUT_S)
        except UserError as error:
            told = f"; {question.answers[-1].message}" if question.answers else ""
            raise UserError(f"{error}{told}") from None

    def warnings(self) -> list[str]:
        """What the node has warned of so far."""
        return [line.rpartition("]: ")[2] for line in self._edge.log_lines() if "[WARN]" in line]

    def watch(self, live: "LiveRun", console: Console) -> None:
        """Show decisions as they come until the run's last tick has been published."""
        counts: Counter[str] = Counter()
        last = {}

        def on_tick(message: DiagnosticStatus) -> None:
            last.update({value.key: value.value for value in message.values})
            counts[message.message] += 1

        subscription = self.node.create_subscription(DiagnosticStatus, "/vla_edge_node/tick", on_tick, 100)
        columns = BarColumn(bar_width=12), TextColumn("{task.fields[text]}")
        with Progress(*columns, console=console, refresh_per_second=5) as progress:
            task = progress.add_task("", total=live.n_ticks, text="")

            def has_ended() -> bool:
                ticks = int(last.get("tick", -1)) + 1
                progress.update(task, completed=min(ticks, live.n_ticks), text=_status(counts, last))
                live.each(self._edge.pid)
                return ticks > live.n_ticks

            self.wait_for(has_ended, "run to the end", 2 * live.seconds + START_TIMEOUT_S)
        self.node.destroy_subscription(subscription)

    def wait_for(self, is_done: Callable[[], bool], purpose: str, timeout_s: float) -> None:
        """Let messages flow until `is_done()`. Raises UserError with the node's own words."""
        end_s = time.monotonic() + timeout_s
        while not is_done():
            if not self._edge.is_running:
                raise UserError(f"the node ended before it could {purpose}: {self._edge.complaint()}")
            if time.monotonic() > end_s:
                raise UserError(
                    f"the node did not {purpose} within {timeout_s:.0f} s: {self._edge.complaint()}"
                )
            try:
                self._executor.spin_once(timeout_sec=0.05)
            except ExternalShutdownException:
                # By rclpy's own handler, where SIGINT is ignored for Python, as in a shell's background.
                raise KeyboardInterrupt from None


def resting(dimensions: Iterable[Dimension]) -> dict[str, float]:
    """Positions by name for a robot that stands still: 0, or the nearest that the limits allow."""
    return {d.name: min(max(0.0, d.min), d.max) for d in dimensions}


@dataclass(frozen=True, slots=True)
class LiveRun:
    """Play `topic` of the recording `bag` into the node for `seconds`.

    values: every parameter of the node, `control.record_path` set.
    plays_instructions: whether the recording's own instructions are published too.
    joints: what joint_states says, position by name; where there are any, motion is enabled.
    each: called about twenty times a second with the node's process id, for measuring it from outside.
    """

    bag: Path
    topic: TopicInfo
    values: dict
    seconds: float
    plays_instructions: bool = True
    joints: Mapping[str, float] = field(default_factory=dict)
    each: Callable[[int], None] = lambda pid: None

    @property
    def n_ticks(self) -> int:
        return int(self.seconds * 1000 / self.values["control.period_ms"])


def run_live(live: LiveRun, console: Console) -> RecordedRun:
    """What the node recorded of its ticks 0 to n_ticks - 1. Raises UserError with what went wrong."""
    image_topic = "image/compressed" if live.topic.is_compressed else "image"
    with private_ros() as folder, contextlib.ExitStack() as cleanup:
        edge = Process("vla_edge_ros.nodes.edge_node", to_ros(live.values), folder, {"image": image_topic})
        cleanup.callback(edge.kill)
        driver = Driver(edge)
        cleanup.callback(driver.close)
        driver.meet()
        with console.status("configuring the node"):
            driver.change(Transition.TRANSITION_CONFIGURE, "configure", CONFIGURE_TIMEOUT_S)
        playback = {
            "bag": str(live.bag),
            "topic": live.topic.name,
            "loop": True,
            "plays_instructions": live.plays_instructions,
        }
        camera = Process("vla_edge_ros.nodes.bag_camera", playback, folder)
        cleanup.callback(camera.kill)
        driver.wait_for_images(camera)
        driver.change(Transition.TRANSITION_ACTIVATE, "activate", START_TIMEOUT_S)
        if live.joints:
            driver.be_robot(live.joints)
        driver.watch(live, console)
        driver.change(Transition.TRANSITION_DEACTIVATE, "deactivate", START_TIMEOUT_S)
        for process in (camera, edge):
            process.end()
        for line in driver.warnings():
            console.print(line, style="yellow", highlight=False, soft_wrap=True)
        laps = [asdict(lap) for line in camera.log_lines() if (lap := read_stamps_line(line)) is not None]
    recorded = RecordedRun.from_lines(Path(live.values["control.record_path"])).until_tick(live.n_ticks)
    recorded.run["laps"] = laps
    return recorded


@contextlib.contextmanager
def private_ros() -> Iterator[Path]:
    """ROS in a domain of this run's own; gives a folder for its files. Raises UserError."""
    os.environ.update(large_image_variables(os.environ))
    shared_memory = check_shared_memory(Path("/dev/shm"))
    if shared_memory.level == FAIL:
        raise UserError(f"{shared_memory.found}: {shared_memory.advice}")
    with private_domain(os.environ), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # Not every home can be written, and these logs are of no use to anyone.
        os.environ.setdefault("ROS_LOG_DIR", str(folder / "ros_log"))
        try:
            with _ros_that_starts():
                rclpy.init()
            yield folder
        finally:
            rclpy.try_shutdown()


@contextlib.contextmanager
def _ros_that_starts() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise UserError(f"ROS 2 does not start: {error}") from None


def _status(counts: Counter[str], last: dict[str, str]) -> str:
    decisions = ", ".join(f"{decision} {count}" for decision, count in counts.most_common(3))
    pass_ms = f"pass {float(last['pass_ms']):.1f} ms, " if last.get("pass_ms") else ""
    return f"{decisions} | {pass_ms}{last.get('retained_frames', 0)} frames remembered"
