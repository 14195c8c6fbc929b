"""Start `vla_edge_node` and, with autostart, activate it. It sends no command until `~/enable` is called.

    ros2 launch vla_edge_ros edge.launch.py image_topic:=/camera/image_raw params_file:=/path/to/my_arm.yaml

The namespace is that of the robot: the node reads `image`, `instruction` and `joint_states` in it.
"""

import os
from pathlib import Path

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, EmitEvent, RegisterEventHandler, SetEnvironmentVariable
from launch.conditions import IfCondition
from launch.event_handlers import OnProcessStart
from launch.events import matches_action
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import LifecycleNode
from launch_ros.event_handlers import OnStateTransition
from launch_ros.events.lifecycle import ChangeState
from launch_ros.parameter_descriptions import ParameterValue
from lifecycle_msgs.msg import Transition

CONFIG = Path(__file__).resolve().parents[1] / "config"

OLD_PROFILE_VARIABLE = "FASTRTPS_DEFAULT_PROFILES_FILE"
"""Read by Humble, Iron and Jazzy; newer distributions warn where it is set."""
NEW_PROFILE_VARIABLE = "FASTDDS_DEFAULT_PROFILES_FILE"
"""Read by Kilted and newer distributions."""


def generate_launch_description() -> LaunchDescription:
    node = LifecycleNode(
        package="vla_edge_ros",
        executable="vla_edge_node",
        name="vla_edge_node",
        namespace=LaunchConfiguration("namespace"),
        output="screen",
        respawn=LaunchConfiguration("use_respawn"),
        respawn_delay=2.0,
        parameters=[
            LaunchConfiguration("params_file"),
            {"use_sim_time": ParameterValue(LaunchConfiguration("use_sim_time"), value_type=bool)},
        ],
        remappings=[("image", LaunchConfiguration("image_topic"))],
        arguments=["--ros-args", "--log-level", LaunchConfiguration("log_level")],
    )
    return LaunchDescription([*arguments(), *image_transport(), *autostart(node), node])


def arguments() -> list[DeclareLaunchArgument]:
    return [
        DeclareLaunchArgument(
            "namespace", default_value="", description="Namespace of the robot, for example left_arm"
        ),
        DeclareLaunchArgument(
            "params_file",
            default_value=str(CONFIG / "edge.yaml"),
            description="Full path of the parameter file; the default holds every parameter's default",
        ),
        DeclareLaunchArgument(
            "image_topic",
            default_value="image",
            description="The camera's topic; a compressed one also needs camera.is_compressed in params_file",
        ),
        DeclareLaunchArgument(
            "use_sim_time",
            default_value="false",
            description="Use the clock on /clock for stamps if true; ticks keep the steady clock",
        ),
        DeclareLaunchArgument(
            "autostart",
            default_value="true",
            description="Configure and activate the node; it still sends no command until ~/enable is called",
        ),
        DeclareLaunchArgument(
            "use_respawn",
            default_value="false",
            description="Start the node again 2 s after it ended; it comes back with commands disabled",
        ),
        DeclareLaunchArgument(
            "log_level", default_value="info", description="Log level: debug, info, warn, error or fatal"
        ),
    ]


def image_transport() -> list[SetEnvironmentVariable]:
    """Variables that make Fast DDS carry whole images; a profile of the user's own is left in force."""
    variables = (OLD_PROFILE_VARIABLE, NEW_PROFILE_VARIABLE)
    if any(os.environ.get(variable) for variable in variables):
        return []
    if os.environ.get("ROS_DISTRO", "humble") not in ("humble", "iron", "jazzy"):
        variables = (NEW_PROFILE_VARIABLE,)
    return [SetEnvironmentVariable(variable, str(CONFIG / "fastdds.xml")) for variable in variables]


def autostart(node: LifecycleNode) -> list[RegisterEventHandler]:
    """Configure the node at each start of its process, also after a respawn, and then activate it."""

    def change(transition_id: int) -> EmitEvent:
        return EmitEvent(
            event=ChangeState(lifecycle_node_matcher=matches_action(node), transition_id=transition_id)
        )

    wanted = IfCondition(LaunchConfiguration("autostart"))
    configure = OnProcessStart(target_action=node, on_start=[change(Transition.TRANSITION_CONFIGURE)])
    activate = OnStateTransition(
        target_lifecycle_node=node,
        start_state="configuring",
        goal_state="inactive",
        entities=[change(Transition.TRANSITION_ACTIVATE)],
    )
    return [
        RegisterEventHandler(configure, condition=wanted),
        RegisterEventHandler(activate, condition=wanted),
    ]
