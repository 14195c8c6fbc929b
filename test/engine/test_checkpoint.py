import json
import os
import re
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from vla_edge_ros.engine import numpy_engine
from vla_edge_ros.engine.hugging_face import export_checkpoint
from vla_edge_ros.engine.interface import EngineError, EngineSpec
from vla_edge_ros.engine.model_config import ModelConfig, ModelRefused
from vla_edge_ros.engine.numpy_engine import NumpyEngine
from vla_edge_ros.engine.recording import NoiseFrames
from vla_edge_ros.engine.vision import VISION_BIAS, VISION_WEIGHT
from vla_edge_ros.engine.weights import EMBEDDING, HEAD, SeededWeights, decoder_shapes, open_weights

CONFIG = ModelConfig(
    vocab_size=520,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    rope_theta=1e6,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
)
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
BIAS = "model.layers.1.self_attn.k_proj.bias"


@pytest.fixture
def directory(tmp_path) -> Path:
    export_checkpoint(tmp_path, CONFIG, SeededWeights(CONFIG, seed=0))
    return tmp_path


def read_all(directory: Path, seed: int = 0) -> dict[str, np.ndarray]:
    config, weights = open_weights(str(directory), seed)
    return {name: weights.read(name, np.empty(s, np.float32)) for name, s in decoder_shapes(config).items()}


def change(directory: Path, **tensors) -> None:
    """Write the single file again with tensors replaced, or, where None, left out."""
    held = load_file(directory / SINGLE) | {
        name.replace("__", "."): tensor for name, tensor in tensors.items()
    }
    save_file({name: tensor for name, tensor in held.items() if tensor is not None}, directory / SINGLE)


def shard(directory: Path) -> None:
    """Split the single file in two, with an index."""
    tensors = load_file(directory / SINGLE)
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, held in shards.items():
        save_file({name: tensors[name] for name in held}, directory / file)
    weight_map = {name: file for file, held in shards.items() for name in held}
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (directory / SINGLE).unlink()


def rewrite_header(path: Path, edit) -> None:
    data = path.read_bytes()
    n = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + n])
    text = json.dumps(edit(header) or header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + n :])


def test_every_tensor_is_read_as_it_was_written(directory):
    weights = SeededWeights(CONFIG, seed=0)
    for name, tensor in read_all(directory).items():
        assert tensor.tobytes() == weights.read(name, np.empty_like(tensor)).tobytes()


def test_a_sharded_checkpoint_is_the_same_model(directory):
    single = read_all(directory)
    shard(directory)
    for name, tensor in read_all(directory).items():
        assert tensor.tobytes() == single[name].tobytes()


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_half_precision_is_widened_without_rounding(directory, dtype):
    halves = {name: tensor.astype(dtype) for name, tensor in load_file(directory / SINGLE).items()}
    save_file(halves, directory / SINGLE)
    for name, tensor in read_all(directory).items():
        np.testing.assert_array_equal(tensor, halves[name].astype(np.float32))


def test_an_untied_head_is_used_for_the_actions(directory):
    fields = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(fields | {"tie_word_embeddings": False}))
    with pytest.raises(ModelRefused, match=r"lacks tensor lm_head\.weight"):
        open_weights(str(directory), 0)
    head = np.random.default_rng(0).standard_normal((520, 32)).astype(np.float32)
    change(directory, lm_head__weight=head)
    engine = NumpyEngine(EngineSpec(model=str(directory), n_slots=64), NoiseFrames(0))
    engine.configure()
    state = np.ones(32, np.float32)
    np.testing.assert_allclose(engine.decoder.action_logits(state), head[-256:] @ state, rtol=1e-5, atol=1e-5)


def test_a_copy_of_a_tied_head_and_old_rotary_buffers_are_passed_over(directory):
    change(directory, lm_head__weight=np.zeros((520, 32), np.float32))
    change(directory, model__layers__0__self_attn__rotary_emb__inv_freq=np.zeros(4, np.float32))
    assert HEAD not in read_all(directory)


def test_vision_weights_are_seeded_unless_the_directory_has_them(directory):
    def vision(seed):
        _, weights = open_weights(str(directory), seed)
        return weights.read(VISION_WEIGHT, np.empty((32, 768), np.float32))

    assert (
        vision(1).tobytes()
        == SeededWeights(CONFIG, 1).read(VISION_WEIGHT, np.empty((32, 768), np.float32)).tobytes()
    )
    assert open_weights(str(directory), 1)[1].notes == (
        "the model has no vision weights; they are random, of seed 1",
    )
    own = np.random.default_rng(0).standard_normal((32, 768)).astype(np.float32)
    change(directory, **{VISION_WEIGHT: own, VISION_BIAS: np.zeros(32, np.float32)})
    assert vision(1).tobytes() == vision(2).tobytes() == own.tobytes()
    assert open_weights(str(directory), 1)[1].notes == ()


