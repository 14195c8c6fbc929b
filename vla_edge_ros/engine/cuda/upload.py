"""Weights from their source to the device: rounded to bf16, and packed as the kernels read them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

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


def fill_random(device: Device, arena: Arena) -> None:
    """Small random weights everywhere: the time that a pass takes does not depend on their values."""
    block = bf16_bits(np.random.default_rng(0).normal(0, 0.02, 1 << 19))
    for name in ("weights", "vision", "rows"):
        size = arena.size(name)
        filled = min(size, block.nbytes)
        device.upload(arena[name], block[: filled // 2])
        while filled < size:
            n = min(filled, size - filled)
            device.copy(arena[name] + filled, arena[name], n)
            filled += n
    for name in ("vision_bias", "norms", "qkv_bias", "rope"):
        device.upload(arena[name], np.full(arena.size(name) // 4, 1, np.float32))


class Uploader:
    """Reads each tensor once, the next while one is uploaded; the staging memory is given back by `close`."""

    def __init__(self, device: Device, kernels: Kernels, config: ModelConfig, weights: WeightSource):
        self._device, self._kernels, self._config, self._weights = device, kernels, config, weights
        largest = max(
            2 * config.intermediate_size * config.hidden_size,
            (config.query_size + 2 * config.kv_size) * config.hidden_size,
            config.hidden_size * PATCH_SIZE,
            ACTION_ROWS * config.hidden_size,
        )
        self._hosts = [np.empty(largest, np.float32) for _ in range(2)]
        self._staging = device.allocate(4 * largest, "staging of weights")

    def upload(self, arena: Arena) -> None:
        """Fill the arena's weights."""
        self._vectors(arena)
        matrices = [*self._matrices(arena["weights"]), self._vision(arena["vision"])]
        with ThreadPoolExecutor(1) as reader:
            reading = reader.submit(self._read, matrices[0], self._hosts[0])
            for i, matrix in enumerate(matrices):
                values = reading.result()
                if i + 1 < len(matrices):
                    reading = reader.submit(self._read, matrices[i + 1], self._hosts[(i + 1) % 2])
                self._pack(matrix.name, values, matrix.to)

    def _vectors(self, arena: Arena) -> None:
        """Norms, biases, and the rows of the embedding that decoding reads."""
        config = self._config
        hidden, query, kv = config.hidden_size, config.query_size, config.kv_size
        norms = np.empty((2 * config.num_hidden_layers + 1, hidden), np.float32)
        biases = np.empty((config.num_hidden_layers, query + 2 * kv), np.float32)
        spans = {"q": slice(0, query), "k": slice(query, query + kv), "v": slice(query + kv, query + 2 * kv)}
        for layer in range(config.num_hidden_layers):
            prefix = f"model.layers.{layer}."
            self._weights.read(prefix + "input_layernorm.weight", norms[2 * layer])
            self._weights.read(prefix + "post_attention_layernorm.weight", norms[2 * layer + 1])
            for name, span in spans.items():
                self._weights.read(f"{prefix}self_attn.{name}_proj.bias", biases[layer, span])
        self._weights.read("model.norm.weight", norms[-1])
        self._device.upload(arena["norms"], bf16_rounded(norms))
        self._device.upload(arena["qkv_bias"], bf16_rounded(biases))
        rows = np.empty((1 + ACTION_ROWS, hidden), np.float32)
        self._weights.read(EMBEDDING, rows, config.action_start)
        self._device.upload(arena["rows"], bf16_bits(rows))
        bias = self._weights.read(VISION_BIAS, np.empty(hidden, np.float32))
        self._device.upload(arena["vision_bias"], bf16_rounded(bias))

    def _matrices(self, at: int) -> Iterator["_Matrix"]:
        """The decoder's, one after another from address `at`: the layers', then the head."""
        config = self._config
        hidden, query, kv = config.hidden_size, config.query_size, config.kv_size
        for layer in range(config.num_hidden_layers):
            attention, mlp = f"model.layers.{layer}.self_attn.", f"model.layers.{layer}.mlp."
            qkv = {f"{attention}{name}_proj.weight": n for name, n in (("q", query), ("k", kv), ("v", kv))}
            gate_up = {f"{mlp}{name}_proj.weight": config.intermediate_size for name in ("gate", "up")}
            for name, rows, columns in (
                ("qkv", qkv, hidden),
                ("output", {attention + "o_proj.weight": hidden}, query),
                ("gate_up", gate_up, hidden),
                ("down", {mlp + "down_proj.weight": hidden}, config.intermediate_size),
            ):
                yield _Matrix(name, rows, columns, at)
                at += self._kernels.sizes[name]
        head = EMBEDDING if config.tie_word_embeddings else HEAD
        yield _Matrix("head", {head: ACTION_ROWS}, hidden, at, config.first_action)

    def _vision(self, to: int) -> "_Matrix":
        return _Matrix("vision", {VISION_WEIGHT: self._config.hidden_size}, PATCH_SIZE, to)

    def _read(self, matrix: "_Matrix", host: np.ndarray) -> np.ndarray:
        begin = 0
        for tensor, n_rows in matrix.rows.items():
            n = n_rows * matrix.columns
            to = host[begin : begin + n].reshape(n_rows, matrix.columns)
            self._weights.read(tensor, to, matrix.first_row)
            begin += n
        return host[:begin]

    def _pack(self, name: str, values: np.ndarray, to: int) -> None:
        self._device.upload(self._staging, values)
        self._kernels.pack(name, self._staging, to, 0)
        self._device.synchronize()

    def close(self) -> None:
        self._device.free(self._staging)


@dataclass(frozen=True, slots=True)
class _Matrix:
    """`rows` of each tensor from `first_row` on, stacked, are packed as `name` at the address `to`."""

    name: str
    rows: dict[str, int]
    columns: int
    to: int
    first_row: int = 0
