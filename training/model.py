"""The deployed decoder in torch, over whole episodes at once.

The tokens of a frame, and of the actions decoded from it, see the prompt, the frames that memory held in
their own tick and themselves causally; each key at the rank that it had in that tick. So states are what the
incremental cache computes, evicted frames included that act through the states of those that saw them.
Nothing is approximated: a test compares logits with the deployed engine's.

Blocks of one kind attend in a few calls: their contexts' keys are gathered before RoPE in rank order, so that
rank is place, and rotated then.
"""

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from training.batch import Batch, Blocks
from vla_edge_ros.engine.model_config import ACTION_ROWS, ModelConfig
from vla_edge_ros.engine.vision import PATCH, PATCH_SIZE
from vla_edge_ros.memory.slots import FRAME_TOKENS

MAX_RANKS = 4096


class TinyVla(nn.Module):
    """A Qwen2 decoder and its patch embedding; names are those of Hugging Face and of engine/vision."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        if not config.tie_word_embeddings:
            raise ValueError("the trained model ties its embeddings")
        self.config = config
        self.model = _Decoder(config)
        self.vision = nn.Module()
        self.vision.patch_embedding = nn.Linear(PATCH_SIZE, config.hidden_size)
        half = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
        angles = torch.arange(MAX_RANKS, dtype=torch.float64)[:, None] * config.rope_theta**-half
        self.register_buffer("cosines", angles.cos().float(), persistent=False)
        self.register_buffer("sines", angles.sin().float(), persistent=False)

    def embed_frames(self, pixels: Tensor) -> Tensor:
        """(n, 32, hidden) of frames (n, 64, 128, 3), already scaled to [-1, 1]."""
        n, height, width, _ = pixels.shape
        grid = pixels.reshape(n, height // PATCH, PATCH, width // PATCH, PATCH, 3)
        patches = grid.permute(0, 1, 3, 2, 4, 5).reshape(n, FRAME_TOKENS, PATCH_SIZE)
        return self.vision.patch_embedding(patches)

    @torch.no_grad()
    def pooled_embeddings(self, frames: Tensor) -> Tensor:
        """(N, hidden) on the CPU of frames (N, 64, 128, 3) uint8: the embedding of each one's mean patch."""
        parts = []
        for pixels in frames.split(4096):
            n, height, width, _ = pixels.shape
            grid = pixels.reshape(n, height // PATCH, PATCH, width // PATCH, PATCH, 3).float()
            mean = (grid.mean(dim=(1, 3)) / 127.5 - 1).reshape(n, PATCH_SIZE)
            parts.append(self.vision.patch_embedding(mean).cpu())
        return torch.cat(parts)

    def forward(self, batch: Batch, retained_pixels: Tensor, query_pixels: Tensor) -> Tensor:
        """Logits (Q, A, 256) of the action rows; the other arguments are those of `states`."""
        return self.logits(self.states(batch, retained_pixels, query_pixels, len(self.model.layers))[1])

    def states(
        self, batch: Batch, retained_pixels: Tensor, query_pixels: Tensor, n_layers: int
    ) -> tuple[Tensor, Tensor]:
        """(Q, 32 + A, hidden) of the queried blocks after `n_layers` and after all layers.

        Action inputs are the labels (Q, A), shifted by one.
        retained_pixels, query_pixels: (R or Q, 64, 128, 3) float, the frames of the batch's blocks.
        """
        config, table = self.config, self.model.embed_tokens.weight
        inputs = config.first_action + batch.labels[:, :-1]
        start = inputs.new_full((len(inputs), 1), config.action_start)
        actions = functional.embedding(torch.cat([start, inputs], 1), table)
        prompts = functional.embedding(batch.prompts, table)
        # The stream and the logits are float32 whatever the products between them are computed in.
        retained = self.embed_frames(retained_pixels).float()
        queries = torch.cat([self.embed_frames(query_pixels).float(), actions], 1)
        parts = [prompts, retained, queries]
        shapes = [part.shape[:2] for part in parts]
        states = torch.cat([part.flatten(0, 1) for part in parts])
        for place, layer in enumerate(self.model.layers):
            states = layer(states, self, batch, shapes)
            if place + 1 == n_layers:
                middle = states
        return tuple(part[-shapes[2].numel() :].unflatten(0, shapes[2]) for part in (middle, states))

    def logits(self, states: Tensor) -> Tensor:
        """(Q, A, 256) of the action rows, from `states` (Q, 32 + A, hidden) after all layers."""
        rows = self.model.embed_tokens.weight[self.config.first_action :]
        with torch.autocast(states.device.type, enabled=False):
            return self.model.norm(states[:, FRAME_TOKENS:]).float() @ rows.T

    def rotate(self, x: Tensor, ranks: Tensor) -> Tensor:
        """RoPE on (..., T, heads, size) at `ranks` (..., T), in halves as in Qwen2."""
        cosines = self.cosines[ranks].unsqueeze(-2).to(x.dtype)
        sines = self.sines[ranks].unsqueeze(-2).to(x.dtype)
        first, second = x.chunk(2, -1)
        return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1)


