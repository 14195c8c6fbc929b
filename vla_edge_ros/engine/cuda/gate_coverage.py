"""Is every slot read, among thousands? The values of the context are marked, so that a single one shows.

Attention over 4,000 ranks is an average in which one more or less is lost: an unread slot changes it by less
than rounding to bf16 may. So each cached value becomes a single +-1, in the dimension that its rank gives. In
a dimension only every head-size-th rank speaks then, and one that is silent is a good part of the sum.
"""

import numpy as np
import torch

from vla_edge_ros.engine.cuda.gate_checks import (
    OPERATOR_LIMIT,
    OperatorInputs,
    attention_of,
    judged,
    relative_l2,
)
from vla_edge_ros.engine.cuda.gate_passes import EnginePass, Probe
from vla_edge_ros.engine.cuda.reference import Reference
from vla_edge_ros.engine.interface import FRAME_TOKENS

COVERAGE_LIMIT = 3 * OPERATOR_LIMIT
"""The kernels' rounding, emulated at 4096 ranks: 4e-3 in two layers of qwen2.5-coder-1.5b, 1.5e-2 under the
sharp attention of `tiny`. An unread slot: 0.12 to 0.17, in `tiny` 0.05 to 0.28."""


def mark_values(probe: Probe, slots: np.ndarray) -> torch.Tensor:
    """Mark the cached values of `slots`, by rank; returns those that were there, to be put back."""
    _, values = probe.cached(slots)
    size = values.shape[-1]
    signs = torch.from_numpy(np.random.default_rng(0).choice([-1.0, 1.0], len(slots))).to(values)
    marks = torch.zeros_like(values[0, :, 0])
    ranks = torch.arange(len(slots), device=values.device)
    marks[ranks, ranks % size] = signs
    probe.set_values(slots, marks[None, :, None].expand_as(values))
    return values


def compare_marked(exact: Reference, inputs: OperatorInputs, found: EnginePass) -> dict:
    """Attention over marked values against float64, by layer and dimension.

    The error is the relative L2 over all heads and the frame's tokens, or those decoded.
    """
    spans, size = exact.parts.spans, exact.config.head_dim
    worst = []
    for layer in range(exact.config.num_hidden_layers):
        trace = found.trace[:, layer].double()
        wanted = attention_of(exact, inputs, layer, trace[:, spans["qkv"]])
        for tokens in (slice(None, FRAME_TOKENS), slice(FRAME_TOKENS, None)):
            by_dimension = (
                states[tokens].reshape(-1, size).T for states in (trace[:, spans["attended"]], wanted)
            )
            worst.append(float(relative_l2(*by_dimension).max()))
    return judged(float(np.max(worst)), COVERAGE_LIMIT)
