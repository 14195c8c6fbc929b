"""A frame's first-layer keys as an embedding."""

import numpy as np


def key_summary(keys: np.ndarray) -> np.ndarray:
    """(32 x KV size,) float32 from the first layer's keys before RoPE, `keys` (32, KV size), patch by patch.

    Each patch's keys are divided by their length, so that the cosine of two summaries is the mean over
    patches of the cosines of their keys: the TaR score of InfiniPot-V (arXiv:2506.15745) of whole frames.
    """
    lengths = np.sqrt(np.square(keys, dtype=np.float32).sum(axis=1, keepdims=True))
    return (keys / np.maximum(lengths, np.float32(1e-8))).reshape(-1).astype(np.float32)
