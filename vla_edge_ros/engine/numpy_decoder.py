"""The Qwen2 decoder in NumPy: a KV cache of slots, and forward passes over it in float32."""

import math
from collections.abc import Callable

import numpy as np

from vla_edge_ros.engine.interface import FRAME_TOKENS
from vla_edge_ros.engine.model_config import ACTION_ROWS, ModelConfig
from vla_edge_ros.engine.weights import EMBEDDING, HEAD, WeightSource

Buffers = dict[str, tuple[int, ...]]


def weight_buffers(config: ModelConfig) -> Buffers:
    """Shapes of the decoder's weights as they are held: q, k and v in one matrix, gate and up in another."""
    layers, hidden = config.num_hidden_layers, config.hidden_size
    qkv = config.query_size + 2 * config.kv_size
    own_head = {} if config.tie_word_embeddings else {"head": (ACTION_ROWS, hidden)}
    return own_head | {
        "embed": (config.vocab_size, hidden),
        "final_norm": (hidden,),
        "input_norm": (layers, hidden),
        "qkv": (layers, qkv, hidden),
        "qkv_bias": (layers, qkv),
        "output": (layers, hidden, config.query_size),
        "mlp_norm": (layers, hidden),
        "gate_up": (layers, 2 * config.intermediate_size, hidden),
        "down": (layers, hidden, config.intermediate_size),
    }


def block_shape(config: ModelConfig) -> tuple[int, int, int, int]:
    """Of the keys and values of one frame: (2, layers, 32, KV size)."""
    return 2, config.num_hidden_layers, FRAME_TOKENS, config.kv_size


def kv_buffers(config: ModelConfig, n_slots: int) -> Buffers:
    """Keys before RoPE and values: (layer, slot, KV head x head size)."""
    shape = (config.num_hidden_layers, n_slots, config.kv_size)
    return {"cached_keys": shape, "cached_values": shape}


