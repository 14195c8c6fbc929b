"""The one command: in parts, resumed, and through to the model card."""

import json
import os
import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch

from training import __main__ as training_command
from training.__main__ import SMOKE, read_results
from training.__main__ import main as run_command
from training.evaluate import CONDITIONS, slots_for
from training.publish import byte_tokenizer, write_model
from training.rollouts import _make_shard
from training.train import Recipe, Training
from vla_edge_ros.control import settings
from vla_edge_ros.engine.tokenizer import load_tokenizer
from vla_edge_ros.engine.weights import open_weights
from vla_edge_ros.errors import UserError
from vla_edge_ros.figures import proportion
from vla_edge_ros.parameters import validate_all
from vla_edge_ros.simulation.model_actor import DEPLOYMENT

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
SMALL = Recipe(steps=2, sequences=2, queries=3, warmup_steps=1)


@pytest.fixture(scope="module")
def rollouts(has_renderer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rollouts")
    _make_shard(folder, "reach", 1_000_000, 2)
    _make_shard(folder, "switch", 1_000_000, 1)
    return folder


@pytest.fixture(scope="module")
def trained(rollouts, tmp_path_factory):
    """Trained in one go."""
    folder = tmp_path_factory.mktemp("trained")
    Training(folder, SMALL, CPU).run(rollouts, float("inf"), workers=0)
    return folder


def weights_of(training: Training) -> np.ndarray:
    return torch.cat([p.detach().flatten() for p in training.model.parameters()]).numpy()


def test_training_in_parts_ends_where_training_in_one_go_does(rollouts, trained, tmp_path):
    for step in (1, 2):
        part = Training(tmp_path, SMALL, CPU)
        assert not part.is_done
        part.run(rollouts, until_s=0.0, workers=0)
        assert part.step == step
    whole, untrained = Training(trained, SMALL, CPU), Training(tmp_path / "new", SMALL, CPU)
    assert whole.is_done
    assert np.allclose(weights_of(Training(tmp_path, SMALL, CPU)), weights_of(whole), atol=1e-6)
    assert not np.allclose(weights_of(whole), weights_of(untrained), atol=1e-3)


def test_a_folder_of_another_recipe_is_refused(trained):
    with pytest.raises(ValueError, match=r"progress.json is of the recipe .*: give another --out"):
        Training(trained, Recipe(steps=7), CPU)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("progress.json", b"{"),
        ("progress.json", b"[]"),
        ("progress.json", b'{"step": 1}'),
        ("model.safetensors", b"cut"),
        ("second_moments.safetensors", None),
    ],
)
def test_a_damaged_training_is_refused_by_name_and_not_gone_on_with(trained, tmp_path, name, content):
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"no training to go on with: .*; remove it, or give another --out"):
        Training(tmp_path, SMALL, CPU)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--device", "abacus"], "--device abacus: wanted cpu, cuda or cuda:N"),
        (["--out", "/dev/null"], "Not a directory"),
    ],
)
def test_the_command_refuses_in_one_line(monkeypatch, capsys, tmp_path, words, said):
    monkeypatch.setattr(
        sys, "argv", ["training", "--out", str(tmp_path), "--device", "cpu", "--smoke", *words]
    )
    assert run_command() == 2
    captured = capsys.readouterr().err
    assert said in captured
    assert captured.count("\n") == 1


def test_results_that_are_none_are_refused_by_file(tmp_path):
    (tmp_path / "results.json").write_text('{"reach": 3}')
    with pytest.raises(UserError, match=r"results.json: holds no results: reach is 3.*; remove it"):
        read_results(tmp_path / "results.json")


def test_what_is_left_when_time_is_up_is_told_of_the_conditions_asked_for(monkeypatch, capsys, tmp_path):
    names = list(CONDITIONS)
    result = proportion([True])
    (tmp_path / "results.json").write_text(json.dumps(dict.fromkeys(names[2:], result)))
    monkeypatch.setattr(training_command, "write_model", lambda *folders: None)
    monkeypatch.setattr(training_command, "evaluate", lambda *words: ((name, result) for name in words[-1]))
    options = Namespace(out=tmp_path, condition=names[:2], eval_episodes=1, processes=1)
    assert training_command._finish(options, until_s=0.0) == training_command.UNFINISHED
    assert "evaluation, 1 of 2 conditions" in capsys.readouterr().out


def test_every_file_of_a_part_is_small_enough_to_be_carried(trained):
    sizes = {path.name: path.stat().st_size for path in trained.iterdir()}
    assert set(sizes) == {
        "model.safetensors",
        "hints.safetensors",
        "first_moments.safetensors",
        "second_moments.safetensors",
        "progress.json",
    }
    assert max(sizes.values()) < 10_000_000


def test_the_written_model_is_a_directory_that_the_engine_takes(trained, tmp_path):
    write_model(trained, tmp_path)
    config, source = open_weights(str(tmp_path), seed=0)
    name = "model.layers.3.mlp.down_proj.weight"
    state = Training(trained, SMALL, CPU).model.state_dict()[name]
    assert np.array_equal(source.read(name, np.empty(tuple(state.shape), np.float32)), state.numpy())
    assert config == open_weights("tiny-vla", seed=0)[0]
    assert source.notes == ()


def test_the_written_tokenizer_gives_the_presets_bytes(trained, tmp_path):
    write_model(trained, tmp_path)
    text = "go to the red ball; ça va? 猫\t\x7f" + bytes(range(0xA0, 0x100)).decode("latin-1")
    written, preset = load_tokenizer(str(tmp_path), 4000), load_tokenizer("tiny-vla", 4000)
    assert np.array_equal(written.make_prompt_tokens(text), preset.make_prompt_tokens(text))
    assert sorted(byte_tokenizer().get_vocab().values()) == list(range(256))


def test_a_memory_of_one_block_holds_no_frame_but_the_one_at_hand():
    instruction = "when the lamp turns green, go where the light was"
    parameters = validate_all(DEPLOYMENT) | {"memory.slots": slots_for(1, instruction)}
    memory = settings.frame_memory(parameters, 8, 4)
    memory.set_prompt(len(settings.Prompter(parameters).changed_to(instruction).tokens))
    assert memory.capacity_frames == 1


def test_the_smoke_run_goes_from_roll_outs_to_a_filled_model_card(has_renderer, tmp_path):
    command = [sys.executable, "-m", "training", "--smoke", "--out", str(tmp_path), "--processes", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [*command, "--device", "cpu"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    card = (tmp_path / "tiny-vla/README.md").read_text()
    results = json.loads((tmp_path / "results.json").read_text())
    assert list(results) == SMOKE["condition"]
    assert all(f"| `{name}` | {found['value']:.3f} | 1 |" in card for name, found in results.items())
    assert "{" not in card
