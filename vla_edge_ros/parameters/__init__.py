"""The ROS parameters: one table from which declaration, validation, docs and the default file come.

`python -m vla_edge_ros.parameters --write` writes `docs/parameters.md` and `config/edge.yaml` again.
"""

from vla_edge_ros.parameters.bag_camera_table import BAG_CAMERA
from vla_edge_ros.parameters.check import (
    ParameterRefused,
    defaults,
    unknown_name,
    validate,
    validate_all,
)
from vla_edge_ros.parameters.parameter import Parameter
from vla_edge_ros.parameters.simulation_table import SIMULATION
from vla_edge_ros.parameters.table import NODE

__all__ = [
    "BAG_CAMERA",
    "NODE",
    "SIMULATION",
    "Parameter",
    "ParameterRefused",
    "defaults",
    "unknown_name",
    "validate",
    "validate_all",
]
