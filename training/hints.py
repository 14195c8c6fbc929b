"""What the simulation knows and no camera tells, as further targets beside the actions.

Whoever learns to act learns sooner when told what to look for (Chen et al., Learning by Cheating, 2019):
where the named object is, where the arm will have to go, how the arm stands. The heads that answer are of the
training alone; recordings of a real robot have no hints and are trained without.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from vla_edge_ros.engine.vision import FRAME_HEIGHT, FRAME_WIDTH, PATCH
from vla_edge_ros.memory.slots import FRAME_TOKENS
from vla_edge_ros.simulation.environment import Environment
from vla_edge_ros.simulation.scene import N_JOINTS

N_HINTS = N_JOINTS + 4
"""Joints in rad; then where in the picture the target is, and the place that the arm will have to go to."""

LAYER = 4
"""After so many of the layers the heads look: the others have what is found there to act on."""

_TARGET = slice(N_JOINTS, N_JOINTS + 2)
_SPREAD_PIXELS = 8.0
_VALUES_WEIGHT = 10.0


def hints_of(environment: Environment) -> np.ndarray:
    """(N_HINTS,) float32 of the environment's state now."""
    scene, task = environment.scene, environment.task
    places = [scene.picture_place(np.append(place, 0.03)) for place in (task.target, task.goal)]
    return np.concatenate([scene.joint_positions, *places]).astype(np.float32)


class Hints(nn.Module):
    """The heads: which patch shows the target, asked of the patches; all values, of the action start."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.pointer = nn.Linear(hidden, 1, bias=False)
        self.values = nn.Linear(hidden, N_HINTS)
        columns, rows = FRAME_WIDTH // PATCH, FRAME_HEIGHT // PATCH
        x = (torch.arange(columns) + 0.5) * 2 / columns - 1
        y = (torch.arange(rows) + 0.5) * 2 / rows - 1
        centres = torch.stack([x.repeat(rows), y.repeat_interleave(columns)], 1)
        self.register_buffer("centres", centres, persistent=False)

    def forward(self, states: Tensor, hints: Tensor) -> Tensor:
        """The loss of states (Q, 32 + A, hidden) against hints (Q, N_HINTS), NaN where unknown."""
        normed = functional.rms_norm(states.float(), states.shape[-1:])
        is_known = hints.isfinite()
        error = (self.values(normed[:, FRAME_TOKENS]).float() - hints.nan_to_num()) * is_known
        values = error.square().sum() / is_known.sum().clamp(min=1)

        half_size = torch.tensor([FRAME_WIDTH / 2, FRAME_HEIGHT / 2], device=hints.device)
        place = hints[:, _TARGET]
        pixels = ((place[:, None].nan_to_num() - self.centres) * half_size).norm(dim=-1)
        wanted = functional.softmax(-0.5 * (pixels / _SPREAD_PIXELS).square(), dim=-1)
        found = functional.log_softmax(self.pointer(normed[:, :FRAME_TOKENS]).squeeze(-1).float(), dim=-1)
        has_place = place.isfinite().all(dim=1)
        pointer = -(wanted * found).sum(dim=-1) @ has_place.float() / has_place.sum().clamp(min=1)
        return pointer + _VALUES_WEIGHT * values
