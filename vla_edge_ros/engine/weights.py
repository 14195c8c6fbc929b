"""Names, shapes and sources of a model's weights."""

import math
from pathlib import Path
from typing import Protocol

import numpy as np

from vla_edge_ros.engine.checkpoint import CheckpointWeights, open_checkpoint
from vla_edge_ros.engine.interface import EngineError
from vla_edge_ros.engine.model_config import ModelConfig, ModelRefused, load_config
from vla_edge_ros.engine.presets import PRESETS, TRAINED
from vla_edge_ros.engine.seeded import fill_normal
from vla_edge_ros.engine.vision import VISION_BIAS, VISION_WEIGHT, PatchEmbedding, vision_shapes
from vla_edge_ros.share import share_directory

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


class WeightSource(Protocol):
    """Tensors by Hugging Face's names, read one at a time.

    notes: what a user should know of them, a line each.
    """

    notes: tuple[str, ...]

    def read(self, name: str, out: np.ndarray, first_row: int = 0) -> np.ndarray:
        """Fill `out` (float32, C-contiguous) with the tensor's rows from `first_row` on, and return it."""


def decoder_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the decoder with its shape; a tied head has no tensor of its own."""
    hidden, mlp = config.hidden_size, config.intermediate_size
    shapes = {EMBEDDING: (config.vocab_size, hidden), "model.norm.weight": (hidden,)}
    if not config.tie_word_embeddings:
        shapes[HEAD] = (config.vocab_size, hidden)
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


def read_vision(weights: WeightSource, hidden_size: int) -> PatchEmbedding:
    shapes = vision_shapes(hidden_size)
    weight, bias = (
        weights.read(name, np.empty(shapes[name], np.float32)) for name in (VISION_WEIGHT, VISION_BIAS)
    )
    return PatchEmbedding(weight, bias)


class SeededWeights:
    """Weights drawn from named streams of one seed, bit-identical on every run and machine.

    A matrix's deviation is 1 / sqrt(fan in), so that outputs keep the scale of their inputs. Embeddings are
    twice that, for logits with a deviation of about 2. Queries are three times as wide in up to 4 layers and
    1 + 32 / n^2 times in n: sharp attention makes single frames matter, but every sharp layer multiplies
    rounding errors, and many of them would leave little of a bf16 result.
    Gains are 1 +- 0.1, biases 0 +- 0.1, so that a forgotten one shows.
    """

    def __init__(self, config: ModelConfig, seed: int):
        self._shapes = decoder_shapes(config) | vision_shapes(config.hidden_size)
        self._query_gain = 1 + 2 * min(1, 16 / config.num_hidden_layers**2)
        self._seed = seed
        self.notes = (f"decoder and vision weights are random, of seed {seed}",)

    def read(self, name: str, out: np.ndarray, first_row: int = 0) -> np.ndarray:
        row_size = math.prod(self._shapes[name][1:])
        mean, deviation = self._distribution(name)
        return fill_normal(out, self._seed, name, first_row * row_size, mean, deviation)

    def _distribution(self, name: str) -> tuple[float, float]:
        if name.endswith("norm.weight"):
            return 1.0, 0.1
        if name.endswith(".bias"):
            return 0.0, 0.1
        deviation = 1 / math.sqrt(self._shapes[name][1])
        if name in (EMBEDDING, HEAD):
            deviation *= 2
        elif name.endswith("q_proj.weight"):
            deviation *= self._query_gain
        return 0.0, deviation


class _CheckpointWithSeededVision:
    """The decoder of a checkpoint that has no patch embedding, and a seeded one."""

    def __init__(self, checkpoint: CheckpointWeights, config: ModelConfig, seed: int):
        self._checkpoint = checkpoint
        self._vision = SeededWeights(config, seed)
        self.notes = (f"the model has no vision weights; they are random, of seed {seed}",)

    def read(self, name: str, out: np.ndarray, first_row: int = 0) -> np.ndarray:
        source = self._checkpoint if name in self._checkpoint else self._vision
        return source.read(name, out, first_row)


def open_weights(model: str, seed: int) -> tuple[ModelConfig, WeightSource]:
    """The geometry and the weights of a preset or of a Hugging Face directory.

    A directory's config and the headers of its files are checked here, before a tensor is read: every tensor
    must be there with the shape that the config gives it. Raises EngineError for an unknown model, and
    ModelRefused for a directory at fault.
    """
    if model in PRESETS:
        return PRESETS[model], _preset_weights(model, seed)
    directory = Path(model)
    if not directory.is_dir():
        raise EngineError(f"model {model!r} is neither a preset ({', '.join(PRESETS)}) nor a directory")
    config = load_config(directory / "config.json")
    checkpoint = open_checkpoint(
        directory,
        required=decoder_shapes(config),
        optional=vision_shapes(config.hidden_size),
        ignored=(HEAD,) if config.tie_word_embeddings else (),
    )
    if VISION_WEIGHT in checkpoint:
        return config, checkpoint
    return config, _CheckpointWithSeededVision(checkpoint, config, seed)


def _preset_weights(model: str, seed: int) -> WeightSource:
    """The trained weights of a preset that has some, else seeded ones."""
    config = PRESETS[model]
    if model not in TRAINED:
        return SeededWeights(config, seed)
    directory = share_directory() / TRAINED[model]
    if not directory.is_dir():
        seeded = SeededWeights(config, seed)
        seeded.notes += (f"{directory} is missing: {model} is not trained here, its actions mean nothing",)
        return seeded
    found = load_config(directory / "config.json")
    if found != config:
        raise ModelRefused(f"{directory}/config.json has another geometry than the preset {model}")
    shapes = decoder_shapes(config) | vision_shapes(config.hidden_size)
    return open_checkpoint(directory, required=shapes, optional={}, ignored=())
