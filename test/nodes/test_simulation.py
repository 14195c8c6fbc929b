"""The simulated arm over DDS: what a node beside it sees, and whole episodes as a user runs them."""

import json
import subprocess
import sys

import numpy as np
import pytest
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import qos_profile_sensor_data
from robot import LATCHED, NEWEST, nanoseconds

pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'vla_edge_ros[simulation]'")

from diagnostic_msgs.msg import DiagnosticStatus
from processes import becomes_true
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64MultiArray, String
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from vla_edge_ros.engine.presets import TRAINED
from vla_edge_ros.evaluation.bags import open_bag
from vla_edge_ros.nodes.live_run import Process
from vla_edge_ros.parameters import SIMULATION
from vla_edge_ros.share import share_directory
from vla_edge_ros.simulation.environment import Environment
from vla_edge_ros.simulation.scene import JOINTS
from vla_edge_ros.simulation.tasks import TASKS
from vla_edge_ros.simulation.trial import ExpertActor, run_episodes

SIMULATION_NODE = "vla_edge_ros.nodes.simulation_node"


class Beside:
    """A node beside the simulation: the newest message of every topic, and what it sends."""

    def __init__(self, context, namespace=""):
        self.node = rclpy.create_node("beside", context=context, namespace=namespace)
        self._executor = SingleThreadedExecutor(context=context)
        self._executor.add_node(self.node)
        self.images, self.joint_states, self.instructions, self.episodes = [], [], [], []
        self._hear(Image, "image", self.images, qos_profile_sensor_data)
        self._hear(JointState, "joint_states", self.joint_states, 10)
        self._hear(String, "instruction", self.instructions, LATCHED)
        self._hear(DiagnosticStatus, "simulation/episode", self.episodes, 10)
        self.trajectories = self.node.create_publisher(JointTrajectory, "vla_edge_node/trajectory", NEWEST)
        self.commands = self.node.create_publisher(Float64MultiArray, "vla_edge_node/command", NEWEST)
        self._reset = self.node.create_client(Trigger, "simulation/reset")
        self._set = self.node.create_client(SetParameters, "simulation/set_parameters")

    def _hear(self, kind, topic, heard, qos):
        self.node.create_subscription(kind, topic, heard.append, qos)

    def until(self, condition, seconds=15):
        def spun():
            self._executor.spin_once(timeout_sec=0.02)
            return condition()

        assert becomes_true(spun, seconds)

    def value(self, key):
        return {pair.key: pair.value for pair in self.episodes[-1].values}[key]

    def set(self, **values):
        """The reason of the first parameter that is refused, else empty."""
        request = SetParameters.Request(
            parameters=[Parameter(name, value=value).to_parameter_msg() for name, value in values.items()]
        )
        return next((r.reason for r in self._call(self._set, request).results if not r.successful), "")

    def reset(self, **values):
        before = self.value("episode")
        assert self.set(**values) == ""
        assert self._call(self._reset, Trigger.Request()).success
        self.until(lambda: self.value("episode") != before)

    def _call(self, client, request):
        self.until(client.service_is_ready)
        future = client.call_async(request)
        self.until(future.done)
        return future.result()

    def send(self, positions, joints=JOINTS):
        point = JointTrajectoryPoint(positions=positions)
        point.time_from_start.nanosec = 300_000_000
        self.trajectories.publish(JointTrajectory(joint_names=joints, points=[point]))

    def close(self):
        self._executor.shutdown()
        self.node.destroy_node()


@pytest.fixture(scope="module")
def simulation(ros, has_renderer, tmp_path_factory):
    process = Process(SIMULATION_NODE, {"seed": 5}, tmp_path_factory.mktemp("simulation"))
    yield process
    process.kill()


@pytest.fixture
def beside(ros, simulation):
    beside = Beside(ros)
    beside.until(lambda: beside.episodes and beside.images and beside.joint_states)
    yield beside
    beside.close()


def test_the_camera_s_pictures_are_whole_new_and_stamped(beside):
    beside.until(lambda: len(beside.images) >= 5)
    pictures = [np.frombuffer(image.data, np.uint8).reshape(64, 128, 3) for image in beside.images]
    assert all((image.encoding, image.step) == ("rgb8", 384) for image in beside.images)
    stamps = [nanoseconds(image.header.stamp) for image in beside.images]
    assert stamps == sorted(set(stamps))
    assert pictures[0].std() > 10
    assert all(not np.array_equal(pictures[0], later) for later in pictures[1:])


