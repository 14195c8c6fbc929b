"""Models that are known by name; their weights are seeded, or trained and in the package's share folder."""

from pathlib import Path

from vla_edge_ros.engine.model_config import ModelConfig

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
    "qwen2.5-coder-1.5b": ModelConfig(
        vocab_size=151936,
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        head_dim=128,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
    ),
}
"""`tiny` has 1.7 M parameters and `tiny-vla` 2.2 M; the vocabulary of both is the 256 bytes, the action-start
token and 256 actions."""

TRAINED = {"tiny-vla": Path("models/tiny-vla")}
"""Folders under the share folder that hold the weights of a preset, as a Hugging Face directory."""
