"""The model in torch on the GPU, in float32 or float64, for checks; never imported by the engine.

Weights are the values of bf16, as the engine holds them. `Reference` grows a sequence by blocks of tokens;
its traces have the layout of `Trace` in cuda/workspace.cuh.
"""

import math

import numpy as np
import torch

from vla_edge_ros.engine.cuda.upload import bf16_rounded, rope_table
from vla_edge_ros.engine.model_config import ACTION_ROWS, ModelConfig
from vla_edge_ros.engine.vision import PATCH_SIZE, VISION_BIAS, VISION_WEIGHT, cut_patches, vision_shapes
from vla_edge_ros.engine.weights import WeightSource, decoder_shapes


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
    def __init__(self, config: ModelConfig, weights: WeightSource, n_ranks: int, dtype=torch.float32):
        torch.backends.cuda.matmul.allow_tf32 = False
        self.config, self.dtype, self.parts = config, dtype, Parts(config)
        self.weights = {}
        shapes = decoder_shapes(config) | vision_shapes(config.hidden_size)
        for name, shape in shapes.items():
            values = weights.read(name, np.empty(shape, np.float32))
            # Kept in bf16, which holds the values exactly, and widened where they are used.
            self.weights[name] = torch.from_numpy(bf16_rounded(values)).to("cuda", torch.bfloat16)
        self.rope = torch.from_numpy(rope_table(config, n_ranks)).cuda().to(dtype)
        self.reset()

    def reset(self, n: int = 0) -> None:
        """Keep the first `n` tokens only."""
        layers = self.config.num_hidden_layers
        if n == 0:
            shape = (0, self.config.num_key_value_heads, self.config.head_dim)
            self.keys = [torch.zeros(shape, dtype=self.dtype, device="cuda") for _ in range(layers)]
            self.values = [key.clone() for key in self.keys]
        else:
            self.keys = [key[:n] for key in self.keys]
            self.values = [value[:n] for value in self.values]

    def weight(self, name: str) -> torch.Tensor:
        return self.weights[name].to(self.dtype)

    def embed(self, tokens) -> torch.Tensor:
        return self.weights["model.embed_tokens.weight"][torch.as_tensor(tokens, device="cuda")].to(
            self.dtype
        )

    def embed_frame(self, pixels: np.ndarray) -> torch.Tensor:
        values = cut_patches(pixels, np.empty((32, PATCH_SIZE), np.float32))
        values = torch.from_numpy(values).cuda().to(self.dtype)
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
        mask = torch.ones(n_tokens, n, dtype=torch.bool, device="cuda").tril(n - n_tokens)
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
            self.keys[layer] = torch.cat([self.keys[layer], self.rotated(k, start)])
            self.values[layer] = torch.cat([self.values[layer], v])
            attended = self.attend(self.rotated(q, start), self.keys[layer], self.values[layer])
            middle = x + self.output(attended, layer)
            gated = self.gate(middle, layer)
            x = middle + self.down(gated, layer)
            if is_traced:
                trace.append(torch.cat([qkv, attended, middle, gated, x], -1))
        return x, torch.stack(trace, 1) if is_traced else None

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Over the action rows."""
        return self.norm(x, "model.norm.weight") @ self.weight("model.embed_tokens.weight")[-ACTION_ROWS:].T