def test_joint_states_name_the_arm_and_the_gripper(beside):
    state = beside.joint_states[-1]
    assert list(state.name) == [*JOINTS, "gripper"]
    assert len(state.position) == len(state.velocity) == 8


def test_a_reset_begins_the_episode_that_the_parameters_name(beside):
    beside.reset(task="switch", seed=11)
    assert (beside.value("task"), beside.value("seed")) == ("switch", "11")
    wanted = Environment(renders=False).reset(11, "switch").instruction
    beside.until(lambda: beside.instructions[-1].data == wanted)


def test_who_comes_late_hears_the_instruction(ros, beside):
    beside.reset(task="remember", seed=1)
    latecomer = Beside(ros)
    latecomer.until(lambda: latecomer.instructions)
    assert latecomer.instructions[0].data.startswith("when the lamp turns green")
    latecomer.close()


def test_who_tells_the_arm_something_else_is_heard_and_not_talked_over(ros, beside):
    """Until the next episode: `switch` would change its own words within 2.5 s."""
    beside.reset(task="switch", seed=2)
    own = Environment(renders=False).reset(2, "switch").instruction
    tell = beside.node.create_publisher(String, "instruction", 1)
    beside.until(tell.get_subscription_count)
    tell.publish(String(data="fly to the moon"))
    beside.until(lambda: float(beside.value("time_s")) > 3.0)
    assert beside.value("instruction") == "fly to the moon"
    latecomer = Beside(ros)
    latecomer.until(lambda: latecomer.instructions)
    assert latecomer.instructions[-1].data == "fly to the moon"
    latecomer.close()
    beside.reset(seed=2)
    assert beside.value("instruction") == own


def test_an_episode_may_begin_with_an_instruction_of_the_user_s(beside):
    beside.reset(task="reach", seed=2, instruction="wave")
    assert beside.value("instruction") == "wave"
    beside.reset(instruction="")
    assert beside.value("instruction").startswith("go to the ")


def test_the_arm_follows_a_trajectory_and_the_gripper_its_command(beside):
    beside.reset(task="remember", seed=1)
    goal = [position + 0.1 for position in beside.joint_states[-1].position[:7]]
    beside.until(beside.trajectories.get_subscription_count)
    beside.until(beside.commands.get_subscription_count)
    beside.send(goal)
    beside.commands.publish(Float64MultiArray(data=[0.0]))
    wanted = np.array([*goal, 0.0])
    beside.until(lambda: np.abs(np.array(beside.joint_states[-1].position) - wanted).max() < 0.03)


def test_what_a_controller_would_refuse_is_counted(beside):
    beside.until(beside.trajectories.get_subscription_count)
    before = int(beside.value("trajectories_refused")), int(beside.value("commands_refused"))
    beside.send([0.0] * 6, JOINTS[:6])
    beside.commands.publish(Float64MultiArray(data=[0.0, 1.0]))
    beside.until(
        lambda: (
            (int(beside.value("trajectories_refused")), int(beside.value("commands_refused")))
            == (before[0] + 1, before[1] + 1)
        )
    )


def test_parameters_that_make_no_sense_are_refused(beside):
    assert "it must be one of reach, track, remember, switch" in beside.set(task="juggle")
    assert "seed" in beside.set(seed=-1)
    assert "start the simulation anew" in beside.set(camera_hz=50.0)
    assert next(row.allowed for row in SIMULATION if row.name == "task") == tuple(TASKS)


def test_it_ends_cleanly_when_told_to(ros, has_renderer, tmp_path):
    process = Process(SIMULATION_NODE, {}, tmp_path, {"__ns": "/another"})
    beside = Beside(ros, "another")
    beside.until(lambda: beside.images)
    beside.close()
    assert process.stop() == 0
    assert process.log_lines() == []


