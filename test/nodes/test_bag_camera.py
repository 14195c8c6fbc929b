"""The bag camera over real DDS on loopback: what a subscriber in another process gets."""

import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import rclpy
import recorded
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import QoSDurabilityPolicy, QoSProfile
from recorded import SAMPLE, image_payloads, pixels, write_mcap, write_rosbag2
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import String

from vla_edge_ros.evaluation.bags import open_bag


@pytest.fixture
def listener(ros_environment):
    context = rclpy.Context()
    rclpy.init(context=context)
    node = rclpy.create_node("listener", context=context)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)
    yield node, executor
    executor.shutdown()
    node.destroy_node()
    rclpy.shutdown(context=context)


def start_camera(environment: dict, **parameters: object) -> subprocess.Popen:
    arguments = [part for name, value in parameters.items() for part in ("-p", f"{name}:={value}")]
    return subprocess.Popen(
        [sys.executable, "-m", "vla_edge_ros.nodes.bag_camera", "--ros-args", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def spin_until(executor: SingleThreadedExecutor, condition, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        executor.spin_once(timeout_sec=0.05)


def nanoseconds(stamp) -> int:
    return stamp.sec * 1_000_000_000 + stamp.nanosec


def test_every_image_arrives_with_its_pixels_its_interval_and_the_instruction(
    listener, ros_environment, tmp_path
):
    node, executor = listener
    folder = write_rosbag2(tmp_path / "bag", n_images=20, instructions=("stack the cups",))
    images, said = [], []
    node.create_subscription(Image, "image", images.append, QoSProfile(depth=30))
    latched = QoSProfile(depth=1, durability=QoSDurabilityPolicy.TRANSIENT_LOCAL)
    node.create_subscription(String, "instruction", said.append, latched)
    began_ns = time.time_ns()
    camera = start_camera(
        ros_environment,
        bag=folder,
        qos_reliability="reliable",
        depth=30,
        wait_for_subscriber_s=10,
        start_delay_ms=100,
        frame_id="wrist",
    )
    spin_until(executor, lambda: len(images) == 20 and said)
    output, errors = camera.communicate(timeout=20)
    assert camera.returncode == 0
    assert "published 20 images" in output + errors
    assert [message.data for message in said] == ["stack the cups"]
    assert len(images) == 20
    for index, message in enumerate(images):
        assert (message.height, message.width, message.step, message.encoding) == (4, 6, 18, "rgb8")
        assert np.array_equal(np.frombuffer(message.data, np.uint8), pixels(index).ravel())
        assert message.header.frame_id == "wrist"
    stamps = [nanoseconds(message.header.stamp) for message in images]
    assert [stamp - stamps[0] for stamp in stamps] == [index * 10_000_000 for index in range(20)]
    assert began_ns < stamps[0] < time.time_ns()


def test_compressed_images_keep_their_bytes_and_with_restamp_false_their_stamps(listener, ros_environment):
    node, executor = listener
    images = []
    node.create_subscription(CompressedImage, "image/compressed", images.append, QoSProfile(depth=10))
    camera = start_camera(
        ros_environment,
        bag=SAMPLE,
        qos_reliability="reliable",
        restamp="false",
        loop="true",
        wait_for_subscriber_s=10,
    )
    spin_until(executor, lambda: len(images) >= 5)
    camera.send_signal(signal.SIGINT)
    _, errors = camera.communicate(timeout=3)
    assert camera.returncode == 0
    assert "Traceback" not in errors
    with open_bag(SAMPLE) as bag:
        recorded = {image.stamp_ns: image.message for image in bag.images("/camera/image_raw/compressed")}
    for message in images:
        source = recorded[nanoseconds(message.header.stamp)]
        assert message.format == source.format
        assert bytes(message.data) == source.data.tobytes()


def test_a_looping_camera_goes_on_with_rising_stamps_and_ends_on_sigterm(listener, ros_environment, tmp_path):
    node, executor = listener
    images = []
    node.create_subscription(Image, "image", images.append, QoSProfile(depth=100))
    camera = start_camera(
        ros_environment,
        bag=write_rosbag2(tmp_path / "bag", n_images=5),
        qos_reliability="reliable",
        depth=100,
        loop="true",
        rate=2,
        wait_for_subscriber_s=10,
    )
    spin_until(executor, lambda: len(images) >= 12)
    camera.send_signal(signal.SIGTERM)
    output, errors = camera.communicate(timeout=3)
    assert camera.returncode == 0
    assert "Traceback" not in output + errors
    stamps = [nanoseconds(message.header.stamp) for message in images[:12]]
    # at twice the rate every interval of 10 ms becomes 5 ms, the one between two laps included
    assert [stamp - stamps[0] for stamp in stamps] == [index * 5_000_000 for index in range(12)]


@pytest.mark.parametrize(
    ("parameters", "exit_code", "line"),
    [
        ({"bag": "/nowhere/at/all"}, 2, "/nowhere/at/all: no such file or folder"),
        ({}, 2, "bag: it is empty"),
        ({"bag": "x", "rate": 0}, 2, "must be a number from 0.01 to 100"),
        ({"bag": "x", "qos_reliability": "maybe"}, 2, "must be one of best_effort, reliable"),
        ({"bag": "SEVERAL"}, 2, "name one of several image topics: /left"),
        ({"bag": "CUT"}, 3, "truncated after 10 messages"),
        ({"bag": "JUMPS"}, 2, "nothing was recorded for 2.0 h after 6 images: was a clock wrong?"),
        ({"bag": "CUT", "allow_truncated": "true"}, 0, "truncated after 10 messages"),
        ({"bag": "UNREADABLE"}, 2, "none of 3 messages can be read"),
        ({"bag": "ONLY_WORDS"}, 2, "none of its images can be read"),
    ],
)
def test_what_cannot_be_played_ends_in_one_line(
    ros_environment, tmp_path, monkeypatch, parameters, exit_code, line
):
    if parameters.get("bag") == "SEVERAL":
        parameters = parameters | {"bag": write_rosbag2(tmp_path / "bag", topics=("/left", "/right"))}
    if parameters.get("bag") == "CUT":
        path = write_mcap(tmp_path / "cut.mcap", image_payloads(12), use_chunking=False)
        content = path.read_bytes()
        path.write_bytes(content[: content.index(image_payloads(12)[10]) + 5])
        parameters = parameters | {"bag": path}
    if parameters.get("bag") == "JUMPS":
        on_time = recorded.log_ns
        monkeypatch.setattr(recorded, "log_ns", lambda i: on_time(i) + (i > 5) * 7_200 * 10**9)
        parameters = parameters | {"bag": write_rosbag2(tmp_path / "bag")}
    if parameters.get("bag") == "ONLY_WORDS":
        folder = write_rosbag2(tmp_path / "bag", n_images=1, instructions=("go",))
        (file,) = folder.glob("*.mcap")
        file.write_bytes(file.read_bytes().replace(image_payloads(1)[0], bytes(len(image_payloads(1)[0]))))
        parameters = parameters | {"bag": folder}
    if parameters.get("bag") == "UNREADABLE":
        parameters = parameters | {"bag": write_mcap(tmp_path / "bad.mcap", [b"?"] * 3)}
    camera = start_camera(ros_environment, **parameters)
    _, errors = camera.communicate(timeout=20)
    assert camera.returncode == exit_code
    assert line in errors
    assert "Traceback" not in errors
