import argparse
import json
import sys

import pytest

from vla_edge_ros.engine import gate
from vla_edge_ros.engine.presets import PRESETS


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    gate.add_arguments(parser)
    return parser.parse_args(words)


def test_the_gate_passes_and_every_planted_fault_fails_it(tmp_path, capsys):
    pytest.importorskip("torch", reason="the gate compares with Hugging Face (the `test` extra)")
    path = tmp_path / "gate.json"
    assert gate.run(parse("--configurations", "2", "--json", str(path))) == 0
    report = json.loads(path.read_text())
    assert report["passed"]
    assert len(report["models"]) == 2 * 3
    for name, row in report["models"].items():
        assert row["passed"], name
        assert row["argmax_equal"], name
        assert 0 < row["prefill_relative_l2"] <= 1e-5
        assert 0 < row["decode_relative_l2"] <= 1e-5
        assert "oracle" not in name or row["evictions"] >= 5
    assert set(report["faults"]) == {
        "one slot unread",
        "positions off by one",
        "a bias dropped",
        "K and V swapped",
    }
    for name, row in report["faults"].items():
        assert row["detected"], name
        assert row["decode_relative_l2"] > 1e-3, name
    printed = capsys.readouterr().out
    assert "gate passed" in printed
    assert "FAILED" not in printed


def test_an_engine_outside_the_tolerance_fails_the_gate(monkeypatch, capsys):
    pytest.importorskip("torch", reason="the gate compares with Hugging Face (the `test` extra)")
    monkeypatch.setattr(gate, "TOLERANCE", 1e-9)
    monkeypatch.setattr(gate, "FAULTS", {})
    assert gate.run(parse("--configurations", "0")) == 1
    assert "gate FAILED" in capsys.readouterr().out


def test_a_fault_that_is_not_detected_fails_the_gate(monkeypatch, capsys):
    pytest.importorskip("torch", reason="the gate compares with Hugging Face (the `test` extra)")
    monkeypatch.setattr(gate, "FAULTS", {"nothing": lambda decoder, work: None})
    assert gate.run(parse("--configurations", "0")) == 1
    assert "NOT DETECTED" in capsys.readouterr().out


def test_without_torch_the_gate_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert gate.run(parse("--configurations", "0")) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "install torch and transformers" in error


def test_a_refused_model_ends_the_gate_with_one_line(tmp_path, capsys):
    assert gate.run(parse("--configurations", "0", "--model", str(tmp_path))) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "config.json is missing" in error


def test_random_geometries_vary_in_heads_layers_and_sizes():
    configs = [gate.random_config(seed) for seed in range(12)]
    assert len({config.num_attention_heads // config.num_key_value_heads for config in configs}) >= 4
    assert len({config.num_hidden_layers for config in configs}) >= 3
    assert len({config.hidden_size for config in configs}) >= 6
    assert {config.tie_word_embeddings for config in configs} == {True, False}
    assert any(config.query_size != config.hidden_size for config in configs)


def test_evicted_frames_leave_layer_0_untouched_and_are_measured_in_the_deeper_ones():
    difference = gate.forgotten_context("tiny", seed=0)
    assert len(difference) == PRESETS["tiny"].num_hidden_layers
    assert difference[0] == 0.0
    assert all(0 < layer < 2 for layer in difference[1:])
