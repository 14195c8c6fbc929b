"""Passes at full memory, each after an eviction, against a reference that forgets as the engine does."""

import numpy as np
import torch

from vla_edge_ros.engine.cuda.gate_checks import REFERENCE_LIMIT, compare_stream, mean_errors
from vla_edge_ros.engine.cuda.gate_hugging_face import Stream
from vla_edge_ros.engine.cuda.gate_passes import PROMPT_TOKENS, Passes, Probe, layers_of, pass_states
from vla_edge_ros.engine.cuda.gate_weights import Tensors
from vla_edge_ros.engine.cuda.reference import Reference
from vla_edge_ros.engine.interface import FRAME_TOKENS, MAX_ACTION_TOKENS
from vla_edge_ros.engine.model_config import ModelConfig

N_EVICTIONS = 8


def compare_after_evictions(
    config: ModelConfig, tensors: Tensors, passes: Passes, probe: Probe, wanted: Stream, rounded: Stream
) -> dict:
    """Fill the memory, then evict a frame before each of 8 passes: ranks close up, and *Stream* must hold.

    The reference is `Reference`, in float32: keys before RoPE, turned by the rank that they have when they
    are read. Hugging Face caches turned keys and cannot close up. So `Reference` must agree with it
    (`wanted`) in the first pass at full memory, before any eviction; the bound is the error of its bf16
    (`rounded`) there.
    """
    reference = Reference(config, tensors, passes.n_slots)
    out = reference.parts.spans["out"]
    blocks, free = list(range(passes.n_frames - 1)), passes.n_frames - 1
    reference.extend(reference.embed(passes.prompt))
    for block in blocks:
        reference.extend(reference.embed_frame(passes.frames[block]))
    random = np.random.default_rng(0)

    def run_pass(index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The engine's stream and the reference's, (32 + 8, layers, hidden); the frame stays in memory."""
        context = np.concatenate([passes.prompt_slots, *(passes.block_slots(block) for block in blocks)])
        frame, start = passes.frames[index], int(passes.starts[index])
        computed = probe.run(context, passes.block_slots(free), frame, start)
        states = pass_states(reference, passes, index, computed.actions)
        _, trace = reference.extend(states, is_traced=True)
        reference.forget(len(reference.keys[0]) - MAX_ACTION_TOKENS, len(reference.keys[0]))
        blocks.append(free)
        return computed.trace[..., out], trace[..., out]

    first = passes.n_frames - 1
    span = passes.tokens_of(first)
    _, unevicted = run_pass(first)
    of_hugging_face = [layer[span] for layer in wanted.layers]
    agreement = max(mean_errors(layers_of(reference, unevicted), of_hugging_face))
    bounds = mean_errors([layer[span] for layer in rounded.layers], of_hugging_face)

    streams = []
    for eviction in range(N_EVICTIONS):
        gone = int(random.integers(0, len(blocks) - 1))  # never the newest
        rank = PROMPT_TOKENS + gone * FRAME_TOKENS
        reference.forget(rank, rank + FRAME_TOKENS)
        free = blocks.pop(gone)
        streams.append(run_pass((first + 1 + eviction) % len(passes.frames)))
    found, expected = (torch.cat(side) for side in zip(*streams, strict=True))
    report = compare_stream(layers_of(reference, found), layers_of(reference, expected), bounds)
    report |= {"evictions": N_EVICTIONS, "reference_against_hugging_face": agreement}
    report["passed"] = report["passed"] and agreement <= REFERENCE_LIMIT
    return report
