"""The eviction policies by name."""

from collections.abc import Callable

from vla_edge_ros.memory.by_age import Fifo, Random, SinksRecent, SlidingWindow, UniformStride
from vla_edge_ros.memory.by_neighbour import Semantic
from vla_edge_ros.memory.by_novelty import Novelty, TemporalRedundancy
from vla_edge_ros.memory.by_signal import HeavyHitter, InstructionAttention, ValueNorm
from vla_edge_ros.memory.eviction_policy import EvictionPolicy

_MAKERS: dict[str, Callable[[int, int], EvictionPolicy]] = {
    "fifo": lambda window_frames, seed: Fifo(),
    "sliding_window": lambda window_frames, seed: SlidingWindow(window_frames),
    "semantic": lambda window_frames, seed: Semantic(),
    "random": lambda window_frames, seed: Random(seed),
    "uniform_stride": lambda window_frames, seed: UniformStride(),
    "sinks_recent": lambda window_frames, seed: SinksRecent(),
    "heavy_hitter": lambda window_frames, seed: HeavyHitter(),
    "instruction_attention": lambda window_frames, seed: InstructionAttention(),
    "temporal_redundancy": lambda window_frames, seed: TemporalRedundancy(),
    "value_norm": lambda window_frames, seed: ValueNorm(),
    "novelty": lambda window_frames, seed: Novelty(),
}

POLICIES = tuple(_MAKERS)

NEED_SIGNALS = ("heavy_hitter", "instruction_attention", "value_norm")
"""Policies that an engine must tell its attention or values for."""

EMBEDDINGS = ("pooled", "patch_signature", "key_summary")

_SEES_MOTION = {"novelty", "temporal_redundancy"}


def embedding_for(policy: str, embedding: str = "auto") -> str:
    """The embedding that `memory.embedding` stands for; `auto` is what the policy was made for."""
    if embedding != "auto":
        return embedding
    return "patch_signature" if policy in _SEES_MOTION else "pooled"


def make_policy(name: str, window_frames: int = 1, seed: int = 0) -> EvictionPolicy:
    """The eviction policy called `name`; `window_frames` is used by sliding_window alone, `seed` by random.

    Raises ValueError for an unknown name, with the known ones, and for a window below one frame.
    """
    if name not in _MAKERS:
        raise ValueError(f"memory.policy is {name!r}; known policies are {', '.join(POLICIES)}")
    return _MAKERS[name](window_frames, seed)
