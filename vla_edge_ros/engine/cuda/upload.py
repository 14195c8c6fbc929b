"""Weights from their source to the device: rounded to bf16, and packed as the kernels read them."""

import math

import numpy as np

from vla_edge_ros.engine.cuda.arena import Arena
from vla_edge_ros.engine.cuda.device import Device
from vla_edge_ros.engine.cuda.kernels import Kernels
from vla_edge_ros.engine.model_config import ACTION_ROWS, ModelConfig
from vla_edge_ros.engine.vision import PATCH_SIZE, VISION_BIAS, VISION_WEIGHT
from vla_edge_ros.engine.weights import EMBEDDING, HEAD, WeightSource


def bf16_bits(values: np.ndarray) -> np.ndarray:
    """float32 -> the bits of bf16 (uint16), to nearest even; infinities stay, NaN is not expected here."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def bf16_rounded(values: np.ndarray) -> np.ndarray:
    """float32 -> float32 with the values of bf16."""
    return (bf16_bits(values).astype(np.uint32) << 16).view(np.float32)


def rope_table(config: ModelConfig, n_ranks: int) -> np.ndarray:
    """(n_ranks, head / 2, 2) float32: cosine and sine of rank x theta^(-2 i / head).

    The angle is a float32 product, as in Hugging Face's rotary embedding, so that both turn alike.
    """
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
    frequencies = (1 / np.float64(config.rope_theta) ** exponents).astype(np.float32)
    angles = (np.arange(n_ranks, dtype=np.float32)[:, None] * frequencies).astype(np.float64)
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)


class Uploader:
    """Reads each tensor once; the staging memory is given back by `close`."""

    def __init__(self, device: Device, kernels: Kernels, config: ModelConfig, weights: WeightSource):
        self._device, self._kernels, self._config, self._weights = device, kernels, config, weights
        largest = max(
            2 * config.intermediate_size * config.hidden_size,
            (config.query_size + 2 * config.kv_size) * config.hidden_size,
            config.hidden_size * PATCH_SIZE,
            ACTION_ROWS * config.hidden_size,
        )
        self._host = np.empty(largest, np.float32)
        self._staging = device.allocate(4 * largest, "staging of weights")

    def upload(self, arena: Arena) -> None:
        """Fill the arena's weights."""
        config = self._config
        hidden, query, kv = config.hidden_size, config.query_size, config.kv_size
        norms = np.empty((2 * config.num_hidden_layers + 1, hidden), np.float32)
        biases = np.empty((config.num_hidden_layers, query + 2 * kv), np.float32)
        at = arena["weights"]
        for layer in range(config.num_hidden_layers):
            prefix = f"model.layers.{layer}."
            attention, mlp = prefix + "self_attn.", prefix + "mlp."
            self._weights.read(prefix + "input_layernorm.weight", norms[2 * layer])
            self._weights.read(prefix + "post_attention_layernorm.weight", norms[2 * layer + 1])
            spans = {
                "q": slice(0, query),
                "k": slice(query, query + kv),
                "v": slice(query + kv, query + 2 * kv),
            }
            for name, span in spans.items():
                self._weights.read(f"{attention}{name}_proj.bias", biases[layer, span])
            rows = {f"{attention}{name}_proj.weight": span.stop - span.start for name, span in spans.items()}
            at = self._matrix("qkv", rows, hidden, at)
            at = self._matrix("output", {attention + "o_proj.weight": hidden}, query, at)
            gated = {f"{mlp}{name}_proj.weight": config.intermediate_size for name in ("gate", "up")}
            at = self._matrix("gate_up", gated, hidden, at)
            at = self._matrix("down", {mlp + "down_proj.weight": hidden}, config.intermediate_size, at)
        self._weights.read("model.norm.weight", norms[-1])
        self._device.upload(arena["norms"], bf16_rounded(norms))
        self._device.upload(arena["qkv_bias"], bf16_rounded(biases))

        rows = np.empty((1 + ACTION_ROWS, hidden), np.float32)
        self._weights.read(EMBEDDING, rows, config.action_start)
        self._device.upload(arena["rows"], bf16_bits(rows))
        if not config.tie_word_embeddings:
            self._weights.read(HEAD, rows[1:], config.first_action)
        self._pack("head", rows[1:], at)

        self._matrix("vision", {VISION_WEIGHT: hidden}, PATCH_SIZE, arena["vision"])
        bias = self._weights.read(VISION_BIAS, np.empty(hidden, np.float32))
        self._device.upload(arena["vision_bias"], bf16_rounded(bias))

    def _matrix(self, name: str, rows: dict[str, int], columns: int, to: int) -> int:
        """Stack tensors of `columns` columns, pack them at `to`, and return the address after them."""
        begin = 0
        for tensor, n_rows in rows.items():
            n = n_rows * columns
            self._weights.read(tensor, self._host[begin : begin + n].reshape(n_rows, columns))
            begin += n
        self._pack(name, self._host[:begin], to)
        return to + self._kernels.sizes[name]

    def _pack(self, name: str, values: np.ndarray, to: int) -> None:
        values = np.ascontiguousarray(values)
        assert math.prod(values.shape) <= self._host.size
        self._device.upload(self._staging, values)
        self._kernels.pack(name, self._staging, to, 0)
        self._device.synchronize()

    def close(self) -> None:
        self._device.free(self._staging)
