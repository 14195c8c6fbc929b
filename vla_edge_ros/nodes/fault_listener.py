"""A reliable subscriber of ~/tick and ~/trajectory in a process of its own, for `vla-edge inject` to stop."""

import sys

import rclpy
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.executors import ExternalShutdownException
from trajectory_msgs.msg import JointTrajectory


def main() -> int:
    rclpy.init()
    node = rclpy.create_node("fault_listener")
    node.create_subscription(DiagnosticStatus, "/vla_edge_node/tick", lambda message: None, 10)
    node.create_subscription(JointTrajectory, "/vla_edge_node/trajectory", lambda message: None, 10)
    try:
        rclpy.spin(node)
    except (KeyboardInterrupt, ExternalShutdownException):
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
