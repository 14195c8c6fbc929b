"""A run whose middleware is shut down by a signal ends as by Ctrl-C."""

from types import SimpleNamespace

import pytest

pytest.importorskip("rclpy")

from rclpy.executors import ExternalShutdownException

from vla_edge_ros.nodes.live_run import Driver


def test_a_shutdown_of_rclpy_while_waiting_is_an_interrupt_and_no_traceback():
    def shut_down(timeout_sec):
        raise ExternalShutdownException

    driver = object.__new__(Driver)
    driver._edge = SimpleNamespace(is_running=True)
    driver._executor = SimpleNamespace(spin_once=shut_down)
    with pytest.raises(KeyboardInterrupt):
        driver.wait_for(lambda: False, "end", 1.0)
