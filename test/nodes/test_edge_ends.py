"""How the node ends: whatever the reason, the arm comes to rest first."""

import os
import signal
import time

import pytest
from robot import ARM

REST = dict.fromkeys([*ARM, "gripper"], 0.1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_brings_the_arm_to_rest_and_ends_the_node_cleanly(start_edge, number):
    robot = start_edge()
    robot.bring_to("active")
    robot.move()
    began = time.monotonic()
    os.kill(robot.edge.pid, number)
    robot.until(lambda: not robot.edge.is_running)
    assert time.monotonic() - began < 3
    assert robot.edge.stop() == 0
    robot.until_rest()
    assert "Traceback" not in robot.log()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_ends_an_idle_node_cleanly(start_edge, number):
    robot = start_edge()
    assert robot.state() == "unconfigured"
    os.kill(robot.edge.pid, number)
    robot.until(lambda: not robot.edge.is_running, seconds=3)
    assert robot.edge.stop() == 0
    assert "Traceback" not in robot.log()


def test_a_signal_ends_a_node_that_is_loading_a_model(start_edge):
    robot = start_edge(parameters={"engine.model": "fake:configure_ms=60000"})
    robot.begin("configure")
    robot.engine_pid()
    os.kill(robot.edge.pid, signal.SIGTERM)
    robot.until(lambda: not robot.edge.is_running, seconds=3)
    assert robot.edge.stop() == 0
    assert "Traceback" not in robot.log()


def test_a_signal_ends_a_node_whose_new_engine_hangs(start_edge):
    robot = start_edge()
    robot.bring_to("active")
    first = robot.engine_pid()
    os.kill(first, signal.SIGKILL)
    robot.until(lambda: robot.engine_pid() != first)
    os.kill(robot.engine_pid(), signal.SIGSTOP)
    os.kill(robot.edge.pid, signal.SIGTERM)
    robot.until(lambda: not robot.edge.is_running, seconds=3)
    assert robot.edge.stop() == 0
    assert "Traceback" not in robot.log()


# Defects


def test_a_defect_in_the_tick_thread_brings_the_arm_to_rest_and_ends_the_node_with_a_word(start_edge):
    robot = start_edge(module="defective_node")
    robot.bring_to("active")
    robot.move()
    assert robot.set(camera__max_age_ms=99.0) == "", "what the planted defect waits for"
    robot.until(lambda: not robot.edge.is_running)
    assert robot.edge.stop() == 1
    robot.until_rest()
    assert "the tick thread has ended: ZeroDivisionError" in robot.log()


def test_a_defect_in_a_callback_brings_the_arm_to_rest_and_ends_the_node_with_a_word(start_edge):
    robot = start_edge(module="defective_node")
    robot.bring_to("active")
    robot.move()
    robot.joints = {**REST, "defect": 0.0}
    robot.until(lambda: not robot.edge.is_running)
    assert robot.edge.stop() == 1
    robot.until_rest()
    assert "ZeroDivisionError" in robot.log()
