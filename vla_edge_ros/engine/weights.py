"""Names, shapes and sources of a model's weights."""

import math
from typing import Protocol

import numpy as np

from vla_edge_ros.engine.interface import EngineError
from vla_edge_ros.engine.model_config import ModelConfig
from vla_edge_ros.engine.presets import PRESETS
from vla_edge_ros.engine.seeded import fill_normal
from vla_edge_ros.engine.vision import PATCH_SIZE

VISION_WEIGHT = "vision.patch_embedding.weight"
VISION_BIAS = "vision.patch_embedding.bias"


class WeightSource(Protocol):
    """Tensors by Hugging Face's names, read one at a time."""

    def read(self, name: str, out: np.ndarray) -> np.ndarray:
        """Fill `out`, float32 of the tensor's shape, and return it."""


def decoder_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the decoder with its shape; the head is `model.embed_tokens.weight` (tied)."""
    hidden, mlp = config.hidden_size, config.intermediate_size
    shapes = {"model.embed_tokens.weight": (config.vocab_size, hidden), "model.norm.weight": (hidden,)}
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "input_layernorm.weight": (hidden,),
            prefix + "self_attn.q_proj.weight": (config.query_size, hidden),
            prefix + "self_attn.q_proj.bias": (config.query_size,),
            prefix + "self_attn.k_proj.weight": (config.kv_size, hidden),
            prefix + "self_attn.k_proj.bias": (config.kv_size,),
            prefix + "self_attn.v_proj.weight": (config.kv_size, hidden),
            prefix + "self_attn.v_proj.bias": (config.kv_size,),
            prefix + "self_attn.o_proj.weight": (hidden, config.query_size),
            prefix + "post_attention_layernorm.weight": (hidden,),
            prefix + "mlp.gate_proj.weight": (mlp, hidden),
            prefix + "mlp.up_proj.weight": (mlp, hidden),
            prefix + "mlp.down_proj.weight": (hidden, mlp),
        }
    return shapes


def vision_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The patch embedding: weight (hidden, 768) and bias (hidden,)."""
    return {VISION_WEIGHT: (config.hidden_size, PATCH_SIZE), VISION_BIAS: (config.hidden_size,)}


class SeededWeights:
    """Weights drawn from named streams of one seed, bit-identical on every run and machine.

    Projections keep the scale of their input (deviation 1 / sqrt(fan in)); those that write to the residual
    stream share it between 2 n layers. Queries are drawn wider, so that attention picks few tokens instead of
    averaging all of them, and tied rows so that logits have a deviation of about 2.
    """

    def __init__(self, config: ModelConfig, seed: int):
        self._config = config
        self._seed = seed

    def read(self, name: str, out: np.ndarray) -> np.ndarray:
        mean, deviation = self._distribution(name, out.shape)
        return fill_normal(out, self._seed, name, mean, deviation)

    def _distribution(self, name: str, shape: tuple[int, ...]) -> tuple[float, float]:
        if name.endswith("norm.weight"):
            return 1.0, 0.1
        if name.endswith(".bias"):
            return 0.0, 0.1
        deviation = 1 / math.sqrt(shape[1])
        if name.endswith("embed_tokens.weight"):
            deviation *= 2
        elif name.endswith("q_proj.weight"):
            deviation *= 3
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            deviation /= math.sqrt(2 * self._config.num_hidden_layers)
        return 0.0, deviation


def open_weights(model: str, seed: int) -> tuple[ModelConfig, WeightSource]:
    """The geometry and the weights of a preset. Raises EngineError for an unknown model."""
    if model in PRESETS:
        return PRESETS[model], SeededWeights(PRESETS[model], seed)
    raise EngineError(f"model {model!r} is neither a preset ({', '.join(PRESETS)}) nor a directory")
