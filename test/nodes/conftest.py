"""One ROS domain for all tests of the edge node: nothing leaves this computer, nobody else is in it."""

import contextlib
import os
import sys
from pathlib import Path

import pytest
import rclpy
from processes import private_ros_environment
from robot import Robot, noise

from vla_edge_ros.nodes.live_run import Process

ROOT = Path(__file__).resolve().parents[2]
EDGE_NODE = "vla_edge_ros.nodes.edge_node"
FAKE = {"engine.backend": "fake", "engine.model": "fake:service_ms=5"}


@pytest.fixture(scope="session")
def ros():
    """A context in the tests' domain, with the environment of the processes that join it."""
    with private_ros_environment():
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "test/nodes"), *sys.path])
        context = rclpy.Context()
        rclpy.init(context=context, domain_id=int(os.environ["ROS_DOMAIN_ID"]))
        yield context
        rclpy.shutdown(context=context)


@contextlib.contextmanager
def started(ros, folder, parameters=(), remappings=(), module=EDGE_NODE):
    """The robot around an edge node with the fake engine in a process of its own; one at a time."""
    values = FAKE | dict(parameters)
    edge = Process(module, values, folder, dict(remappings))
    robot = Robot(ros, edge, values, dict(remappings).get("__ns", ""))
    try:
        yield robot
    finally:
        robot.close()
        edge.kill()


@pytest.fixture
def start_edge(ros, tmp_path):
    """Starts an edge node and gives the robot around it."""
    with contextlib.ExitStack() as cleanup:
        yield lambda **keywords: cleanup.enter_context(started(ros, tmp_path, **keywords))


@pytest.fixture(scope="module")
def shared_robot(ros, tmp_path_factory):
    """The robot that the tests of a module share."""
    with started(ros, tmp_path_factory.mktemp("edge")) as robot:
        yield robot


@pytest.fixture
def robot(shared_robot):
    """The module's robot with an active, disabled node, a camera and no joint states."""
    shared_robot.picture, shared_robot.joints = noise, None
    shared_robot.restore()
    shared_robot.disable()
    yield shared_robot
    shared_robot.hush()
