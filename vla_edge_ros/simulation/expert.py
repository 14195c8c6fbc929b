"""The scripted expert: resolved-rate control of the tip towards a target, from the scene's own state."""

import numpy as np

from vla_edge_ros.simulation.scene import N_JOINTS, READY, Scene

HOVER_M = 0.10
"""Height of the tip while it moves and when it is there: above every object."""

GAIN_HZ = 5.0
TURN_GAIN_HZ = 4.0
POSTURE_GAIN_HZ = 1.5
MAX_SPEED = 0.45
"""Of the tip, m/s."""
MAX_TURN = 1.2
"""Of the hand, rad/s."""

CLOSES_WITHIN_M = 0.04

_DAMPING = 0.02


def action_towards(scene: Scene, target: np.ndarray, period_s: float) -> np.ndarray:
    """(8,) the expert's action for one tick: seven joint deltas in rad, and the gripper from 0 to 1.

    target: (2,) where the tip is to be, at `HOVER_M` with the hand pointing down. The gripper closes there.

    Joint velocities are J+ (v, w) + (I - J+ J) k (READY - q), J+ the damped pseudo-inverse of the tip's
    Jacobian (Nakamura and Hanafusa 1986); v and w are proportional to the errors, and bounded.
    """
    goal = np.array([*target, HOVER_M])
    offset = goal - scene.tip
    axes = scene.tip_axes
    # The hand's x along the table's, its z down: y then points to the camera.
    turn = 0.5 * (
        np.cross(axes[:, 0], (1.0, 0.0, 0.0))
        + np.cross(axes[:, 1], (0.0, -1.0, 0.0))
        + np.cross(axes[:, 2], (0.0, 0.0, -1.0))
    )
    twist = np.concatenate([_bounded(GAIN_HZ * offset, MAX_SPEED), _bounded(TURN_GAIN_HZ * turn, MAX_TURN)])
    jacobian = scene.tip_jacobian
    inverse = jacobian.T @ np.linalg.inv(jacobian @ jacobian.T + _DAMPING**2 * np.eye(6))
    posture = POSTURE_GAIN_HZ * (READY - scene.joint_positions)
    velocity = inverse @ twist + (np.eye(N_JOINTS) - inverse @ jacobian) @ posture
    is_there = np.linalg.norm(offset[:2]) < CLOSES_WITHIN_M
    return np.append(velocity * period_s, 0.0 if is_there else 1.0)


def _bounded(vector: np.ndarray, longest: float) -> np.ndarray:
    length = float(np.linalg.norm(vector))
    return vector if length <= longest else vector * (longest / length)


def pose_above(scene: Scene, target: np.ndarray) -> np.ndarray:
    """Joints (7,) with the tip above `target`, as the expert comes to rest there; moves the arm there."""
    joints = scene.joint_positions
    for _ in range(400):
        joints = np.clip(joints + action_towards(scene, target, 1 / 10)[:N_JOINTS], *scene.joint_range.T)
        scene.place_arm(joints, 1.0)
    return joints
