"""What the small commands of the training package refuse before they begin."""

import importlib
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "words", "least"),
    [
        ("evaluate", ["--episodes", "0"], 1),
        ("evaluate", ["--episodes", "-1"], 1),
        ("evaluate", ["--processes", "0"], 1),
        ("look_away", ["--episodes", "0"], 1),
        ("precision", ["--episodes", "0"], 1),
        ("precision", ["--processes", "0"], 1),
        ("expert_bag", ["out", "--episodes", "0"], 1),
        ("expert_bag", ["out", "--seed", "-1"], 0),
        ("rollouts", ["out", "--episodes", "0"], 1),
        ("rollouts", ["out", "--processes", "0"], 1),
        ("statistics", ["--episodes", "0"], 1),
    ],
)
def test_a_number_that_nothing_can_be_made_of_is_refused(monkeypatch, capsys, tmp_path, module, words, least):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [module, *words])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"training.{module}").main()
    assert ended.value.code == 2
    assert f"{words[-1]} must be at least {least}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