def truncate(directory):
    path = directory / SINGLE
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(directory):
    path = directory / SINGLE
    path.write_bytes(path.read_bytes() + b"\0")


def empty(directory):
    (directory / SINGLE).write_bytes(b"")


def rename_a_pickle(directory):
    with zipfile.ZipFile(directory / SINGLE, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00.")


def rename_an_old_pickle(directory):
    (directory / SINGLE).write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")


def leave_a_pointer(directory):
    (directory / SINGLE).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")


def only_a_pickle(directory):
    (directory / SINGLE).rename(directory / "pytorch_model.bin")


def no_weights(directory):
    (directory / SINGLE).unlink()


def no_config(directory):
    (directory / "config.json").unlink()


def a_header_of_text(directory):
    (directory / SINGLE).write_bytes((5).to_bytes(8, "little") + b"hello")


def a_header_of_a_list(directory):
    (directory / SINGLE).write_bytes((2).to_bytes(8, "little") + b"[]")


def an_entry_without_shape(directory):
    rewrite_header(directory / SINGLE, lambda header: header[BIAS].pop("shape") and None)


def an_entry_with_negative_offsets(directory):
    rewrite_header(directory / SINGLE, lambda header: header[BIAS].update(data_offsets=[-4, 60]))


def an_entry_of_another_size(directory):
    rewrite_header(directory / SINGLE, lambda header: header[BIAS].update(shape=[15]))


def entries_that_overlap(directory):
    rewrite_header(directory / SINGLE, lambda header: header[BIAS].update(data_offsets=[0, 64]))


def a_tensor_missing(directory):
    change(directory, **{BIAS: None})


def a_tensor_of_another_shape(directory):
    change(directory, **{BIAS: np.zeros(8, np.float32)})


def a_tensor_transposed(directory):
    change(directory, **{"model.layers.0.mlp.down_proj.weight": np.zeros((48, 32), np.float32)})


def an_unknown_dtype(directory):
    change(directory, **{BIAS: np.zeros(16, np.int8)})


def a_layer_more_than_configured(directory):
    change(directory, **{"model.layers.2.input_layernorm.weight": np.zeros(32, np.float32)})


def a_bias_that_qwen2_does_not_have(directory):
    change(directory, **{"model.layers.0.self_attn.o_proj.bias": np.zeros(32, np.float32)})


def vision_without_its_bias(directory):
    change(directory, **{VISION_WEIGHT: np.zeros((32, 768), np.float32)})


def a_shard_missing(directory):
    shard(directory)
    (directory / "model-00002-of-00002.safetensors").unlink()


def a_shard_truncated(directory):
    shard(directory)
    path = directory / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-8])


def an_index_that_is_no_json(directory):
    shard(directory)
    (directory / INDEX).write_text("{")


def an_index_nested_without_end(directory):
    shard(directory)
    (directory / INDEX).write_text("[" * 100_000)


def a_pipe_for_a_shard(directory):
    shard(directory)
    first = next(directory.glob("model-00001-*"))
    first.unlink()
    os.mkfifo(first)


def a_link_to_itself(directory):
    shard(directory)
    first = next(directory.glob("model-00001-*"))
    first.unlink()
    first.symlink_to(first.name)


def a_name_with_control_characters(directory):
    rewrite_header(directory / SINGLE, lambda header: header[BIAS].update(dtype="\x1b[31m\n"))


def an_index_of_a_file_elsewhere(directory):
    shard(directory)
    (directory / INDEX).write_text(json.dumps({"weight_map": {EMBEDDING: "../model.safetensors"}}))


def an_index_of_pickles(directory):
    shard(directory)
    (directory / INDEX).write_text(json.dumps({"weight_map": {EMBEDDING: "pytorch_model-1.bin"}}))


def an_index_that_promises_too_much(directory):
    shard(directory)
    index = json.loads((directory / INDEX).read_text())
    index["weight_map"]["model.more"] = "model-00001-of-00002.safetensors"
    (directory / INDEX).write_text(json.dumps(index))


