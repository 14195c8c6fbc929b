"""Geometry of a Qwen2 decoder."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model's sizes, under the names of Hugging Face's `Qwen2Config`."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float = 1e6
    rms_norm_eps: float = 1e-6

    @property
    def query_size(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_key_value_heads * self.head_dim
