"""Models that are known by name; their weights are seeded, or trained and in the package's share folder."""

from pathlib import Path

from vla_edge_ros.engine.model_config import ModelConfig
from vla_edge_ros.share import share_directory


def _coder(hidden: int, mlp: int, n_layers: int, n_heads: int, head_dim: int) -> ModelConfig:
    """A size of Qwen2.5-Coder with tied embeddings, as config.json of its release has it."""
    return ModelConfig(
        vocab_size=151936,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=n_layers,
        num_attention_heads=n_heads,
        num_key_value_heads=2,
        head_dim=head_dim,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
    )


PRESETS = {
    "tiny": ModelConfig(
        vocab_size=513,
        hidden_size=192,
        intermediate_size=448,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
    ),
    "tiny-vla": ModelConfig(
        vocab_size=513,
        hidden_size=192,
        intermediate_size=384,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
    ),
    "qwen2.5-coder-0.5b": _coder(896, 4864, n_layers=24, n_heads=14, head_dim=64),
    "qwen2.5-coder-1.5b": _coder(1536, 8960, n_layers=28, n_heads=12, head_dim=128),
    "qwen2.5-coder-3b": _coder(2048, 11008, n_layers=36, n_heads=16, head_dim=128),
}
"""`tiny` has 1.7 M parameters and `tiny-vla` 2.2 M; the vocabulary of both is the 256 bytes, the action-start
token and 256 actions."""

TRAINED = {"tiny-vla": Path("models/tiny-vla")}
"""Folders under the share folder that hold the weights of a preset, as a Hugging Face directory."""


def model_folder(model: str) -> Path:
    """The directory of a model's weights that is named as `engine.model` names it."""
    return share_directory() / TRAINED[model] if model in TRAINED else Path(model)