def a_tensor_in_two_shards(directory):
    tensor = load_file(directory / SINGLE)[BIAS]
    shard(directory)
    for path in directory.glob("model-*.safetensors"):
        save_file(load_file(path) | {BIAS: tensor}, path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, r"model.safetensors is truncated: \d+ bytes, its header accounts for \d+"),
        (lengthen, r"model.safetensors is too long"),
        (empty, r"model.safetensors \(0 bytes\) is no safetensors file"),
        (rename_a_pickle, r"model.safetensors \(\d+ bytes\) is no safetensors file: it is a zip archive"),
        (rename_an_old_pickle, r"it is a pickle under another name"),
        (leave_a_pointer, r"it is a Git LFS pointer"),
        (only_a_pickle, r"pytorch_model.bin is a pickle, which is never read"),
        (no_weights, r"has neither model.safetensors nor model.safetensors.index.json"),
        (no_config, r"config.json is missing"),
        (a_header_of_text, r"its header is not JSON"),
        (a_header_of_a_list, r"its header is not a JSON object"),
        (an_entry_without_shape, rf"the header's entry of tensor {re.escape(BIAS)} is malformed"),
        (an_entry_with_negative_offsets, rf"the header's entry of tensor {re.escape(BIAS)} is malformed"),
        (an_entry_of_another_size, rf"tensor {re.escape(BIAS)} of shape \[15\] and type F32 has 64 bytes"),
        (entries_that_overlap, r"begins at byte 0, wanted 64|begins at byte \d+, wanted \d+"),
        (a_tensor_missing, rf"lacks tensor {re.escape(BIAS)} \(1 of 26 are missing\)"),
        (a_tensor_of_another_shape, r"has shape \[8\]; config.json: \[16\]"),
        (a_tensor_transposed, r"down_proj.weight has shape \[48, 32\]; config.json: \[32, 48\]"),
        (an_unknown_dtype, rf"tensor {re.escape(BIAS)} is stored as I8; known are F32, F16, BF16"),
        (a_layer_more_than_configured, r"has tensor model.layers.2.input_layernorm.weight"),
        (a_bias_that_qwen2_does_not_have, r"has tensor model.layers.0.self_attn.o_proj.bias"),
        (vision_without_its_bias, r"lacks tensor vision.patch_embedding.bias"),
        (a_shard_missing, r"model-00002-of-00002.safetensors cannot be read: No such file"),
        (a_shard_truncated, r"model-00002-of-00002.safetensors is truncated"),
        (an_index_that_is_no_json, r"model.safetensors.index.json is no index of shards"),
        (an_index_nested_without_end, r"model.safetensors.index.json is no index of shards"),
        (a_pipe_for_a_shard, r"model-00001-of-00002.safetensors .*not a regular file"),
        (a_link_to_itself, r"model-00001-of-00002.safetensors cannot be read: Too many levels of symbolic"),
        (a_name_with_control_characters, "stored as \ufffd\\[31m ; known are"),
        (an_index_of_a_file_elsewhere, r"in '../model.safetensors': wanted a .safetensors file beside it"),
        (an_index_of_pickles, r"in 'pytorch_model-1.bin': wanted a .safetensors file beside it"),
        (an_index_that_promises_too_much, r"has no tensor model.more, which .* says it holds"),
        (a_tensor_in_two_shards, rf"tensor {re.escape(BIAS)} is in model-0000"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_damaged_directory_is_refused_by_name_before_anything_is_allocated(
    directory, damage, message, monkeypatch
):
    def allocate(*arguments):
        raise AssertionError("the decoder was allocated")

    monkeypatch.setattr(numpy_engine, "NumpyDecoder", allocate)
    damage(directory)
    with pytest.raises(ModelRefused, match=message) as refusal:
        NumpyEngine(EngineSpec(model=str(directory)), NoiseFrames(0)).configure()
    assert str(refusal.value).isprintable()


def test_an_unknown_model_is_refused_with_the_presets():
    with pytest.raises(
        EngineError, match=r"'tinny' is neither a preset \(tiny, .*qwen2.5-coder-3b\) nor a directory"
    ):
        open_weights("tinny", 0)


def test_real_configurations_without_weights_are_refused_for_the_weights(shared):
    for name in ("qwen2_5_0_5b_instruct", "qwen2_5_1_5b_instruct"):
        with pytest.raises(ModelRefused, match=r"has neither model\.safetensors"):
            open_weights(str(shared / "policies" / name), 0)
