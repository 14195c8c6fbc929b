"""The parameters of `bag_camera`: one table for declaring, checking and documenting them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class BadParameter(ValueError):
    """A parameter has a value that is not allowed; the message is one line for the user."""


class CameraParameter(NamedTuple):
    """`minimum` and `maximum` bound numbers, both included; `choices` lists the texts that are allowed."""

    name: str
    default: str | bool | int | float
    description: str
    minimum: float = -math.inf
    maximum: float = math.inf
    choices: tuple[str, ...] = ()


CAMERA_PARAMETERS = (
    CameraParameter("bag", "", "Recording: a rosbag2 folder, or a .db3, .mcap, ROS 1 .bag or video file."),
    CameraParameter("topic", "", "Image topic in the recording; may be empty where there is only one."),
    CameraParameter("rate", 1.0, "Speed factor: 2.0 plays twice as fast.", 0.01, 100.0),
    CameraParameter("loop", False, "Play the recording again when it ends."),
    CameraParameter("start_delay_ms", 0.0, "Time between being ready and the first image.", 0.0, 600_000.0),
    CameraParameter(
        "wait_for_subscriber_s", 0.0, "Longest wait for a first subscriber of the images.", 0.0, 3600.0
    ),
    CameraParameter(
        "qos_reliability", "best_effort", "Reliability offered.", choices=("best_effort", "reliable")
    ),
    CameraParameter("depth", 5, "Depth of the publisher's history.", 1, 1000),
    CameraParameter(
        "restamp",
        True,
        "Move header stamps to now, their intervals kept exactly; false sends the recorded stamps.",
    ),
    CameraParameter("frame_id", "", "frame_id to send; empty keeps the recorded one."),
    CameraParameter("allow_truncated", False, "Exit with 0 although the recording is cut short or damaged."),
)


@dataclass(frozen=True, slots=True)
class CameraOptions:
    """Checked values of CAMERA_PARAMETERS."""

    bag: str
    topic: str
    rate: float
    loop: bool
    start_delay_ms: float
    wait_for_subscriber_s: float
    qos_reliability: str
    depth: int
    restamp: bool
    frame_id: str
    allow_truncated: bool

    @classmethod
    def from_values(cls, values: Mapping[str, object]) -> "CameraOptions":
        """Raises BadParameter."""
        options = cls(**{parameter.name: _checked(parameter, values) for parameter in CAMERA_PARAMETERS})
        if not options.bag:
            raise BadParameter("parameter bag is empty; name a recording with -p bag:=PATH")
        return options


def _checked(parameter: CameraParameter, values: Mapping[str, object]) -> object:
    value = values.get(parameter.name, parameter.default)
    wanted = type(parameter.default)
    if wanted is float and type(value) is int:
        value = float(value)
    if type(value) is not wanted:
        raise BadParameter(f"parameter {parameter.name} is {value!r}; wanted a {wanted.__name__}")
    if parameter.choices and value not in parameter.choices:
        raise BadParameter(
            f"parameter {parameter.name} is {value!r}; wanted {' or '.join(parameter.choices)}"
        )
    if wanted in (int, float) and not parameter.minimum <= value <= parameter.maximum:
        bounds = f"from {parameter.minimum:g} to {parameter.maximum:g}"
        raise BadParameter(f"parameter {parameter.name} is {value!r}; wanted a number {bounds}")
    return value
