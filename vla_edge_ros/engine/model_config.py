"""Geometry of a Qwen2 decoder, and its reading from a Hugging Face config.json."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_edge_ros.engine.interface import EngineError
from vla_edge_ros.input import read_text

ACTION_ROWS = 256
"""The last rows of a vocabulary are the actions; the row before them is the action-start token."""

MAX_LAYERS = 1000
"""Each is a dozen tensors to look for; the largest models have under 130."""

MAX_FILE_BYTES = 100_000_000
"""Of a model's JSON files; the index of a model of 1000 shards has a few megabytes."""


class ModelRefused(EngineError):
    """A model's files say something that this engine cannot compute, or contradict each other."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model's sizes, under the names of Hugging Face's `Qwen2Config`."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool

    @property
    def query_size(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_key_value_heads * self.head_dim

    @property
    def first_action(self) -> int:
        """Vocabulary id of the first of the 256 action rows."""
        return self.vocab_size - ACTION_ROWS

    @property
    def action_start(self) -> int:
        """Vocabulary id of the token that the first decode step is fed with."""
        return self.first_action - 1


def load_config(path: Path) -> ModelConfig:
    """Read and check a config.json. Raises ModelRefused with the file's name and the field at fault."""
    try:
        fields = json.loads(read_text(path, MAX_FILE_BYTES))
    except FileNotFoundError:
        raise ModelRefused(f"{path} is missing: a model directory has config.json and safetensors") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelRefused(f"{path} cannot be read as JSON: {error}") from None
    try:
        return parse_config(fields)
    except ModelRefused as refusal:
        raise ModelRefused(f"{path}: {refusal}") from None


def parse_config(fields: Any) -> ModelConfig:
    """The geometry in the JSON object of a config.json, old style or that of transformers 5.

    Raises ModelRefused for another model type, for anything that is missing, of a wrong type or outside its
    range, and for what full attention under plain RoPE does not cover.
    """
    if not isinstance(fields, dict):
        raise ModelRefused(f"wanted a JSON object, found {type(fields).__name__}")
    _expect(fields, "model_type", "qwen2")
    if fields.get("hidden_act") is not None:
        _expect(fields, "hidden_act", "silu")
    if fields.get("quantization_config") is not None:
        raise ModelRefused(
            "quantization_config is set: quantised weights are not supported, use bf16, f16 or f32"
        )
    hidden_size = _positive_int(fields, "hidden_size")
    heads = _positive_int(fields, "num_attention_heads")
    kv_heads = _positive_int(fields, "num_key_value_heads")
    if fields.get("head_dim") is not None:
        head_dim = _positive_int(fields, "head_dim")
    elif hidden_size % heads:
        raise ModelRefused(f"hidden_size {hidden_size} is not a multiple of num_attention_heads {heads}")
    else:
        head_dim = hidden_size // heads
    if heads % kv_heads:
        raise ModelRefused(f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
    if head_dim % 2:
        raise ModelRefused(f"head size {head_dim} is odd: RoPE rotates pairs")
    vocab_size = _positive_int(fields, "vocab_size")
    if vocab_size < 2 * ACTION_ROWS + 1:
        raise ModelRefused(
            f"vocab_size {vocab_size} is too small: {ACTION_ROWS} rows are left for text below the last "
            f"{ACTION_ROWS + 1}, the action-start token and the actions"
        )
    layers = _positive_int(fields, "num_hidden_layers")
    if layers > MAX_LAYERS:
        raise ModelRefused(f"num_hidden_layers is {layers}: wanted at most {MAX_LAYERS}")
    _require_full_attention(fields, layers)
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=_positive_int(fields, "intermediate_size"),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rope_theta=_rope_theta(fields),
        rms_norm_eps=_positive_float(fields, "rms_norm_eps"),
        tie_word_embeddings=_bool(fields, "tie_word_embeddings", False),
    )


def _rope_theta(fields: dict) -> float:
    """The base of plain RoPE, at the top level or inside rope_parameters; there is no default."""
    found = {}
    for name in ("rope_scaling", "rope_parameters"):
        rope = fields.get(name)
        if rope is None:
            continue
        if not isinstance(rope, dict) or any(isinstance(value, dict) for value in rope.values()):
            raise ModelRefused(f"{name} is {rope!r}: wanted one set of parameters for all layers")
        kind = rope.get("rope_type", rope.get("type", "default"))
        if "mrope_section" in rope:
            kind = "mrope"
        if kind != "default":
            raise ModelRefused(
                f"{name} asks for RoPE of type {kind!r}: only plain RoPE ('default') is supported"
            )
        if rope.get("rope_theta") is not None:
            found[name] = _positive_float(rope, "rope_theta")
    if fields.get("rope_theta") is not None:
        found["the top level"] = _positive_float(fields, "rope_theta")
    for holder in (fields, fields.get("rope_parameters") or {}):
        if holder.get("partial_rotary_factor", 1) != 1:
            raise ModelRefused(f"partial_rotary_factor is {holder['partial_rotary_factor']!r}: wanted 1")
    if not found:
        raise ModelRefused(
            "rope_theta is missing, at the top level and in rope_parameters; it is not guessed"
        )
    if len(set(found.values())) > 1:
        raise ModelRefused(f"rope_theta differs between places: {found}")
    return next(iter(found.values()))


def _require_full_attention(fields: dict, layers: int) -> None:
    """Qwen2's rule: layers from max_window_layers on slide, if use_sliding_window and a width is set."""
    is_sliding = _bool(fields, "use_sliding_window", False)
    window = fields.get("sliding_window")
    kinds = fields.get("layer_types")
    if kinds is None:
        first = layers
        if is_sliding and window is not None:
            first = _int(fields, "max_window_layers", minimum=0)
        kinds = ["full_attention"] * min(first, layers) + ["sliding_attention"] * max(layers - first, 0)
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise ModelRefused(f"layer_types is {kinds!r}: wanted a list of {layers} entries, one a layer")
    other = [index for index, kind in enumerate(kinds) if kind != "full_attention"]
    if other:
        raise ModelRefused(
            f"layer {other[0]} and {len(other) - 1} more use {kinds[other[0]]!r} "
            f"(use_sliding_window {is_sliding}, sliding_window {window}): only full attention is supported"
        )


def _expect(fields: dict, name: str, wanted: str) -> None:
    if fields.get(name) != wanted:
        raise ModelRefused(f"{name} is {fields.get(name)!r}: only {wanted!r} is supported")


def _int(fields: dict, name: str, minimum: int) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ModelRefused(f"{name} is {value!r}: wanted a whole number of at least {minimum}")
    return value


def _positive_int(fields: dict, name: str) -> int:
    return _int(fields, name, minimum=1)


def _positive_float(fields: dict, name: str) -> float:
    value = fields.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not (0 < value < math.inf):
        raise ModelRefused(f"{name} is {value!r}: wanted a positive finite number")
    return float(value)


def _bool(fields: dict, name: str, default: bool) -> bool:
    value = fields.get(name, default)
    if not isinstance(value, bool):
        raise ModelRefused(f"{name} is {value!r}: wanted true or false")
    return value
