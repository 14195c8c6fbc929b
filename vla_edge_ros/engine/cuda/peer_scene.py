"""What a pass starts from, in torch: random weights, a context of keys and values, a frame's states.

For timing other implementations beside the engine; never imported by it.
"""

import math
from dataclasses import dataclass

import torch

from vla_edge_ros.engine.interface import FRAME_TOKENS, MAX_ACTION_TOKENS
from vla_edge_ros.engine.model_config import ModelConfig
from vla_edge_ros.engine.weights import EMBEDDING, HEAD, decoder_shapes


@dataclass(frozen=True, slots=True)
class Scene:
    """Equal for equal arguments on one machine, so that every peer computes the same.

    weights: by Hugging Face's names. keys, values: (layers, KV heads, n_context, head), keys after RoPE.
    frame: (32, hidden), the states that a prefill of one frame is fed with.
    """

    config: ModelConfig
    weights: dict[str, torch.Tensor]
    keys: torch.Tensor
    values: torch.Tensor
    frame: torch.Tensor

    @property
    def n_context(self) -> int:
        return self.keys.shape[2]

    @property
    def n_ranks(self) -> int:
        """Ranks at the end of a pass: the context, the frame and the decoded tokens."""
        return self.n_context + FRAME_TOKENS + MAX_ACTION_TOKENS


def make_scene(config: ModelConfig, n_context: int, device: str, dtype: torch.dtype, seed: int = 0) -> Scene:
    """Normals: matrices of deviation 1 / sqrt(fan in), embeddings twice that, gains 1 +- 0.1, biases 0.1."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device, dtype=torch.float32)

    weights = {}
    for name, shape in decoder_shapes(config).items():
        values = normal(*shape)
        if name.endswith("norm.weight"):
            values.mul_(0.1).add_(1)
        elif name.endswith(".bias"):
            values.mul_(0.1)
        else:
            values.mul_((2 if name in (EMBEDDING, HEAD) else 1) / math.sqrt(shape[1]))
        weights[name] = values.to(dtype)
    kv_shape = (config.num_hidden_layers, config.num_key_value_heads, n_context, config.head_dim)
    keys, values = normal(*kv_shape).to(dtype), normal(*kv_shape).to(dtype)
    frame = (normal(FRAME_TOKENS, config.hidden_size) * 2 / math.sqrt(config.hidden_size)).to(dtype)
    return Scene(config, weights, keys, values, frame)
