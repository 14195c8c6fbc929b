"""Play the images of a bag or a video file into the edge node, in real time, as a camera would.

    ros2 launch vla_edge_ros replay.launch.py bag:=/path/to/bag topic:=/camera/image_raw

Takes every argument of edge.launch.py too, except that the camera is the bag. For a bag of compressed images
params_file must set camera.is_compressed to true.
"""

from pathlib import Path

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription, Shutdown
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue

EDGE = Path(__file__).resolve().parent / "edge.launch.py"


def generate_launch_description() -> LaunchDescription:
    edge = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(str(EDGE)),
        launch_arguments={"namespace": LaunchConfiguration("namespace"), "image_topic": "image"}.items(),
    )
    camera = Node(
        package="vla_edge_ros",
        executable="bag_camera",
        name="bag_camera",
        namespace=LaunchConfiguration("namespace"),
        output="screen",
        parameters=[
            {
                "bag": ParameterValue(LaunchConfiguration("bag"), value_type=str),
                "topic": ParameterValue(LaunchConfiguration("topic"), value_type=str),
                "loop": ParameterValue(LaunchConfiguration("loop"), value_type=bool),
                "rate": ParameterValue(LaunchConfiguration("rate"), value_type=float),
                "wait_for_subscriber_s": 60.0,
            }
        ],
        remappings=[("image/compressed", "image")],
        on_exit=Shutdown(reason="the bag has been played"),
    )
    # The edge comes first: the Fast DDS profile that it sets must hold for the camera too.
    return LaunchDescription([*arguments(), edge, camera])


def arguments() -> list[DeclareLaunchArgument]:
    return [
        DeclareLaunchArgument("bag", description="Bag (folder or file) or video file to play"),
        DeclareLaunchArgument(
            "topic", default_value="", description="Image topic inside the bag; empty: the only one there is"
        ),
        DeclareLaunchArgument(
            "loop",
            default_value="false",
            description="Start again at the end if true, else the launch ends",
        ),
        DeclareLaunchArgument("rate", default_value="1.0", description="Speed: 2.0 plays twice as fast"),
        DeclareLaunchArgument(
            "namespace", default_value="", description="Namespace of the robot, for example left_arm"
        ),
    ]
