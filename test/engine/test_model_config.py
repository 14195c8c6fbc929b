import json
import os

import pytest

from vla_edge_ros.engine.model_config import ModelRefused, load_config, parse_config


def qwen2(**changes) -> dict:
    """The fields of a small Qwen2 config.json in the older style; a change to None removes the field."""
    fields = {
        "model_type": "qwen2",
        "vocab_size": 600,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
    } | changes
    return {name: value for name, value in fields.items() if value is not None}


def test_the_older_style_is_read_from_a_real_file(shared):
    config = load_config(shared / "policies/qwen2_5_0_5b_instruct/config.json")
    assert (config.hidden_size, config.num_hidden_layers, config.intermediate_size) == (896, 24, 4864)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (14, 2, 64)
    assert (config.rope_theta, config.tie_word_embeddings) == (1e6, True)
    assert (config.first_action, config.action_start) == (151936 - 256, 151936 - 257)


def test_rope_theta_inside_rope_parameters_is_read_from_a_real_file(shared):
    config = load_config(shared / "policies/qwen2_5_1_5b_instruct/config.json")
    assert config.rope_theta == 1e6
    assert (config.hidden_size, config.num_hidden_layers, config.head_dim) == (1536, 28, 128)


def test_another_model_type_is_refused_by_name_from_a_real_file(shared):
    path = shared / "policies/vla_adapter_qwen25_0_5b/config.json"
    with pytest.raises(ModelRefused, match=rf"{path}: model_type is 'openvla': only 'qwen2'"):
        load_config(path)


def test_an_explicit_head_size_need_not_divide_the_hidden_size():
    assert (
        parse_config(
            qwen2(hidden_size=72, num_attention_heads=5, num_key_value_heads=1, head_dim=32)
        ).head_dim
        == 32
    )


def test_heads_are_untied_unless_the_config_ties_them():
    assert parse_config(qwen2(tie_word_embeddings=None)).tie_word_embeddings is False


@pytest.mark.parametrize(
    "fields",
    [
        {"sliding_window": 32768, "use_sliding_window": False},
        {"sliding_window": 32768},
        {"sliding_window": 0, "use_sliding_window": False},
        {"sliding_window": None, "use_sliding_window": True},
        {"sliding_window": 512, "use_sliding_window": True, "max_window_layers": 4},
        {"sliding_window": 512, "use_sliding_window": True, "layer_types": ["full_attention"] * 4},
    ],
    ids=[
        "switched off",
        "a width alone",
        "a width of 0",
        "no width",
        "all layers below the first that slides",
        "by layer",
    ],
)
def test_attention_is_full_where_no_layer_slides(fields):
    parse_config(qwen2(**fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_window_layers": 3}, r"layer 3 and 0 more use 'sliding_attention'"),
        ({"max_window_layers": 0}, r"layer 0 and 3 more use 'sliding_attention'"),
        ({}, r"max_window_layers is None"),
        ({"layer_types": ["full_attention"] * 3 + ["sliding_attention"]}, r"layer 3 and 0 more"),
        ({"layer_types": ["full_attention"] * 3}, r"wanted a list of 4 entries"),
        ({"layer_types": ["full_attention"] * 3 + ["linear_attention"]}, r"'linear_attention'"),
        ({"layer_types": "full_attention"}, r"wanted a list of 4 entries"),
    ],
)
def test_a_layer_that_slides_is_refused(fields, message):
    with pytest.raises(ModelRefused, match=message):
        parse_config(qwen2(sliding_window=512, use_sliding_window=True, **fields))


def test_layers_that_slide_while_sliding_is_switched_off_are_refused():
    with pytest.raises(
        ModelRefused, match=r"layer 0 and 3 more .* \(use_sliding_window False, sliding_window 8\)"
    ):
        parse_config(qwen2(sliding_window=8, layer_types=["sliding_attention"] * 4))


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}, "rope_theta": None},
        {"rope_parameters": {"rope_theta": 5e5}, "rope_theta": None},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}, "rope_theta": 500000},
        {"rope_theta": 5e5, "rope_scaling": {"type": "default"}},
    ],
)
def test_rope_theta_is_found_in_either_place(fields):
    assert parse_config(qwen2(**fields)).rope_theta == 5e5


@pytest.mark.parametrize(
    "fields",
    [{}, {"rope_parameters": {"rope_type": "default"}}, {"rope_scaling": {"rope_type": "default"}}],
)
def test_a_missing_rope_theta_is_an_error_and_not_a_default(fields):
    with pytest.raises(ModelRefused, match="rope_theta is missing"):
        parse_config(qwen2(rope_theta=None, **fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling asks for RoPE of type 'yarn'"),
        ({"rope_scaling": {"rope_type": "mrope", "mrope_section": [16, 24, 24]}}, "type 'mrope'"),
        ({"rope_scaling": {"type": "default", "mrope_section": [16, 24, 24]}}, "type 'mrope'"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5}}, "type 'llama3'"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e6}}, "type 'linear'"),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1e6}}},
            "one set of parameters for all layers",
        ),
        ({"rope_scaling": "yarn"}, "one set of parameters for all layers"),
        ({"rope_parameters": {"rope_theta": 1e4}}, "rope_theta differs between places"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        (
            {"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.25}},
            "partial_rotary_factor is 0.25",
        ),
    ],
)
def test_rope_of_another_type_is_refused_by_name(fields, message):
    with pytest.raises(ModelRefused, match=message):
        parse_config(qwen2(**fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 66}, "66 is not a multiple of num_attention_heads 4"),
        ({"num_key_value_heads": 3}, "4 is not a multiple of num_key_value_heads 3"),
        ({"head_dim": 15}, "head size 15 is odd"),
        ({"head_dim": "16"}, "head_dim is '16'"),
        ({"hidden_size": None}, "hidden_size is None"),
        ({"hidden_size": 64.0}, "hidden_size is 64.0"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        (
            {"num_hidden_layers": 10**30},
            "num_hidden_layers is 10{30}: wanted at most",
        ),
        ({"num_attention_heads": -4}, "num_attention_heads is -4"),
        ({"vocab_size": 512}, "vocab_size 512 is too small"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"rope_theta": float("inf")}, "rope_theta is inf"),
        ({"rope_theta": "1e6"}, "rope_theta is '1e6'"),
        ({"rope_theta": False}, "rope_theta is False"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
        ({"use_sliding_window": 1}, "use_sliding_window is 1"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"model_type": "qwen2_vl"}, "model_type is 'qwen2_vl'"),
        ({"model_type": None}, "model_type is None"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised weights are not supported"),
    ],
)
def test_a_field_that_is_missing_or_wrong_is_named(fields, message):
    with pytest.raises(ModelRefused, match=message):
        parse_config(qwen2(**fields))


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "null", '"qwen2"', "\ufeff{}", "[" * 100_000])
def test_a_file_that_is_no_json_object_is_refused_by_name(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ModelRefused, match=str(path)):
        load_config(path)


def test_bytes_that_are_no_text_are_refused_by_name(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelRefused, match=str(path)):
        load_config(path)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    path = tmp_path / "config.json"
    os.mkfifo(path)
    with pytest.raises(ModelRefused, match="Not a regular file"):
        load_config(path)


def test_a_missing_config_is_refused_by_name(tmp_path):
    with pytest.raises(ModelRefused, match=r"config.json is missing"):
        load_config(tmp_path / "config.json")


def test_a_whole_file_is_read(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(qwen2()), encoding="utf-8")
    assert load_config(path) == parse_config(qwen2())
