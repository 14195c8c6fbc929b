"""The two files that are generated from the table of parameters."""

import json
import textwrap

from vla_edge_ros.parameters.bag_camera_table import BAG_CAMERA
from vla_edge_ros.parameters.parameter import Parameter, Value
from vla_edge_ros.parameters.simulation_table import SIMULATION
from vla_edge_ros.parameters.table import NODE

GROUPS = {
    "camera": "What comes in.",
    "control": "Ticks and their deadline.",
    "admission": "Whether a pass is begun at all.",
    "ladder": "What is given up where a whole pass does not fit; docs/admission.md has the steps.",
    "memory": "What is remembered, and at which cost.",
    "engine": "What runs the model.",
    "actions": "What goes out.",
    "instruction": "What the robot is told.",
}
"""Each prefix of the edge node's parameters, with what it is about."""

PAGE_HEAD = """\
# Parameters

Generated from `vla_edge_ros/parameters/` by `python -m vla_edge_ros.parameters --write`.

A value that is not allowed is refused with a line that says what is. Whole numbers are taken for doubles.
The words (tick, hold, pass, slot) are explained in [architecture.md](architecture.md), the decisions in
[decisions.md](decisions.md).

Parameters marked *live* may be changed at any time. The others are read when the node is configured and
cannot be changed after that: first `ros2 lifecycle set /vla_edge_node deactivate` and `... cleanup`.
"""

BAG_CAMERA_INTRODUCTION = """\
Plays the images of a recording as a live camera: on `image`, or on `image/compressed` where they are
compressed. All parameters are read once, when it starts.
"""

SIMULATION_INTRODUCTION = """\
The simulated table with its arm, camera and controllers; [simulation.md](simulation.md) has its topics.
"""

FILE_HEAD = """\
# Every parameter of vla_edge_node with its default value; docs/parameters.md says more.
# Generated from vla_edge_ros/parameters/table.py: copy this file and change the copy.
# /** stands for any node name and namespace.
/**:
  ros__parameters:
"""


def reference_page() -> str:
    """The text of `docs/parameters.md`."""
    parts = [PAGE_HEAD, "## vla_edge_node\n"]
    for group, about in GROUPS.items():
        parts.append(f"### {group}\n\n{about}\n")
        parts.append(_table(_members(group)))
    parts.append("## bag_camera\n\n" + BAG_CAMERA_INTRODUCTION)
    parts.append(_table(BAG_CAMERA))
    parts.append("## simulation\n\n" + SIMULATION_INTRODUCTION)
    parts.append(_table(SIMULATION))
    return "\n".join(parts)


def default_file() -> str:
    """The text of `config/edge.yaml`."""
    lines = []
    for group, about in GROUPS.items():
        lines.append(f"    # {about}\n    {group}:\n")
        for parameter in _members(group):
            lines += [
                f"      {line}\n"
                for line in textwrap.wrap(
                    "# " + _comment(parameter), 100, subsequent_indent="# ", break_on_hyphens=False
                )
            ]
            lines.append(f"      {parameter.name.split('.')[1]}: {_yaml(parameter.default)}\n")
    return FILE_HEAD + "".join(lines)


def _members(group: str) -> list[Parameter]:
    return [parameter for parameter in NODE if parameter.name.split(".")[0] == group]


def _table(parameters: list[Parameter] | tuple[Parameter, ...]) -> str:
    rows = ["| name | type | default | allowed | what it does |", "|---|---|---|---|---|"]
    for parameter in parameters:
        live = " *Live.*" if parameter.is_live else ""
        rows.append(
            f"| `{parameter.name}` | {parameter.type_name} | `{_yaml(parameter.default)}` "
            f"| {_allowed(parameter)} | {parameter.description}{live} |"
        )
    return "\n".join(rows) + "\n"


def _allowed(parameter: Parameter) -> str:
    if parameter.type_name == "bool":
        return "`true`, `false`"
    if parameter.allowed:
        return ", ".join(f"`{text}`" for text in parameter.allowed)
    return (parameter.bounds.strip() + (f" {parameter.unit}" if parameter.unit else "")) or "any"


def _comment(parameter: Parameter) -> str:
    says_itself = parameter.type_name == "bool" or _allowed(parameter) == "any"
    limits = "" if says_itself else f" ({_allowed(parameter)})"
    return (parameter.description + limits).replace("`", "")


def _yaml(value: Value) -> str:
    """The value as YAML; an empty list as [""], since ROS reads no type from an empty one."""
    if isinstance(value, tuple):
        return json.dumps(list(value) or [""])
    return json.dumps(value)