def work_buffers(config: ModelConfig, n_slots: int, max_tokens: int) -> Buffers:
    """Scratch of a pass of at most `max_tokens` (T) tokens a forward and `n_slots` ranks.

    keys, values: the sequence of this pass in rank order, keys rotated.
    """
    qkv = config.query_size + 2 * config.kv_size
    half = config.head_dim // 2
    return {
        "keys": (config.num_hidden_layers, n_slots, config.kv_size),
        "values": (config.num_hidden_layers, n_slots, config.kv_size),
        "cosines": (n_slots, 1, half),
        "sines": (n_slots, 1, half),
        "rotation": (2, max(n_slots * config.kv_size, max_tokens * config.query_size) // 2),
        "states": (max_tokens, config.hidden_size),
        "normed": (max_tokens, config.hidden_size),
        "moments": (max_tokens, 1),
        "projected": (max_tokens, qkv),
        "queries": (config.num_attention_heads, max_tokens, config.head_dim),
        "scores": (config.num_attention_heads * max_tokens * n_slots,),
        "score_rows": (config.num_attention_heads * max_tokens,),
        "heads": (config.num_attention_heads * max_tokens * config.head_dim,),
        "attended": (max_tokens, config.query_size),
        "residual": (max_tokens, config.hidden_size),
        "gate_up_states": (max_tokens, 2 * config.intermediate_size),
        "gate": (max_tokens, config.intermediate_size),
        "causal": (max_tokens, max_tokens),
        "logits": (ACTION_ROWS,),
    }


class NumpyDecoder:
    """Weights, KV cache and workspaces of one decoder; all of it is allocated here and nothing later.

    A sequence begins with `start` and grows by `extend`; a token's position is its rank in that sequence.
    Keys are cached before RoPE and rotated when they are read: `start` gathers the context once into scratch,
    in rank order, and every forward appends its own tokens there and to their slots of the cache.

    weights: by the names of `weight_buffers`.
    cached_keys, cached_values: (layer, slot, KV head x head size); NaN where nothing was written.
    cosines, sines: (position, 1, head size / 2), what RoPE turns a pair by at each position.
    after_layer: called with (layer, states (T, hidden)) after every layer, for checks.
    """

    def __init__(self, config: ModelConfig, weights: WeightSource, n_slots: int, max_tokens: int):
        self.config = config
        self.max_tokens = max_tokens
        self._counted: tuple[int, np.ndarray] | None = None
        self.after_layer: Callable[[int, np.ndarray], None] | None = None
        self.weights = {name: np.empty(shape, np.float32) for name, shape in weight_buffers(config).items()}
        self._load(weights)
        kv = kv_buffers(config, n_slots)
        self.cached_keys = np.full(kv["cached_keys"], np.nan, np.float32)
        self.cached_values = np.full(kv["cached_values"], np.nan, np.float32)
        shapes = work_buffers(config, n_slots, max_tokens)
        self._work = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        self._work["causal"][:] = np.triu(np.full((max_tokens, max_tokens), -np.inf, np.float32), 1)
        exponents = np.arange(0, config.head_dim, 2) / config.head_dim
        angles = np.arange(n_slots)[:, None] * config.rope_theta**-exponents
        self.cosines, self.sines = self._work["cosines"], self._work["sines"]
        self.cosines[:, 0] = np.cos(angles)
        self.sines[:, 0] = np.sin(angles)
        self._slots = np.zeros(n_slots, np.intp)
        self._n_ranks = 0

    def start(self, context_slots: np.ndarray) -> None:
        """Begin a sequence whose first tokens are those of `context_slots` (n,), in rank order."""
        n = len(context_slots)
        slots = self._slots[:n]
        slots[:] = context_slots
        for layer in range(self.config.num_hidden_layers):
            keys = self._work["keys"][layer, :n]
            values = self._work["values"][layer, :n]
            np.take(self.cached_keys[layer], slots, axis=0, out=keys, mode="clip")
            np.take(self.cached_values[layer], slots, axis=0, out=values, mode="clip")
            self._rotate(keys, 0)
        self._n_ranks = n

    def embed_tokens(self, tokens: np.ndarray) -> np.ndarray:
        """Rows of the embedding table for `tokens` (T,), as input states (T, hidden) of `extend`."""
        states = self._work["states"][: len(tokens)]
        return np.take(self.weights["embed"], tokens, axis=0, out=states, mode="clip")

    def extend(
        self, states: np.ndarray, slots: np.ndarray, layer_ended: Callable[[int], None] = lambda layer: None
    ) -> np.ndarray:
        """Append T tokens to the sequence and to `slots` (T,); returns the normed final states (T, hidden).

        states: (T, hidden) float32, overwritten. Every token attends to all ranks before it and to itself.
        layer_ended: called with each layer's number; what it raises leaves `slots` half written, and the
            sequence is to be begun again.
        """
        n_tokens = len(slots)
        start = self._n_ranks
        self._n_ranks = start + n_tokens
        for layer in range(self.config.num_hidden_layers):
            self._attention(layer, states, slots, start)
            self._mlp(layer, states)
            if self.after_layer is not None:
                self.after_layer(layer, states)
            layer_ended(layer)
        return self._norm(states, self.weights["final_norm"])

    def action_logits(self, normed: np.ndarray) -> np.ndarray:
        """Logits (256,) of the action rows for one token's final state `normed` (hidden,); a view."""
        head = self.weights.get("head", self.weights["embed"][self.config.first_action :])
        return np.matmul(head, normed, out=self._work["logits"])

    def count_attention(self, first_rank: int, out: np.ndarray | None) -> None:
        """From now on add to `out` (n,) what each of n frame blocks from `first_rank` on is attended to.

        It is the share of what a query gives out, the mean over layers and heads, summed over queries. None
        ends it. The counting allocates scratch of its own.
        """
        self._counted = None if out is None else (first_rank, out)

    def forget(self, slots: np.ndarray) -> None:
        """Fill `slots` with NaN, so that whoever reads them shows it."""
        self.cached_keys[:, slots] = np.nan
        self.cached_values[:, slots] = np.nan

    def copy_block(self, slots: np.ndarray, out: np.ndarray) -> None:
        """Keys and values of a frame's `slots` (32,), as they are cached, to `out` of `block_shape`."""
        np.take(self.cached_keys, slots, axis=1, out=out[0], mode="clip")
        np.take(self.cached_values, slots, axis=1, out=out[1], mode="clip")

    def write_block(self, block: np.ndarray, slots: np.ndarray) -> None:
        """What `copy_block` has copied, to other `slots` (32,)."""
        self.cached_keys[:, slots], self.cached_values[:, slots] = block

    def _attention(self, layer: int, states: np.ndarray, slots: np.ndarray, start: int) -> None:
        """Grouped-query attention with its residual; token i of T stands at rank `start` + i."""
        config, work = self.config, self._work
        n_tokens, n_ranks = len(states), start + len(states)
        projected = work["projected"][:n_tokens]
        normed = self._norm(states, self.weights["input_norm"][layer])
        np.matmul(normed, self.weights["qkv"][layer].T, out=projected)
        projected += self.weights["qkv_bias"][layer]
        query = projected[:, : config.query_size]
        key = projected[:, config.query_size : config.query_size + config.kv_size]
        value = projected[:, config.query_size + config.kv_size :]

        self.cached_keys[layer, slots] = key
        self.cached_values[layer, slots] = value
        work["keys"][layer, start:n_ranks] = key
        work["values"][layer, start:n_ranks] = value
        self._rotate(work["keys"][layer, start:n_ranks], start)
        self._rotate(query, start)
        query *= np.float32(1 / math.sqrt(config.head_dim))

        residual = work["residual"][:n_tokens]
        np.matmul(self._attend(layer, query, start), self.weights["output"][layer].T, out=residual)
        states += residual

    def _attend(self, layer: int, query: np.ndarray, start: int) -> np.ndarray:
        """Outputs of all heads (T, query size) for rotated and scaled queries of that shape."""
        config, work = self.config, self._work
        n_tokens, n_ranks = len(query), start + len(query)
        kv_heads, group = config.num_key_value_heads, config.num_attention_heads // config.num_key_value_heads
        by_head = (kv_heads, group * n_tokens, config.head_dim)
        queries = _view(work["queries"], (config.num_attention_heads, n_tokens, config.head_dim))
        queries[:] = query.reshape(n_tokens, config.num_attention_heads, config.head_dim).transpose(1, 0, 2)
        keys = work["keys"][layer, :n_ranks].reshape(n_ranks, kv_heads, config.head_dim)
        values = work["values"][layer, :n_ranks].reshape(n_ranks, kv_heads, config.head_dim)

        scores = _view(work["scores"], (kv_heads, group * n_tokens, n_ranks))
        np.matmul(queries.reshape(by_head), keys.transpose(1, 2, 0), out=scores)
        if n_tokens > 1:
            own = scores.reshape(kv_heads, group, n_tokens, n_ranks)[..., start:]
            own += work["causal"][:n_tokens, :n_tokens]
        row = _view(work["score_rows"], (kv_heads, group * n_tokens, 1))
        np.maximum.reduce(scores, axis=2, out=row, keepdims=True)
        scores -= row
        np.exp(scores, out=scores)
        np.add.reduce(scores, axis=2, out=row, keepdims=True)
        if self._counted is not None:
            self._count(scores, row)
        heads = _view(work["heads"], by_head)
        np.matmul(scores, values.transpose(1, 0, 2), out=heads)
        heads /= row

        attended = work["attended"][:n_tokens]
        by_token = heads.reshape(config.num_attention_heads, n_tokens, config.head_dim).transpose(1, 0, 2)
        attended.reshape(by_token.shape)[:] = by_token
        return attended

    def _count(self, weights: np.ndarray, totals: np.ndarray) -> None:
        """Add up `weights` (KV heads, queries, ranks) over `totals` (KV heads, queries, 1) by frame block."""
        first, out = self._counted
        last = first + FRAME_TOKENS * len(out)
        blocks = weights[..., first:last].reshape(*weights.shape[:2], len(out), FRAME_TOKENS).sum(axis=3)
        n_sums = self.config.num_attention_heads * self.config.num_hidden_layers
        out += (blocks / totals).sum(axis=(0, 1)) / n_sums

    def _mlp(self, layer: int, states: np.ndarray) -> None:
        """SwiGLU with its residual: down(silu(gate) * up)."""
        n_tokens, mlp = len(states), self.config.intermediate_size
        normed = self._norm(states, self.weights["mlp_norm"][layer])
        both = self._work["gate_up_states"][:n_tokens]
        np.matmul(normed, self.weights["gate_up"][layer].T, out=both)
        gate, up = both[:, :mlp], both[:, mlp:]
        activated = self._work["gate"][:n_tokens]
        np.negative(gate, out=activated)
        np.exp(activated, out=activated)
        activated += np.float32(1)
        np.divide(gate, activated, out=activated)
        activated *= up
        residual = self._work["residual"][:n_tokens]
        np.matmul(activated, self.weights["down"][layer].T, out=residual)
        states += residual

    def _norm(self, states: np.ndarray, gain: np.ndarray) -> np.ndarray:
        """RMSNorm: x / sqrt(mean(x^2) + eps) * gain."""
        normed = self._work["normed"][: len(states)]
        moments = self._work["moments"][: len(states)]
        np.multiply(states, states, out=normed)
        np.add.reduce(normed, axis=1, out=moments, keepdims=True)
        moments *= np.float32(1 / self.config.hidden_size)
        moments += np.float32(self.config.rms_norm_eps)
        np.sqrt(moments, out=moments)
        np.divide(states, moments, out=normed)
        normed *= gain
        return normed

    def _rotate(self, vectors: np.ndarray, start: int) -> None:
        """RoPE in place on (n, heads x head size), the first at position `start` (halves, as in Qwen2)."""
        n, half = len(vectors), self.config.head_dim // 2
        pairs = vectors.reshape(n, vectors.shape[1] // self.config.head_dim, 2, half)
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        cosines, sines = self.cosines[start : start + n], self.sines[start : start + n]
        from_second = _view(self._work["rotation"][0], first.shape)
        from_first = _view(self._work["rotation"][1], first.shape)
        np.multiply(second, sines, out=from_second)
        np.multiply(first, sines, out=from_first)
        first *= cosines
        first -= from_second
        second *= cosines
        second += from_first

    def _load(self, weights: WeightSource) -> None:
        config, held = self.config, self.weights
        weights.read(EMBEDDING, held["embed"])
        if not config.tie_word_embeddings:
            weights.read(HEAD, held["head"], first_row=config.first_action)
        weights.read("model.norm.weight", held["final_norm"])
        query, kv, mlp = config.query_size, config.kv_size, config.intermediate_size
        for layer in range(config.num_hidden_layers):
            prefix = f"model.layers.{layer}."
            weights.read(prefix + "input_layernorm.weight", held["input_norm"][layer])
            for name, first, last in (
                ("q", 0, query),
                ("k", query, query + kv),
                ("v", query + kv, query + 2 * kv),
            ):
                weights.read(f"{prefix}self_attn.{name}_proj.weight", held["qkv"][layer, first:last])
                weights.read(f"{prefix}self_attn.{name}_proj.bias", held["qkv_bias"][layer, first:last])
            weights.read(prefix + "self_attn.o_proj.weight", held["output"][layer])
            weights.read(prefix + "post_attention_layernorm.weight", held["mlp_norm"][layer])
            weights.read(prefix + "mlp.gate_proj.weight", held["gate_up"][layer, :mlp])
            weights.read(prefix + "mlp.up_proj.weight", held["gate_up"][layer, mlp:])
            weights.read(prefix + "mlp.down_proj.weight", held["down"][layer])


def _view(buffer: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The first elements of `buffer` in another shape."""
    return buffer.reshape(-1)[: math.prod(shape)].reshape(shape)
