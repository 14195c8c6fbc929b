"""`python -m training.statistics`: the statistics of the expert's actions, beside the policy file."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from vla_edge_ros.arguments import whole
from vla_edge_ros.share import share_directory
from vla_edge_ros.simulation.environment import Environment
from vla_edge_ros.simulation.scene import N_JOINTS
from vla_edge_ros.simulation.tasks import TASKS

FIRST_SEED = 500_000


def expert_actions(episodes: int) -> np.ndarray:
    """(n, 8) of the ticks of `episodes` of every task, without noise."""
    environment = Environment(renders=False)
    actions = []
    for task in TASKS:
        for seed in range(FIRST_SEED, FIRST_SEED + episodes):
            environment.reset(seed, task)
            while not environment.is_over:
                actions.append(environment.expert_action())
                environment.step(actions[-1])
    return np.array(actions)


def action_statistics(actions: np.ndarray) -> dict[str, list]:
    """`q01`, `q99` and `mask`. Quantiles of the moving ticks, widened to be alike on both sides:

    zero is then the middle of a bin, and an arm that is to wait does not creep. Waiting ticks are left out,
    or their number would decide how far the bins reach.
    """
    joints = actions[:, :N_JOINTS]
    moving = joints[np.abs(joints).max(axis=1) > 1e-3]
    reach = np.maximum(*np.abs(np.quantile(moving, (0.01, 0.99), axis=0)))
    low, high = [*(-reach).round(5).tolist(), 0.0], [*reach.round(5).tolist(), 1.0]
    return {"q01": low, "q99": high, "mask": [True] * (N_JOINTS + 1)}


def statistics_text(dataset: str, action: Mapping[str, list]) -> str:
    """The text of OpenVLA's `dataset_statistics.json`: JSON with a statistic a line."""
    rows = ",\n".join(f'      "{key}": {json.dumps(values)}' for key, values in action.items())
    return f'{{\n  {json.dumps(dataset)}: {{\n    "action": {{\n{rows}\n    }}\n  }}\n}}\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m training.statistics")
    parser.add_argument("--episodes", type=whole(1), default=200, help="of each task (default: 200)")
    default = share_directory() / "config/policies/tiny_vla_statistics.json"
    parser.add_argument("--out", type=Path, default=default)
    arguments = parser.parse_args()
    statistics = action_statistics(expert_actions(arguments.episodes))
    arguments.out.write_text(statistics_text("tiny_vla", statistics))
    print(f"{arguments.out}: written")


if __name__ == "__main__":
    main()
