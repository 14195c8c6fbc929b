"""The CUDA engine's arithmetic in torch, rounded to bf16 where the kernels round: a `Probe` without a GPU."""

from dataclasses import replace

import numpy as np
import torch

from vla_edge_ros.engine.cuda.gate_passes import EnginePass
from vla_edge_ros.engine.cuda.reference import Reference
from vla_edge_ros.engine.interface import MAX_ACTION_TOKENS
from vla_edge_ros.engine.model_config import ACTION_ROWS
from vla_edge_ros.engine.presets import PRESETS

CONFIG = replace(PRESETS["tiny"], num_hidden_layers=2)
N_SLOTS, N_PASSES = 192, 7
"""A memory of five frames, full from the fifth pass on."""

SPLIT = 64


def rounded(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bfloat16).float()


class RoundedReference(Reference):
    """Operands, keys and values in bf16; the stream and all sums in float32."""

    is_split_lost = False

    def __init__(self, config, tensors, n_ranks):
        super().__init__(config, dict(tensors), n_ranks)

    def norm(self, x, name):
        scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + self.config.rms_norm_eps)
        return rounded(x * self.weight(name)) * scale

    def rotated(self, x, start):
        return rounded(super().rotated(x, start))

    def split(self, qkv):
        q, k, v = super().split(qkv)
        return q, rounded(k), rounded(v)

    def attend(self, q, keys, values):
        group = q.shape[1] // keys.shape[1]
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q, keys) / q.shape[-1] ** 0.5
        is_hidden = ~torch.ones(len(q), len(keys), dtype=torch.bool).tril(len(keys) - len(q))
        if self.is_split_lost:
            is_hidden[:, :SPLIT] = True
        scores = scores.masked_fill(is_hidden, -torch.inf)
        weights = rounded(torch.exp(scores - scores.amax(-1, keepdim=True)))
        heads = torch.einsum("hqk,khd->qhd", weights, values) / weights.sum(-1).T[..., None]
        return heads.reshape(len(q), -1)

    def output(self, attended, layer):
        return super().output(rounded(attended), layer)

    def down(self, gated, layer):
        return super().down(rounded(gated), layer)


class EmulatedEngine:
    def __init__(self, config, tensors, n_slots):
        self._engine = RoundedReference(config, tensors, n_slots)
        self._config = config
        shape = (config.num_hidden_layers, n_slots, config.num_key_value_heads, config.head_dim)
        self._keys, self._values = torch.full(shape, torch.nan), torch.full(shape, torch.nan)

    def fill_prompt(self, tokens, slots):
        self._start(slots[:0])
        out = self._extend(self._engine.embed(tokens), slots)
        return out[..., self._engine.parts.spans["out"]]

    def run(self, context, slots, frame, start, is_traced=True):
        self._start(context)
        states = self._engine.embed_frame(frame)
        trace = [self._extend(states, slots)]
        token, actions, logits = start, [], []
        for _ in range(MAX_ACTION_TOKENS):
            x, step = self._engine.extend(self._engine.embed(np.array([token])), is_traced=True)
            trace.append(step)
            logits.append(self._engine.logits(x)[0].numpy())
            actions.append(int(logits[-1].argmax()))
            token = self._config.vocab_size - ACTION_ROWS + actions[-1]
        return EnginePass(
            states.mean(0).numpy(),
            np.array(actions),
            np.stack(logits),
            torch.cat(trace) if is_traced else None,
        )

    def cached(self, slots):
        return self._keys[:, slots], self._values[:, slots]

    def set_values(self, slots, values):
        self._values[:, slots] = values

    def poison_workspaces(self):
        pass

    def set_rope(self, table):
        self._engine.rope = torch.from_numpy(table)

    def set_biases(self, layer, biases):
        for part, name in self._parts(biases):
            self._engine.tensors[f"model.layers.{layer}.self_attn.{name}_proj.bias"] = part

    def set_qkv(self, layer, matrix):
        for part, name in self._parts(matrix):
            self._engine.tensors[f"model.layers.{layer}.self_attn.{name}_proj.weight"] = part

    def lose_split(self, is_lost):
        self._engine.is_split_lost = is_lost

    def _parts(self, rows):
        config = self._config
        ends = np.cumsum([config.query_size, config.kv_size, config.kv_size])
        return zip(np.split(torch.from_numpy(rows), ends[:-1]), "qkv", strict=True)

    def _start(self, context):
        for layer in range(self._config.num_hidden_layers):
            self._engine.keys[layer] = self._keys[layer, context]
            self._engine.values[layer] = self._values[layer, context]

    def _extend(self, states, slots):
        _, trace = self._engine.extend(states, is_traced=True)
        for layer in range(self._config.num_hidden_layers):
            self._keys[layer, slots] = self._engine.keys[layer][-len(slots) :]
            self._values[layer, slots] = self._engine.values[layer][-len(slots) :]
        return trace
