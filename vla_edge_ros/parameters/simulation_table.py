"""Every parameter of `simulation`."""

from vla_edge_ros.parameters.parameter import Parameter

SIMULATION = (
    Parameter(
        "task",
        "reach",
        "What the arm is asked to do, from the next `~/reset` on.",
        allowed=("reach", "track", "remember", "switch"),
        is_live=True,
    ),
    Parameter(
        "seed",
        0,
        "Which episode of the task, from the next `~/reset` on.",
        minimum=0,
        maximum=2**53,
        is_live=True,
    ),
    Parameter(
        "instruction",
        "",
        "What the arm is told in place of the task's own words, from the next `~/reset` on; empty for those.",
        is_live=True,
    ),
    Parameter(
        "record_path",
        "",
        "mcap file for what the node sends and is sent; an existing one is replaced; empty for none.",
    ),
    Parameter(
        "camera_hz", 40.0, "Images a second that the camera takes.", unit="hz", minimum=1.0, maximum=120.0
    ),
)
