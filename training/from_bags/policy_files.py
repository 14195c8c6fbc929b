"""The policy of a recorded arm: the statistics of its actions, and the files that the node loads."""

from pathlib import Path

import numpy as np
import yaml

from training.statistics import statistics_text
from vla_edge_ros.actions.policy import Kind, Policy
from vla_edge_ros.actions.reading import read_mapping
from vla_edge_ros.actions.statistics import Statistics
from vla_edge_ros.control import settings

STATISTICS_FILE, POLICY_FILE, NODE_FILE = "dataset_statistics.json", "policy.yaml", "node.yaml"

_RESTING = 1e-3
"""Below this share of its largest displacement a dimension counts as resting."""


def statistics_of(actions: np.ndarray, policy: Policy) -> Statistics:
    """What -1 and 1 stand for, of actions (n, A).

    Positions: their 1 % and 99 % quantiles, as OpenVLA has them. Displacements and velocities: the quantiles
    of the ticks in which they move, widened to be alike on both sides, so that rest is the middle of a bin
    and its share does not decide how far the bins reach. A gripper: its whole range.
    """
    low, high = np.empty(actions.shape[1]), np.empty(actions.shape[1])
    for i, dimension in enumerate(policy.dimensions):
        values = actions[:, i]
        if dimension.kind is Kind.GRIPPER:
            low[i], high[i] = values.min(), values.max()
        elif dimension.kind is Kind.POSITION:
            low[i], high[i] = np.quantile(values, (0.01, 0.99))
        else:
            moving = values[np.abs(values) > _RESTING * np.abs(values).max()]
            reach = np.abs(np.quantile(moving, (0.01, 0.99))).max() if len(moving) else 0.0
            low[i], high[i] = -reach, reach
    # As they come out of the file, so that labels are of what the node reads.
    low, high = low.round(6), high.round(6)
    return Statistics("the recordings", "q01/q99", low, high, np.ones(len(low), bool))


def write_policy(config: Path, statistics: Statistics, policy: Policy, folder: Path) -> None:
    """The policy of `config` with `statistics` of its own, for `actions.policy_file`."""
    entry = {
        "q01": statistics.low.tolist(),
        "q99": statistics.high.tolist(),
        "mask": statistics.mask.tolist(),
    }
    (folder / STATISTICS_FILE).write_text(statistics_text(policy.name, entry))
    content = read_mapping(config, yaml.safe_load)
    content |= {"statistics": STATISTICS_FILE, "dataset": policy.name}
    (folder / POLICY_FILE).write_text(_yaml(content))


def write_node_parameters(parameters: settings.Parameters, folder: Path) -> None:
    """The node's parameters as far as they are not the defaults, for `params_file` of the launch files."""
    content: dict = {}
    for name, value in parameters.items():
        group, key = name.split(".", 1)
        content.setdefault(group, {})[key] = value
    (folder / NODE_FILE).write_text(_yaml({"/**": {"ros__parameters": content}}))


def _yaml(content: dict) -> str:
    return yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=110, allow_unicode=True)
