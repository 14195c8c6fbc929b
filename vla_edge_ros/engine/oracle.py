"""What a decoder with a forgetting memory should compute, without a cache: slow, in float64, for checks.

Every token that ever entered the memory stays in one long history. A query sees the keys that were in the
memory in its own tick, each at the rank that it had in that tick. So an evicted frame is masked for later
queries and yet acts through the states of those that saw it.
"""

import numpy as np

from vla_edge_ros.engine.model_config import ModelConfig
from vla_edge_ros.engine.weights import EMBEDDING, HEAD, WeightSource, decoder_shapes


class ForgettingOracle:
    """The history of one memory. Blocks of tokens are named by the number that `append` returned."""

    def __init__(self, config: ModelConfig, weights: WeightSource):
        self._config = config
        self._tensors = {
            name: weights.read(name, np.empty(shape, np.float32)).astype(np.float64)
            for name, shape in decoder_shapes(config).items()
        }
        self._states = np.zeros((0, config.hidden_size))
        self._blocks: list[range] = []
        self._key_ranks = np.zeros((0, 0), np.int64)
        """[i, j]: the rank that key j had in query i's tick, or -1 where query i does not see key j."""

    def append(self, states: np.ndarray, visible: list[int]) -> int:
        """Add a block of input states (n, hidden) that sees the blocks `visible`, in rank order, and itself
        causally; returns its number."""
        before, n = len(self._states), len(states)
        context = [token for number in visible for token in self._blocks[number]]
        ranks = np.full((before + n, before + n), -1, np.int64)
        ranks[:before, :before] = self._key_ranks
        for offset in range(n):
            seen = [*context, *range(before, before + offset + 1)]
            ranks[before + offset, seen] = np.arange(len(seen))
        self._key_ranks = ranks
        self._states = np.concatenate([self._states, states.astype(np.float64)])
        self._blocks.append(range(before, before + n))
        return len(self._blocks) - 1

    def last_layer_states(self) -> list[np.ndarray]:
        """States (n, hidden) after the last layer, a block each, from one forward pass over the history."""
        states = self._states
        for layer in range(self._config.num_hidden_layers):
            states = self._layer(states, f"model.layers.{layer}.")
        return [states[block] for block in self._blocks]

    def action_logits(self, states: np.ndarray) -> np.ndarray:
        """Logits (n, 256) of the action rows for states (n, hidden) after the last layer."""
        head = self._tensors[EMBEDDING if self._config.tie_word_embeddings else HEAD]
        return self._norm(states, "model.norm.weight") @ head[self._config.first_action :].T

    def _layer(self, states: np.ndarray, prefix: str) -> np.ndarray:
        normed = self._norm(states, prefix + "input_layernorm.weight")
        heads = self._attend(*(self._project(normed, f"{prefix}self_attn.{name}_proj") for name in "qkv"))
        states = states + heads @ self._tensors[prefix + "self_attn.o_proj.weight"].T
        normed = self._norm(states, prefix + "post_attention_layernorm.weight")
        gate = normed @ self._tensors[prefix + "mlp.gate_proj.weight"].T
        up = normed @ self._tensors[prefix + "mlp.up_proj.weight"].T
        return states + (gate / (1 + np.exp(-gate)) * up) @ self._tensors[prefix + "mlp.down_proj.weight"].T

    def _attend(self, queries: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Head outputs (n, heads x size); a pair's score turns with the distance of its two ranks."""
        size = self._config.head_dim
        group = self._config.num_attention_heads // self._config.num_key_value_heads
        is_seen = self._key_ranks >= 0
        distance = np.diagonal(self._key_ranks)[:, None] - self._key_ranks
        turns = self._config.rope_theta ** (-np.arange(0, size, 2) / size)
        phase = np.exp(1j * distance[:, :, None] * turns)
        outputs = []
        for head in range(self._config.num_attention_heads):
            query = _as_complex(queries[:, head * size : (head + 1) * size])
            shared = slice(head // group * size, (head // group + 1) * size)
            key = _as_complex(keys[:, shared])
            scores = np.einsum("ip,ijp,jp->ij", query, phase, key.conj()).real / np.sqrt(size)
            scores = np.where(is_seen, scores, -np.inf)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            outputs.append(weights / weights.sum(axis=1, keepdims=True) @ values[:, shared])
        return np.concatenate(outputs, axis=1)

    def _project(self, states: np.ndarray, name: str) -> np.ndarray:
        return states @ self._tensors[name + ".weight"].T + self._tensors[name + ".bias"]

    def _norm(self, states: np.ndarray, name: str) -> np.ndarray:
        scale = np.sqrt(np.mean(states**2, axis=1, keepdims=True) + self._config.rms_norm_eps)
        return states / scale * self._tensors[name]


def _as_complex(vectors: np.ndarray) -> np.ndarray:
    """The pairs that RoPE rotates, (x_i, x_{i + size / 2}), as complex numbers."""
    half = vectors.shape[1] // 2
    return vectors[:, :half] + 1j * vectors[:, half:]
