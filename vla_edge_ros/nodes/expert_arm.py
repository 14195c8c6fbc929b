"""The scripted expert on the node's topics: what a model without fault would publish."""

import array

from builtin_interfaces.msg import Duration
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.duration import Duration as Span
from rclpy.node import Node
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from vla_edge_ros.actions.limits import Limits
from vla_edge_ros.simulation.commanded import CONTROL_HZ, Commanded, arm_policy
from vla_edge_ros.simulation.expert import action_towards
from vla_edge_ros.simulation.opening import open_episode
from vla_edge_ros.simulation.scene import JOINTS, Scene

_TICK_NS = round(1e9 / CONTROL_HZ)
_TICK = Span(nanoseconds=_TICK_NS)


class ExpertArm:
    """Sends one trajectory and one gripper command a tick, with the node's times: in effect at the next tick.

    It hears the topics that a robot has, and `~/episode` for the tick, the seed and the time. From these it
    lays a table of its own, which shows it where things are.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._scene = Scene()
        self._limits = Limits.of(arm_policy().dimensions)
        self._episode = 0
        self._measured: list[float] | None = None
        self._trajectories = node.create_publisher(JointTrajectory, "vla_edge_node/trajectory", 1)
        self._commands = node.create_publisher(Float64MultiArray, "vla_edge_node/command", 1)
        node.create_subscription(JointState, "joint_states", self._on_joint_states, 1)
        node.create_subscription(DiagnosticStatus, "simulation/episode", self._on_episode, 1)

    def _on_joint_states(self, message: JointState) -> None:
        positions = dict(zip(message.name, message.position, strict=False))
        if positions.keys() >= {*JOINTS, "gripper"}:  # other joints are not this arm's
            self._measured = [positions[name] for name in (*JOINTS, "gripper")]

    def _on_episode(self, message: DiagnosticStatus) -> None:
        values = {pair.key: pair.value for pair in message.values}
        if int(values["episode"]) != self._episode:
            # Joint states of the episode before may be in hand: act from the next tick on.
            self._episode = int(values["episode"])
            self._task, joints = open_episode(self._scene, int(values["seed"]), values["task"])
            self._commanded = Commanded(self._limits, joints)
        elif self._measured is not None and values["is_over"] == "False":
            self._task.show(float(values["time_s"]))
            self._act()

    def _act(self) -> None:
        *joints, gripper = self._measured
        self._scene.place_arm(joints, gripper)
        action = action_towards(self._scene, self._task.target, 1 / CONTROL_HZ)
        self._commanded.take(action, self._scene.joint_positions)
        point = JointTrajectoryPoint(
            positions=array.array("d", self._commanded.joints), time_from_start=Duration(nanosec=_TICK_NS)
        )
        trajectory = JointTrajectory(joint_names=list(JOINTS), points=[point])
        trajectory.header.stamp = (self._node.get_clock().now() + _TICK).to_msg()
        self._trajectories.publish(trajectory)
        self._commands.publish(Float64MultiArray(data=array.array("d", [self._commanded.gripper])))