def test_what_it_sends_and_is_sent_is_recorded(ros, has_renderer, tmp_path):
    file = tmp_path / "episode.mcap"
    process = Process(SIMULATION_NODE, {"record_path": str(file)}, tmp_path, {"__ns": "/another"})
    beside = Beside(ros, "another")
    beside.until(lambda: len(beside.images) > 5 and beside.instructions)
    beside.until(beside.trajectories.get_subscription_count)
    # More than once: the first is lost where the subscriber has not been matched to the publisher yet.
    for n_images in (7, 9, 11):
        beside.send(list(beside.joint_states[-1].position[:7]))
        beside.until(lambda n_images=n_images: len(beside.images) >= n_images)
    seen = {nanoseconds(image.header.stamp): bytes(image.data) for image in beside.images}
    beside.close()
    assert process.stop() == 0
    with open_bag(file) as bag:
        counts = {topic.name: topic.count for topic in bag.topics()}
        recorded = {image.stamp_ns: image.message.data.tobytes() for image in bag.images("/another/image")}
        texts = [text.text for text in bag.strings("/another/instruction")]
    assert seen.items() <= recorded.items()
    assert counts["/another/joint_states"] > 10 and 1 <= counts["/another/vla_edge_node/trajectory"] <= 3
    assert texts == [beside.instructions[0].data]


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"record_path": "{}/file/x.mcap"}, "file/x.mcap: cannot be written: its folder is a file"),
        ({"seed": -1}, "seed: -1 is not allowed"),
    ],
)
def test_what_it_cannot_start_with_ends_in_one_line(ros, tmp_path, parameters, complaint):
    (tmp_path / "file").touch()
    given = {k: v.format(tmp_path) if isinstance(v, str) else v for k, v in parameters.items()}
    process = Process(SIMULATION_NODE, given, tmp_path)
    assert becomes_true(lambda: not process.is_running)
    assert process.stop() == 2
    (line,) = process.log_lines()
    assert complaint in line


def test_without_a_renderer_it_names_the_package(ros, tmp_path):
    process = Process("blind_simulation", {}, tmp_path)
    assert becomes_true(lambda: not process.is_running)
    assert process.stop() == 2
    assert process.log_lines() == ["simulation: no OpenGL: sudo apt-get install libegl1"]


def simulate(environment, *words):
    return subprocess.run(
        [sys.executable, "-m", "vla_edge_ros.cli", "simulate", *map(str, words)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=90,
    )


@pytest.mark.parametrize(
    "variable",
    [{"MUJOCO_EGL_DEVICE_ID": "99"}, {"__EGL_VENDOR_LIBRARY_FILENAMES": "/nonexistent.json"}],
    ids=["no such device", "no driver"],
)
def test_where_opengl_does_not_open_the_command_ends_in_a_line_that_names_the_package(
    ros_environment, variable
):
    run = simulate(ros_environment | variable, "--expert")
    assert run.returncode == 2
    assert run.stderr.count("\n") == 1
    assert "sudo apt-get install libegl1 libgl1-mesa-dri" in run.stderr


def test_the_expert_succeeds_over_ros_as_often_as_without_it(ros_environment, has_renderer, tmp_path):
    seeds = range(3, 6)
    environment = Environment(renders=False)
    without = run_episodes(environment, ExpertActor(environment), "reach", seeds)
    file = tmp_path / "expert.json"
    run = simulate(ros_environment, "--expert", "--episodes", 3, "--seed", 3, "--json", file)
    assert run.returncode == 0, run.stdout + run.stderr
    document = json.loads(file.read_text())
    assert [episode["seed"] for episode in document["episodes"]] == list(seeds)
    successes = sum(episode["has_succeeded"] for episode in document["episodes"])
    assert successes >= sum(episode.has_succeeded for episode in without) > 0
    assert document["success"]["value"] == successes / 3


def test_the_node_moves_the_arm_in_an_episode_and_says_where_it_is_not_trained(
    ros_environment, has_renderer, tmp_path
):
    file = tmp_path / "model.json"
    run = simulate(ros_environment, "--episodes", 1, "--seed", 1, "--json", file)
    assert run.returncode == 0, run.stdout + run.stderr
    is_trained = (share_directory() / TRAINED["tiny-vla"]).is_dir()
    assert ("tiny-vla is not trained here" in run.stdout) is not is_trained
    document = json.loads(file.read_text())
    (episode,) = document["episodes"]
    assert 0 < episode["fresh"] <= episode["ticks"]
    assert document["engine"]["model"] == "tiny-vla"
    still = Environment(renders=False)
    still.reset(1, "reach")
    began_m = np.linalg.norm(still.scene.tip[:2] - still.task.target)
    assert abs(episode["distance_m"] - began_m) > 0.005


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--param", "control.record_path=x"], "control.record_path: simulate sets it itself"),
        (["--expert", "--param", "memory.slots=384"], "the expert has no parameters of the node"),
        (["--task", "juggle"], "invalid choice: 'juggle'"),
    ],
)
def test_what_cannot_run_ends_in_one_line(ros_environment, words, line):
    run = simulate(ros_environment, *words)
    assert run.returncode == 2
    assert line in run.stderr
    assert "Traceback" not in run.stdout + run.stderr
