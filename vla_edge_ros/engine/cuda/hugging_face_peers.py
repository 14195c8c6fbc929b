"""Hugging Face's Qwen2 on the nine forwards of a pass: as it comes, and in its tuned form.

For timing beside the engine; never imported by it. Needs torch and transformers (5.17 was measured).
"""

from collections.abc import Callable

import torch
import transformers

from vla_edge_ros.engine.cuda.peer_scene import Scene
from vla_edge_ros.engine.interface import FRAME_TOKENS, MAX_ACTION_TOKENS


def make_model(scene: Scene):
    """`Qwen2ForCausalLM` with the scene's weights, SDPA attention, in the scene's precision."""
    transformers.utils.logging.set_verbosity_error()
    config = scene.config
    described = transformers.Qwen2Config(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        rms_norm_eps=config.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        tie_word_embeddings=config.tie_word_embeddings,
        max_position_embeddings=32768,
        use_sliding_window=False,
    )
    with torch.device(scene.frame.device):
        model = transformers.AutoModelForCausalLM.from_config(
            described, attn_implementation="sdpa", dtype=scene.frame.dtype
        )
    missing, unknown = model.load_state_dict(scene.weights, strict=False)
    if unknown or set(missing) - {"lm_head.weight"}:
        raise RuntimeError(f"the model's tensors are named otherwise: {missing} missing, {unknown} unknown")
    return model.eval()


class _Pass:
    """The nine forwards; what differs is the cache, and through what the forwards go."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._model = make_model(scene)
        device = scene.frame.device
        self._action_start = torch.tensor([[scene.config.action_start]], device=device)
        first, end = scene.n_context, scene.n_context + FRAME_TOKENS
        self._frame_ranks = torch.arange(first, end, device=device)[None]
        self._step_ranks = [torch.tensor([[end + step]], device=device) for step in range(MAX_ACTION_TOKENS)]

    # The cache goes by its place: its name differs between releases.

    def prefill(self, states: torch.Tensor, ranks: torch.Tensor, cache) -> torch.Tensor:
        """The last states of the frame's tokens; no head is needed."""
        return self._model.model(None, None, ranks, cache, states, use_cache=True).last_hidden_state

    def step(self, token: torch.Tensor, ranks: torch.Tensor, cache) -> tuple[torch.Tensor, torch.Tensor]:
        """The head is the whole vocabulary's, as Hugging Face has it; the argmax is over the action rows."""
        output = self._model(token, None, ranks, cache, use_cache=True, logits_to_keep=1)
        logits = output.logits[0, :, self._scene.config.first_action :]
        return logits, logits.argmax(-1, keepdim=True) + self._scene.config.first_action


class HuggingFaceEager(_Pass):
    """As it comes: a DynamicCache, one kernel launch after another."""

    @torch.no_grad()
    def prepare(self) -> None:
        """The context of the scene; not part of a pass."""
        self._cache = transformers.DynamicCache()
        for layer, (keys, values) in enumerate(zip(self._scene.keys, self._scene.values, strict=True)):
            self._cache.update(keys[None], values[None], layer)

    @torch.no_grad()
    def run(self, logits: list[torch.Tensor] | None = None) -> torch.Tensor:
        """The nine forwards; returns the action rows chosen (8,). `logits` gets the (1, 256) of each step."""
        self.prefill(self._scene.frame[None], self._frame_ranks, self._cache)
        token, rows = self._action_start, []
        for ranks in self._step_ranks:
            step_logits, token = self.step(token, ranks, self._cache)
            if logits is not None:
                logits.append(step_logits)
            rows.append(token[0] - self._scene.config.first_action)
        return torch.cat(rows)


class HuggingFaceCompiled(_Pass):
    """Tuned: a StaticCache, prefill and decode step compiled, each with its argmax in its CUDA graph.

    compile: for example torch.compile with mode "reduce-overhead".
    """

    @torch.no_grad()
    def __init__(self, scene: Scene, compile: Callable[[Callable], Callable]) -> None:
        super().__init__(scene)
        config = scene.config
        self._cache = transformers.StaticCache(config=self._model.config, max_cache_len=scene.n_ranks)
        self._cache.early_initialization(
            1, config.num_key_value_heads, config.head_dim, scene.frame.dtype, scene.frame.device
        )
        for layer, keys, values in zip(self._cache.layers, scene.keys, scene.values, strict=True):
            layer.keys[0, :, : scene.n_context] = keys
            layer.values[0, :, : scene.n_context] = values
        self._prefill, self._step = compile(self.prefill), compile(self.step)

    @torch.no_grad()
    def prepare(self) -> None:
        """The cache's length of the scene; what lies beyond is overwritten. Not part of a pass."""
        for layer in self._cache.layers:
            layer.cumulative_length.fill_(self._scene.n_context)

    @torch.no_grad()
    def run(self, logits: list[torch.Tensor] | None = None) -> torch.Tensor:
        """As `HuggingFaceEager.run`."""
        torch.compiler.cudagraph_mark_step_begin()
        self._prefill(self._scene.frame[None], self._frame_ranks, self._cache)
        token, rows = self._action_start, []
        for ranks in self._step_ranks:
            torch.compiler.cudagraph_mark_step_begin()
            step_logits, token = self._step(token, ranks, self._cache)
            # The next replay of the graph overwrites what this one gave.
            token = token.clone()
            if logits is not None:
                logits.append(step_logits.clone())
            rows.append(token[0] - self._scene.config.first_action)
        return torch.cat(rows)
