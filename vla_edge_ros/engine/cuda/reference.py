"""The model in torch, in float32 or float64, for checks; never imported by the engine.

Weights are the values of bf16, as the engine holds them. `Reference` grows a sequence by blocks of tokens and
forgets as the engine's memory does; its traces have the layout of `Trace` in cuda/workspace.cuh.
"""

import math

import numpy as np
import torch

from vla_edge_ros.engine.cuda.upload import rope_table
from vla_edge_ros.engine.interface import FRAME_TOKENS
from vla_edge_ros.engine.model_config import ACTION_ROWS, ModelConfig
from vla_edge_ros.engine.vision import PATCH_SIZE, VISION_BIAS, VISION_WEIGHT, cut_patches
from vla_edge_ros.engine.weights import EMBEDDING, HEAD


class Parts:
    """Where the parts of a trace lie."""

    def __init__(self, config: ModelConfig):
        sizes = {
            "qkv": config.query_size + 2 * config.kv_size,
            "attended": config.query_size,
            "middle": config.hidden_size,
            "gated": config.intermediate_size,
            "out": config.hidden_size,
        }
        self.spans, begin = {}, 0
        for name, size in sizes.items():
            self.spans[name] = slice(begin, begin + size)
            begin += size
        self.size = begin


class Reference:
    """A cache of keys before RoPE, and forward passes over it, in `dtype`.

    tensors: every weight in bf16 by its Hugging Face name, all on one device; widened where they are used.
    keys, values: for each layer (n, KV heads, head), by rank. A key is turned by its rank when it is read.
    """

    def __init__(
        self, config: ModelConfig, tensors: dict[str, torch.Tensor], n_ranks: int, dtype=torch.float32
    ):
        torch.backends.cuda.matmul.allow_tf32 = False
        self.config, self.dtype, self.parts = config, dtype, Parts(config)
        self.tensors, self.device = tensors, tensors[EMBEDDING].device
        self.rope = torch.from_numpy(rope_table(config, n_ranks)).to(self.device, dtype)
        shape = (0, config.num_key_value_heads, config.head_dim)
        layers = range(config.num_hidden_layers)
        self.keys = [torch.zeros(shape, dtype=dtype, device=self.device) for _ in layers]
        self.values = [torch.zeros(shape, dtype=dtype, device=self.device) for _ in layers]

    def forget(self, first: int, end: int) -> None:
        """Drop the tokens at ranks `first` to `end` - 1; later ranks close up."""
        for cached in (self.keys, self.values):
            cached[:] = [torch.cat([layer[:first], layer[end:]]) for layer in cached]

    def weight(self, name: str) -> torch.Tensor:
        return self.tensors[name].to(self.dtype)

    def embed(self, tokens: np.ndarray) -> torch.Tensor:
        """(n, hidden) of token ids (n,)."""
        ids = torch.from_numpy(np.asarray(tokens, np.int64)).to(self.device)
        return self.tensors[EMBEDDING][ids].to(self.dtype)

    def embed_frame(self, pixels: np.ndarray) -> torch.Tensor:
        """(32, hidden) of a frame (64, 128, 3) uint8."""
        values = cut_patches(pixels, np.empty((FRAME_TOKENS, PATCH_SIZE), np.float32))
        values = torch.from_numpy(values).to(self.device, self.dtype)
        return values @ self.weight(VISION_WEIGHT).T + self.weight(VISION_BIAS)

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + self.config.rms_norm_eps)
        return x * scale * self.weight(name)

    def rotated(self, x: torch.Tensor, start: int) -> torch.Tensor:
        """RoPE on (T, heads, head), the first at position `start`."""
        turn = self.rope[start : start + len(x), None]
        half = x.shape[-1] // 2
        a, b, cos, sin = x[..., :half], x[..., half:], turn[..., 0], turn[..., 1]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def project(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        """Norm and QKV with bias."""
        prefix = f"model.layers.{layer}."
        normed = self.norm(x, prefix + "input_layernorm.weight")
        parts = [
            normed @ self.weight(f"{prefix}self_attn.{n}_proj.weight").T
            + self.weight(f"{prefix}self_attn.{n}_proj.bias")
            for n in "qkv"
        ]
        return torch.cat(parts, -1)

    def split(self, qkv: torch.Tensor):
        config = self.config
        q, k, v = qkv.split([config.query_size, config.kv_size, config.kv_size], -1)
        return tuple(part.reshape(len(qkv), -1, config.head_dim) for part in (q, k, v))

    def attend(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Causal attention of the last T of n tokens: q (T, heads, head), the others (n, kv heads, head)."""
        n, n_tokens = len(keys), len(q)
        group = self.config.num_attention_heads // self.config.num_key_value_heads
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        mask = torch.ones(n_tokens, n, dtype=torch.bool, device=self.device).tril(n - n_tokens)
        out = torch.empty_like(q)
        for head in range(q.shape[1]):
            scores = q[:, head] @ keys[:, head].T / math.sqrt(self.config.head_dim)
            scores = scores.masked_fill(~mask, -math.inf)
            out[:, head] = torch.softmax(scores, -1) @ values[:, head]
        return out.reshape(n_tokens, -1)

    def output(self, attended: torch.Tensor, layer: int) -> torch.Tensor:
        return attended @ self.weight(f"model.layers.{layer}.self_attn.o_proj.weight").T

    def gate(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        prefix = f"model.layers.{layer}."
        normed = self.norm(x, prefix + "post_attention_layernorm.weight")
        gate, up = (normed @ self.weight(f"{prefix}mlp.{n}_proj.weight").T for n in ("gate", "up"))
        return torch.nn.functional.silu(gate) * up

    def down(self, gated: torch.Tensor, layer: int) -> torch.Tensor:
        return gated @ self.weight(f"model.layers.{layer}.mlp.down_proj.weight").T

    def extend(self, x: torch.Tensor, is_traced: bool = False):
        """Append T tokens, input states x (T, hidden): the stream and a trace (T, layers, size) or None."""
        start, trace = len(self.keys[0]), []
        for layer in range(self.config.num_hidden_layers):
            qkv = self.project(x, layer)
            q, k, v = self.split(qkv)
            self.keys[layer] = torch.cat([self.keys[layer], k])
            self.values[layer] = torch.cat([self.values[layer], v])
            attended = self.attend(
                self.rotated(q, start), self.rotated(self.keys[layer], 0), self.values[layer]
            )
            middle = x + self.output(attended, layer)
            gated = self.gate(middle, layer)
            x = middle + self.down(gated, layer)
            if is_traced:
                trace.append(torch.cat([qkv, attended, middle, gated, x], -1))
        return x, torch.stack(trace, 1) if is_traced else None

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """(n, 256) over the action rows, of the stream (n, hidden) after the last layer."""
        head = self.tensors[EMBEDDING if self.config.tie_word_embeddings else HEAD][-ACTION_ROWS:]
        return self.norm(x, "model.norm.weight") @ head.to(self.dtype).T
