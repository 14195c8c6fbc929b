"""Qwen2 in plain torch over a static KV cache: the strongest peer; never imported by the engine.

Whatever a forward touches has a fixed address, so that all forwards of a pass fit into one CUDA graph. What a
compiler may take are the two halves of a layer around attention, and the head: all layers share their code.
"""

from collections.abc import Callable

import torch
from torch.nn import functional

from vla_edge_ros.engine.cuda.peer_attention import WAYS, fastest
from vla_edge_ros.engine.cuda.peer_scene import Scene
from vla_edge_ros.engine.interface import FRAME_TOKENS, MAX_ACTION_TOKENS
from vla_edge_ros.engine.model_config import ACTION_ROWS
from vla_edge_ros.engine.weights import EMBEDDING, HEAD


def before_attention(x, norm, eps, weight, bias, cos, sin, keys, values, ranks):
    """Norm, QKV and RoPE of x (T, hidden): the queries (T, heads, head); keys and values go to `ranks`."""
    n_kv, head = keys.shape[0], keys.shape[2]
    qkv = functional.linear(functional.rms_norm(x, norm.shape, norm, eps), weight, bias)
    q, k, v = qkv.view(len(x), -1, head).split([qkv.shape[1] // head - 2 * n_kv, n_kv, n_kv], dim=1)
    q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
    keys.index_copy_(1, ranks, k.transpose(0, 1))
    values.index_copy_(1, ranks, v.transpose(0, 1))
    return q


def after_attention(x, attended, output, norm, eps, gate_up, down):
    """Output projection and MLP, each added to the stream."""
    x = x + functional.linear(attended, output)
    gate, up = functional.linear(functional.rms_norm(x, norm.shape, norm, eps), gate_up).chunk(2, -1)
    return x + functional.linear(functional.silu(gate) * up, down)


def choose(x, norm, eps, head):
    """Logits (T, 256) over the action rows, and the row of the largest (T,)."""
    logits = functional.linear(functional.rms_norm(x, norm.shape, norm, eps), head)
    return logits, logits.argmax(-1)


class StaticQwen2:
    """One pass over a scene, as often as wanted: each overwrites the ranks that the one before wrote.

    wrap: what the three functions above go through, for example torch.compile.
    seconds: times a call; how attention is computed is chosen with it. `attention`: the ways chosen, by T.
    """

    def __init__(
        self,
        scene: Scene,
        wrap: Callable[[Callable], Callable],
        seconds: Callable[[Callable[[], torch.Tensor]], float],
    ) -> None:
        self._scene, self._config = scene, scene.config
        self._before, self._after, self._choose = map(wrap, (before_attention, after_attention, choose))
        device, dtype, config = scene.frame.device, scene.frame.dtype, scene.config
        shape = (config.num_hidden_layers, config.num_key_value_heads, scene.n_ranks, config.head_dim)
        self._keys = torch.zeros(shape, device=device, dtype=dtype)
        self._values = torch.zeros_like(self._keys)
        self._keys[:, :, : scene.n_context] = scene.keys
        self._values[:, :, : scene.n_context] = scene.values
        self._cos, self._sin = _rope(scene)
        self._layers = [self._layer(index) for index in range(config.num_hidden_layers)]
        self._norm = scene.weights["model.norm.weight"]
        self._embedding = scene.weights[EMBEDDING]
        self._head = scene.weights[EMBEDDING if config.tie_word_embeddings else HEAD][-ACTION_ROWS:].clone()
        self._action_start = torch.tensor([config.action_start], device=device)
        self._ranks = {}
        first = scene.n_context
        for n_tokens in (FRAME_TOKENS, *[1] * MAX_ACTION_TOKENS):
            self._ranks[first] = torch.arange(first, first + n_tokens, device=device)
            first += n_tokens
        self.attention, self.attention_seconds = {}, {}
        for n_tokens in (FRAME_TOKENS, 1):
            q = torch.randn(n_tokens, config.num_attention_heads, config.head_dim, device=device).to(dtype)
            n = scene.n_context + FRAME_TOKENS
            name, times = fastest(q, self._keys[0, :, :n], self._values[0, :, :n], seconds)
            self.attention[n_tokens], self.attention_seconds[n_tokens] = name, times

    def run(self, logits: list[torch.Tensor] | None = None) -> torch.Tensor:
        """The nine forwards; returns the action rows chosen (8,). `logits` gets the (1, 256) of each step."""
        rank = self._scene.n_context
        self._forward(self._scene.frame, rank)
        rank += FRAME_TOKENS
        token, rows = self._action_start, []
        for _ in range(MAX_ACTION_TOKENS):
            x = self._forward(functional.embedding(token, self._embedding), rank)
            step_logits, row = self._choose(x, self._norm, self._config.rms_norm_eps, self._head)
            if logits is not None:
                logits.append(step_logits)
            rows.append(row)
            token = row + self._config.first_action
            rank += 1
        return torch.cat(rows)

    def _forward(self, x: torch.Tensor, rank: int) -> torch.Tensor:
        ranks, eps = self._ranks[rank], self._config.rms_norm_eps
        end = rank + len(x)
        cos, sin = self._cos[rank:end, None], self._sin[rank:end, None]
        attend = WAYS[self.attention[len(x)]]
        for index, layer in enumerate(self._layers):
            keys, values = self._keys[index], self._values[index]
            q = self._before(
                x, layer["norm"], eps, layer["qkv"], layer["bias"], cos, sin, keys, values, ranks
            )
            attended = attend(q, keys[:, :end], values[:, :end])
            x = self._after(
                x, attended, layer["output"], layer["mlp_norm"], eps, layer["gate_up"], layer["down"]
            )
        return x

    def _layer(self, index: int) -> dict[str, torch.Tensor]:
        prefix = f"model.layers.{index}."
        weights = {
            name.removeprefix(prefix): tensor
            for name, tensor in self._scene.weights.items()
            if name.startswith(prefix)
        }
        return {
            "norm": weights["input_layernorm.weight"],
            "qkv": torch.cat([weights[f"self_attn.{n}_proj.weight"] for n in "qkv"]),
            "bias": torch.cat([weights[f"self_attn.{n}_proj.bias"] for n in "qkv"]),
            "output": weights["self_attn.o_proj.weight"],
            "mlp_norm": weights["post_attention_layernorm.weight"],
            "gate_up": torch.cat([weights[f"mlp.{n}_proj.weight"] for n in ("gate", "up")]),
            "down": weights["mlp.down_proj.weight"],
        }


def _rope(scene: Scene) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines (ranks, head), both halves alike, as Hugging Face rounds them."""
    config, device = scene.config, scene.frame.device
    exponents = torch.arange(0, config.head_dim, 2, device=device, dtype=torch.float32) / config.head_dim
    angles = torch.arange(scene.n_ranks, device=device, dtype=torch.float32)[:, None] / (
        config.rope_theta**exponents
    )
    both = torch.cat([angles, angles], -1)
    return both.cos().to(scene.frame.dtype), both.sin().to(scene.frame.dtype)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin
