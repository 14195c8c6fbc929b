"""The field's own implementation of the decoder, to check ours against; needs torch and transformers."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vla_edge_ros.engine.interface import EngineError
from vla_edge_ros.engine.model_config import ModelConfig
from vla_edge_ros.engine.vision import PATCH, VISION_BIAS, VISION_WEIGHT, vision_shapes
from vla_edge_ros.engine.weights import WeightSource, decoder_shapes


@dataclass(frozen=True, slots=True)
class ReferencePass:
    """What Hugging Face computes for one sequence of n tokens, in float32.

    layers: states (n, hidden) after every layer. logits: (n, vocabulary).
    """

    layers: list[np.ndarray]
    logits: np.ndarray


def config_fields(config: ModelConfig) -> dict:
    """The fields of a config.json for this geometry."""
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tie_word_embeddings,
        "use_sliding_window": False,
        "torch_dtype": "float32",
    }


def export_checkpoint(directory: Path, config: ModelConfig, weights: WeightSource) -> None:
    """Write a decoder as a Hugging Face directory: config.json and model.safetensors in float32."""
    from safetensors.numpy import save_file

    (directory / "config.json").write_text(json.dumps(config_fields(config), indent=2), encoding="utf-8")
    tensors = {
        name: weights.read(name, np.empty(shape, np.float32))
        for name, shape in decoder_shapes(config).items()
    }
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


class HuggingFaceReference:
    """`Qwen2ForCausalLM` in float32 on the CPU, with eager attention. Raises EngineError without torch."""

    def __init__(self, directory: Path):
        try:
            import torch
            import transformers
        except ImportError as error:
            raise EngineError(
                f"{error.name} is not installed: the gate compares with Hugging Face, "
                "so install torch and transformers (the package's `test` extra)"
            ) from None
        self._torch = torch
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        model = transformers.AutoModelForCausalLM.from_pretrained(
            directory, attn_implementation="eager", local_files_only=True
        )
        self._model = model.float().eval()

    def embed_tokens(self, tokens: np.ndarray) -> np.ndarray:
        """(n, hidden) float32."""
        ids = self._torch.tensor(tokens, dtype=self._torch.long)
        with self._torch.no_grad():
            return self._model.get_input_embeddings()(ids).numpy()

    def embed_frame(self, frame: np.ndarray, weights: WeightSource) -> np.ndarray:
        """(32, hidden) float32 of `frame` (64, 128, 3) uint8: the patch embedding as a convolution."""
        torch = self._torch
        shapes = vision_shapes(self._model.config.hidden_size)
        weight, bias = (
            weights.read(name, np.empty(shapes[name], np.float32)) for name in (VISION_WEIGHT, VISION_BIAS)
        )
        kernel = torch.from_numpy(weight).reshape(-1, PATCH, PATCH, 3).permute(0, 3, 1, 2)
        pixels = torch.from_numpy(frame).permute(2, 0, 1)[None].float() / 127.5 - 1
        grid = torch.nn.functional.conv2d(pixels, kernel, torch.from_numpy(bias), stride=PATCH)
        return grid[0].flatten(1).T.contiguous().numpy()

    def run(self, states: np.ndarray) -> ReferencePass:
        """One causal forward over input states (n, hidden)."""
        layers = []

        def keep(module, arguments, output):
            after = output[0] if isinstance(output, tuple) else output
            layers.append(after.reshape(states.shape).numpy().copy())

        hooks = [layer.register_forward_hook(keep) for layer in self._model.model.layers]
        try:
            with self._torch.no_grad():
                output = self._model(inputs_embeds=self._torch.from_numpy(states)[None], use_cache=False)
        finally:
            for hook in hooks:
                hook.remove()
        return ReferencePass(layers, output.logits[0].numpy())
