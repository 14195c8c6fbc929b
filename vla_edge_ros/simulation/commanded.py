"""What an actor has sent the arm to, as the node keeps it: deltas add up to positions, within limits."""

from pathlib import Path

import numpy as np

from vla_edge_ros.actions.limits import Limits
from vla_edge_ros.actions.policy import Policy, load_policy
from vla_edge_ros.share import share_directory
from vla_edge_ros.simulation.scene import N_JOINTS

CONTROL_HZ = 30
_LEASH_S = 0.1
"""How far a command may run ahead of the measured joint, in time at full speed, as in `ActionPlanner`."""


def arm_policy_file() -> str:
    """As `actions.policy_file` names it: the policy of this arm."""
    return str(share_directory() / "config/policies/tiny_vla.yaml")


def arm_policy() -> Policy:
    """What that file holds."""
    return load_policy(Path(arm_policy_file()))


class Commanded:
    """joints: (7,) rad; gripper: from 0 (closed) to 1 (open)."""

    def __init__(self, limits: Limits, joints: np.ndarray, gripper: float = 1.0) -> None:
        self._limits = limits
        self.joints = joints
        self.gripper = gripper

    def take(self, action: np.ndarray, measured: np.ndarray) -> None:
        """Move by `action` (8,): seven joint deltas of a tick, and the gripper, NaN to leave it as it is.

        measured: (7,) where the joints are.
        """
        reach = self._limits.reach(round(1e9 / CONTROL_HZ))
        leash = _LEASH_S * self._limits.max_velocity[:N_JOINTS]
        start = np.clip(self.joints, measured - leash, measured + leash)
        delta = np.clip(action[:N_JOINTS], -reach[:N_JOINTS], reach[:N_JOINTS])
        low, high = self._limits.low[:N_JOINTS], self._limits.high[:N_JOINTS]
        self.joints = np.clip(start + delta, low, high)
        if np.isfinite(action[N_JOINTS]):
            step = np.clip(action[N_JOINTS] - self.gripper, -reach[N_JOINTS], reach[N_JOINTS])
            self.gripper = float(np.clip(self.gripper + step, 0.0, 1.0))