class _Decoder(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        nn.init.normal_(self.embed_tokens.weight, std=0.05)


class _Layer(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = _Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = _Mlp(config)
        # Residual branches begin small, as in GPT-2.
        for last in (self.self_attn.o_proj, self.mlp.down_proj):
            nn.init.normal_(last.weight, std=(last.in_features * 2 * config.num_hidden_layers) ** -0.5)

    def forward(self, states: Tensor, model: TinyVla, batch: Batch, shapes: list[torch.Size]) -> Tensor:
        states = states + self.self_attn(self.input_layernorm(states), model, batch, shapes)
        return states + self.mlp(self.post_attention_layernorm(states))


class _Mlp(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(states)) * self.up_proj(states))


class _Attention(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.n_heads, self.n_kv, self.size = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.q_proj = nn.Linear(config.hidden_size, config.query_size)
        self.k_proj = nn.Linear(config.hidden_size, config.kv_size)
        self.v_proj = nn.Linear(config.hidden_size, config.kv_size)
        self.o_proj = nn.Linear(config.query_size, config.hidden_size, bias=False)

    def forward(self, states: Tensor, model: TinyVla, batch: Batch, shapes: list[torch.Size]) -> Tensor:
        query = self.q_proj(states).unflatten(1, (self.n_heads, self.size))
        key, value = (
            projection(states).unflatten(1, (self.n_kv, self.size))
            for projection in (self.k_proj, self.v_proj)
        )
        counts = [shape.numel() for shape in shapes]
        split = [
            [part.unflatten(0, shape) for part, shape in zip(tensor.split(counts), shapes, strict=True)]
            for tensor in (query, key, value)
        ]
        n_sources = counts[0] + counts[1]
        sources = key[:n_sources], value[:n_sources]
        prompts, retained, queries = zip(*split, strict=True)
        heads = [
            self._attend_prompts(model, *prompts),
            self._attend_blocks(model, *retained, sources, batch.retained),
            self._attend_blocks(model, *queries, sources, batch.queries),
        ]
        return self.o_proj(torch.cat(heads))

    def _attend_prompts(self, model: TinyVla, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Causal over (S, P, ...); what a shorter prompt is padded with comes after it and is never seen."""
        ranks = torch.arange(query.shape[1], device=query.device)
        is_seen = torch.ones(len(ranks), len(ranks), dtype=torch.bool, device=query.device).tril()
        return self._attend(
            model.rotate(query, ranks), model.rotate(key, ranks), value, is_seen.expand(len(query), -1, -1)
        )

    def _attend_blocks(
        self,
        model: TinyVla,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sources: tuple[Tensor, Tensor],
        blocks: Blocks,
    ) -> Tensor:
        """Blocks (n, T, ...), each over its context and causally over itself."""
        n_tokens, device = query.shape[1], query.device
        own = torch.ones(n_tokens, n_tokens, dtype=torch.bool, device=device).tril()
        heads = []
        for group in blocks.groups:
            part, n = slice(group.start, group.end), group.end - group.start
            length = group.index.shape[1]
            context_ranks = torch.arange(length, device=device)
            ranks = group.lengths[:, None] + torch.arange(n_tokens, device=device)
            # In float32: the backward adds many blocks' gradients to one source token.
            context_key, context_value = (
                source.float().index_select(0, group.index.flatten()).unflatten(0, (n, length))
                for source in sources
            )
            keys = torch.cat(
                [model.rotate(context_key, context_ranks), model.rotate(key[part], ranks)], dim=1
            )
            values = torch.cat([context_value, value[part]], dim=1)
            is_context = (context_ranks < group.lengths[:, None])[:, None].expand(n, n_tokens, length)
            is_seen = torch.cat([is_context, own.expand(n, -1, -1)], dim=2)
            heads.append(self._attend(model.rotate(query[part], ranks), keys, values, is_seen))
        return torch.cat(heads)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, is_seen: Tensor) -> Tensor:
        """(n * T, query size) from (n, T, heads, size), keys (n, L, kv heads, size), is_seen (n, T, L).

        Query heads that share a key are put side by side as more queries, so that keys are not copied.
        """
        n, n_tokens = query.shape[:2]
        group = self.n_heads // self.n_kv
        by_key = query.unflatten(2, (self.n_kv, group)).permute(0, 2, 3, 1, 4).flatten(2, 3)
        mask = is_seen.repeat(1, group, 1)[:, None]
        out = functional.scaled_dot_product_attention(
            by_key, key.transpose(1, 2), value.transpose(1, 2), attn_mask=mask
        )
        heads = out.unflatten(2, (group, n_tokens)).permute(0, 3, 1, 2, 4)
        return heads.reshape(n * n_tokens, self.n_heads * self.size)


def action_loss(logits: Tensor, labels: Tensor, width_bins: float, n_sharp: int = 1) -> Tensor:
    """Cross entropy of (Q, A, 256) against labels (Q, A) that are spread over their neighbours.

    A joint's bins are values in order: a Gaussian of `width_bins` says that the next one is nearly as good.
    The last `n_sharp` stay sharp: the simulation's gripper has two labels, at the ends.
    """
    n_spread = labels.shape[1] - n_sharp
    bins = torch.arange(ACTION_ROWS, device=logits.device)
    distance = (bins - labels[:, :n_spread, None]).float() / width_bins
    joints = functional.softmax(-0.5 * distance**2, dim=-1)
    spread = -(joints * functional.log_softmax(logits[:, :n_spread].float(), dim=-1)).sum(-1)
    sharp = functional.cross_entropy(
        logits[:, n_spread:].float().transpose(1, 2), labels[:, n_spread:], reduction="none"
    )
    return torch.cat([spread, sharp], 1).mean()
