"""Weights drawn or read once, for an engine and its references together."""

import numpy as np
import torch

from vla_edge_ros.engine.model_config import ModelConfig
from vla_edge_ros.engine.vision import vision_shapes
from vla_edge_ros.engine.weights import WeightSource, decoder_shapes

Tensors = dict[str, torch.Tensor]


def read_tensors(config: ModelConfig, source: WeightSource, device: torch.device | str) -> Tensors:
    """Every tensor by its Hugging Face name, rounded to bf16 on `device`."""
    shapes = decoder_shapes(config) | vision_shapes(config.hidden_size)
    return {
        name: torch.from_numpy(source.read(name, np.empty(shape, np.float32))).to(device).to(torch.bfloat16)
        for name, shape in shapes.items()
    }


class HeldWeights:
    """A `WeightSource` of `tensors`, wherever they are: their bf16 values in float32."""

    notes: tuple[str, ...] = ()

    def __init__(self, tensors: Tensors):
        self._tensors = tensors

    def read(self, name: str, out: np.ndarray, first_row: int = 0) -> np.ndarray:
        torch.from_numpy(out).copy_(self._tensors[name][first_row : first_row + len(out)])
        return out
