"""`tiny-vla` is trained: its weights are files of the package, and where they are missing that is said."""

import json
import math

import numpy as np
import pytest
from safetensors.numpy import save_file

from vla_edge_ros.engine import weights
from vla_edge_ros.engine.model_config import ModelRefused
from vla_edge_ros.engine.presets import PRESETS
from vla_edge_ros.engine.vision import vision_shapes
from vla_edge_ros.engine.weights import SeededWeights, decoder_shapes, open_weights

CONFIG = PRESETS["tiny-vla"]
SHAPES = decoder_shapes(CONFIG) | vision_shapes(CONFIG.hidden_size)


def fields() -> dict:
    names = CONFIG.__dataclass_fields__
    return {"model_type": "qwen2"} | {name: getattr(CONFIG, name) for name in names}


@pytest.fixture
def share(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "share_directory", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def trained(share):
    """A share folder with weights of a seed for trained ones."""
    directory = share / "models/tiny-vla"
    directory.mkdir(parents=True)
    source = SeededWeights(CONFIG, seed=77)
    tensors = {name: source.read(name, np.empty(shape, np.float32)) for name, shape in SHAPES.items()}
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(fields()))
    return directory


def test_it_is_small_enough_for_the_repository():
    n_parameters = sum(math.prod(shape) for shape in SHAPES.values())
    assert n_parameters <= 2_500_000
    assert 4 * n_parameters <= 10_000_000


def test_its_files_are_read_whatever_the_seed(trained):
    config, source = open_weights("tiny-vla", seed=3)
    assert config == CONFIG
    assert source.notes == ()
    for name in ("model.norm.weight", "vision.patch_embedding.bias"):
        out, wanted = np.empty(SHAPES[name], np.float32), np.empty(SHAPES[name], np.float32)
        assert np.array_equal(source.read(name, out), SeededWeights(CONFIG, seed=77).read(name, wanted))


def test_without_its_files_it_is_seeded_and_says_so(share):
    config, source = open_weights("tiny-vla", seed=3)
    assert config == CONFIG
    assert "random" in source.notes[0]
    assert "not trained here" in source.notes[1]


def test_files_of_another_geometry_are_refused(trained):
    (trained / "config.json").write_text(json.dumps(fields() | {"num_hidden_layers": 5}))
    with pytest.raises(ModelRefused, match="another geometry than the preset tiny-vla"):
        open_weights("tiny-vla", seed=0)


def test_files_without_the_vision_tensors_are_refused(trained):
    source = SeededWeights(CONFIG, seed=77)
    shapes = decoder_shapes(CONFIG)
    tensors = {name: source.read(name, np.empty(shape, np.float32)) for name, shape in shapes.items()}
    save_file(tensors, trained / "model.safetensors")
    with pytest.raises(ModelRefused, match=r"lacks tensor vision\.patch_embedding"):
        open_weights("tiny-vla", seed=0)
