"""Which frames each pass of a sequence attends to: asked of the memory that is deployed."""

from dataclasses import dataclass

import numpy as np

from vla_edge_ros.control import settings
from vla_edge_ros.memory.slots import FRAME_TOKENS, MAX_ACTION_TOKENS
from vla_edge_ros.perception.frame import FrameMeta

SMALL_SHARE = 0.3
"""Of the sequences are seen by a smaller memory than the deployed one, so that evictions are known too."""

SMALL_FRAMES = (3, 14)
SMALL_POLICIES = ("fifo", "semantic")


@dataclass(frozen=True, slots=True)
class Contexts:
    """Of a sequence's n kept ticks: `seen[i]` are the places of the retained frames that the pass of tick i
    attends to, oldest first; `is_retained` (n,) says whose own frames were retained after it."""

    seen: list[list[int]]
    is_retained: np.ndarray


def contexts_of(
    ticks: np.ndarray, n_prompt: int, embeddings: np.ndarray, parameters: settings.Parameters
) -> Contexts:
    """Run `FrameMemory` over a sequence's ticks (n,), whose pooled embeddings are (n, hidden) float32.

    Ticks between strides that are not kept change nothing: between two retained frames memory evicts once.
    """
    memory = settings.frame_memory(parameters, MAX_ACTION_TOKENS, embeddings.shape[1])
    memory.set_prompt(n_prompt)
    seen, is_retained = [], np.zeros(len(ticks), bool)
    for i, tick in enumerate(ticks.tolist()):
        memory.make_room(tick)
        seen.append([frame.meta.index - 1 for frame in memory.frames])
        is_retained[i] = memory.retain(FrameMeta(i + 1, 0, 0, 0), embeddings[i], tick)
    return Contexts(seen, is_retained)


def draw_memory(
    deployment: settings.Parameters, n_prompt: int, rng: np.random.Generator
) -> settings.Parameters:
    """The deployed memory or, now and then, a smaller one of another policy."""
    if rng.random() >= SMALL_SHARE:
        return deployment
    n_frames = int(rng.integers(*SMALL_FRAMES, endpoint=True))
    slots = n_prompt + FRAME_TOKENS * n_frames + MAX_ACTION_TOKENS
    return deployment | {"memory.slots": slots, "memory.policy": str(rng.choice(SMALL_POLICIES))}
