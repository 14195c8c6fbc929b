"""Every parameter of `bag_camera`; all are read once, when it starts."""

from vla_edge_ros.parameters.parameter import Parameter

BAG_CAMERA = (
    Parameter(
        "bag",
        "",
        "Recording to play: a rosbag2 folder, a .db3, .mcap, ROS 1 .bag or video file; must be given.",
    ),
    Parameter("topic", "", "Image topic in the recording; may be empty where there is only one."),
    Parameter(
        "rate", 1.0, "Speed: 2.0 plays twice as fast.", unit="times real time", minimum=0.01, maximum=100.0
    ),
    Parameter("loop", False, "Whether to play the recording again when it ends; otherwise the node exits."),
    Parameter(
        "start_delay_ms",
        0.0,
        "Time between being ready and the first image.",
        unit="ms",
        minimum=0.0,
        maximum=600_000.0,
    ),
    Parameter(
        "wait_for_subscriber_s",
        0.0,
        "Longest wait for a first subscriber of the images.",
        unit="s",
        minimum=0.0,
        maximum=3600.0,
    ),
    Parameter(
        "qos_reliability",
        "best_effort",
        "Reliability offered; best_effort is what cameras do.",
        allowed=("best_effort", "reliable"),
    ),
    Parameter("depth", 5, "Depth of the publisher's history.", unit="messages", minimum=1, maximum=1000),
    Parameter(
        "restamp",
        True,
        "Whether header stamps are moved to now, their intervals kept; false sends the recorded stamps.",
    ),
    Parameter("plays_instructions", True, "Whether the recording's instructions are published too."),
    Parameter("frame_id", "", "frame_id to send; empty keeps the recorded one."),
    Parameter(
        "allow_truncated",
        False,
        "Whether to exit with 0 although the recording is cut short or damaged; otherwise with 3.",
    ),
)
