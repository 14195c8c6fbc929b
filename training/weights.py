"""Which weights a figure is of."""

import hashlib

from vla_edge_ros.engine.presets import model_folder
from vla_edge_ros.errors import UserError


def weights_sha256(model: str) -> str:
    """Of its model.safetensors. Raises UserError where there is none."""
    path = model_folder(model) / "model.safetensors"
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(
            f"{path}: the trained weights cannot be read: {error.strerror}; see docs/training.md"
        ) from None
