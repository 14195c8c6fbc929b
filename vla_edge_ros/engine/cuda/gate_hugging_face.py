"""Hugging Face's Qwen2 over all passes of the gate at once, in float32 or in bf16."""

from dataclasses import dataclass

import torch

from vla_edge_ros.engine.cuda.gate_passes import Passes
from vla_edge_ros.engine.cuda.gate_weights import Tensors
from vla_edge_ros.engine.hugging_face import config_fields
from vla_edge_ros.engine.model_config import ACTION_ROWS, ModelConfig
from vla_edge_ros.engine.weights import EMBEDDING, HEAD, decoder_shapes


@dataclass(frozen=True, slots=True)
class Stream:
    """layers: states (T, hidden) after every layer, then after the final norm.

    logits: (passes, 8, 256) of the action rows, float32.
    """

    layers: list[torch.Tensor]
    logits: torch.Tensor


def run_hugging_face(
    config: ModelConfig, tensors: Tensors, dtype: torch.dtype, passes: Passes, states: torch.Tensor
) -> Stream:
    """`Qwen2ForCausalLM` with `tensors` in `dtype` over input states (T, hidden), T tokens of all passes.

    Eager attention: scores and their softmax are materialised, and any mask is taken as it is.
    """
    model = _model(config, tensors, dtype)
    layers: list[torch.Tensor] = []

    def keep(module, arguments, output):
        layers.append((output[0] if isinstance(output, tuple) else output).reshape(states.shape))

    hooks = [module.register_forward_hook(keep) for module in (*model.model.layers, model.model.norm)]
    is_seen = passes.is_seen(states.device)
    mask = torch.zeros(is_seen.shape, dtype=dtype, device=states.device).masked_fill_(~is_seen, -torch.inf)
    decoded = torch.from_numpy(passes.is_decoded()).to(states.device).nonzero()[:, 0]
    try:
        with torch.no_grad():
            output = model(
                inputs_embeds=states[None].to(dtype),
                attention_mask={"full_attention": mask[None, None]},
                position_ids=torch.from_numpy(passes.positions()).to(states.device)[None],
                use_cache=False,
                logits_to_keep=decoded,
            )
    finally:
        for hook in hooks:
            hook.remove()
    logits = output.logits[0, :, -ACTION_ROWS:].float().reshape(len(passes.frames), -1, ACTION_ROWS)
    return Stream(layers, logits)


def _model(config: ModelConfig, tensors: Tensors, dtype: torch.dtype):
    """The model around `tensors`, which it shares where they are of `dtype`."""
    import transformers

    settings = transformers.Qwen2Config(**config_fields(config))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(settings, attn_implementation="eager")
    held = {name: tensors[name].to(dtype) for name in decoder_shapes(config)}
    held.setdefault(HEAD, held[EMBEDDING])
    model.load_state_dict(held, assign=True)
    # Its frequencies are no part of a checkpoint, and were not computed on the meta device.
    rotary = type(model.model.rotary_emb)(config=model.config)
    model.model.rotary_emb = rotary.to(tensors[EMBEDDING].device)
    return model.eval()
