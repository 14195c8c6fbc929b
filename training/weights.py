"""Which weights a figure is of."""

import hashlib
from pathlib import Path

from vla_edge_ros.engine.presets import TRAINED
from vla_edge_ros.errors import UserError
from vla_edge_ros.share import share_directory


def model_folder(model: str) -> Path:
    """The directory of a model that is named as `engine.model` names it."""
    return share_directory() / TRAINED[model] if model in TRAINED else Path(model)


def weights_sha256(model: str) -> str:
    """Of its model.safetensors. Raises UserError where there is none."""
    path = model_folder(model) / "model.safetensors"
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(
            f"{path}: the trained weights cannot be read: {error.strerror}; see docs/training.md"
        ) from None
