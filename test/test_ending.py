"""How commands end: exit codes, and one line on stderr where they are not done."""

import pytest

from vla_edge_ros.ending import exit_code
from vla_edge_ros.engine.interface import EngineError
from vla_edge_ros.errors import UserError


def raising(error):
    def run():
        raise error

    return run


@pytest.mark.parametrize("code", [0, 1, 3])
def test_a_command_that_is_done_says_nothing(code, capsys):
    assert exit_code("study", lambda: code) == code
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (UserError("--into x: is no\nfigure"), "--into x: is no figure"),
        (EngineError("model 'x' is unknown"), "model 'x' is unknown"),
        (OSError(28, "No space left on device", "rows.jsonl"), "rows.jsonl: No space left on device"),
    ],
)
def test_what_a_user_can_mend_is_one_line_and_exit_code_2(error, line, capsys):
    assert exit_code("study", raising(error)) == 2
    assert capsys.readouterr().err == f"study: {line}\n"


@pytest.mark.parametrize(("kept", "line"), [("", ""), ("its rows are in x", "; its rows are in x")])
def test_ctrl_c_is_one_line_that_says_what_is_kept_and_exit_code_130(kept, line, capsys):
    assert exit_code("study", raising(KeyboardInterrupt()), kept) == 130
    assert capsys.readouterr().err == f"study: interrupted{line}\n"


def test_a_defect_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        exit_code("study", lambda: 1 // 0)
