"""`vla-edge`: dispatch to lazily imported subcommands, exit codes and one-line refusals."""

import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest
from recorded import SAMPLE

from vla_edge_ros import __version__, cli
from vla_edge_ros.engine.linux import same_imports
from vla_edge_ros.errors import UserError

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def replay(monkeypatch):
    """A stand-in for the subcommand `replay`; `outcome` is what it returns or raises."""
    module = types.ModuleType(cli.COMMANDS["replay"].module)
    module.outcome = 0
    module.seen = []

    def add_arguments(parser):
        parser.add_argument("bag")
        parser.add_argument("--service-ms", type=float, default=20.0)

    def run(args):
        module.seen.append(args)
        if isinstance(module.outcome, BaseException):
            raise module.outcome
        return module.outcome

    module.add_arguments, module.run = add_arguments, run
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_a_subcommand_gets_its_own_arguments_and_gives_the_exit_code(replay):
    replay.outcome = 1
    assert cli.main(["replay", "my_bag", "--service-ms", "25"]) == 1
    assert replay.seen[0].bag == "my_bag"
    assert replay.seen[0].service_ms == 25.0


def test_a_user_error_is_one_line_and_exit_code_2(replay, capsys):
    replay.outcome = UserError("my_bag: no image topic,\n  topics are /imu")
    assert cli.main(["replay", "my_bag"]) == 2
    assert capsys.readouterr().err == "vla-edge replay: my_bag: no image topic, topics are /imu\n"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PermissionError(13, "Permission denied", "my_bag"), "my_bag: Permission denied"),
        (OSError(24, "Too many open files"), "Too many open files"),
    ],
)
def test_what_the_system_refuses_is_one_line_and_exit_code_2(replay, capsys, error, line):
    replay.outcome = error
    assert cli.main(["replay", "my_bag"]) == 2
    assert capsys.readouterr().err == f"vla-edge replay: {line}\n"


def test_a_library_that_cannot_be_loaded_is_one_line_and_a_name_of_ours_is_a_bug(replay, capsys):
    replay.outcome = ImportError("libGL.so.1: cannot open shared object file")
    assert cli.main(["replay", "my_bag"]) == 2
    assert "cannot be loaded: libGL.so.1: cannot open" in capsys.readouterr().err
    replay.outcome = ImportError("cannot import name 'gone' from 'vla_edge_ros.figures'")
    with pytest.raises(ImportError):
        cli.main(["replay", "my_bag"])


def test_who_reads_the_output_may_leave(tmp_path):
    (tmp_path / "run.json").write_text('{"records": []}')
    command = f"{sys.executable} -m vla_edge_ros.cli report run.json | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=same_imports(os.environ), capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (141, "")


def test_a_terminal_without_the_dash_gets_another_sign(tmp_path):
    environment = {**same_imports(os.environ), "PYTHONIOENCODING": "ascii"}
    words = [sys.executable, "-m", "vla_edge_ros.cli", "replay", str(SAMPLE), "--seconds", "0.1"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "frames evicted" in done.stdout


def test_a_line_holds_no_control_characters_and_ends_somewhere(replay, capsys):
    replay.outcome = UserError("\x1b[31mbag\r\x00: " + "n" * 100_000)
    cli.main(["replay", "my_bag"])
    line = capsys.readouterr().err
    assert line.startswith("vla-edge replay: \ufffd[31mbag \ufffd: nnn")
    assert line[:-1].isprintable()
    assert len(line) < 1100


def test_a_programming_error_keeps_its_traceback(replay):
    replay.outcome = ValueError("bug")
    with pytest.raises(ValueError, match="bug"):
        cli.main(["replay", "my_bag"])


def test_ctrl_c_is_one_line_and_exit_code_130(replay, capsys):
    replay.outcome = KeyboardInterrupt()
    assert cli.main(["replay", "my_bag"]) == 130
    assert capsys.readouterr().err == "vla-edge replay: interrupted\n"


@pytest.fixture
def default_handlers():
    """SIGTERM and SIGHUP as a new process has them, and afterwards as they were."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_told_to_end_unwinds_first(replay, default_handlers, number):
    def run(args):
        try:
            os.kill(os.getpid(), number)
        finally:
            replay.seen.append("unwound")

    replay.run = run
    with pytest.raises(SystemExit) as ended:
        cli.main(["replay", "my_bag"])
    assert ended.value.code == 128 + number
    assert replay.seen == ["unwound"]


def test_a_command_that_was_told_to_outlive_its_terminal_does(replay, default_handlers):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    replay.run = lambda args: os.kill(os.getpid(), signal.SIGHUP) or 0
    assert cli.main(["replay", "my_bag"]) == 0


@pytest.mark.parametrize(
    ("missing", "advice"),
    [
        ("rclpy._rclpy", "source a ROS 2 distribution"),
        ("torch", "pip install -e '.[test]'"),
        ("pycuda.driver", "pip install -e '.[gpu]'"),
        ("rosbags.highlevel", "pip install rosbags"),
        ("training.from_bags", "it is in the package's checkout and is not installed: pip install -e"),
    ],
)
def test_a_missing_module_is_named_with_where_to_get_it(replay, capsys, missing, advice):
    replay.outcome = ModuleNotFoundError(f"No module named {missing!r}", name=missing)
    assert cli.main(["replay", "my_bag"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert missing.split(".")[0] in error
    assert advice in error


def test_training_names_its_own_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("training")]:
        monkeypatch.delitem(sys.modules, name)
    assert cli.main(["train", "--bag", "b", "--action-topic", "/a", "--config", "c"]) == 2
    assert "torch is missing: install the training extra" in capsys.readouterr().err


def test_a_module_missing_from_the_package_itself_is_a_bug_and_not_the_users(replay):
    replay.outcome = ModuleNotFoundError("gone", name="vla_edge_ros.evaluation.gone")
    with pytest.raises(ModuleNotFoundError):
        cli.main(["replay", "my_bag"])


def test_wrong_usage_is_exit_code_2_with_the_choices(capsys):
    for argv in ([], ["repaly"], ["--nonsense"]):
        with pytest.raises(SystemExit) as stopped:
            cli.main(argv)
        assert stopped.value.code == 2
    assert "usage: vla-edge" in capsys.readouterr().err


def test_help_of_a_subcommand_says_what_it_does_and_shows_examples(replay, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["replay", "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert "--service-ms" in text
    for example in cli.COMMANDS["replay"].examples:
        assert example in text


def test_every_example_is_of_its_own_command():
    for name, command in cli.COMMANDS.items():
        assert command.examples
        assert all(example.startswith(f"vla-edge {name}") for example in command.examples)


def test_help_and_version_import_no_subcommand_and_no_heavy_library():
    code = (
        "import sys; from vla_edge_ros.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'cv2', 'rclpy', 'torch', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    for option in ("--help", "--version"):
        done = subprocess.run(
            [sys.executable, "-c", code, option], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert (__version__ if option == "--version" else "replay") in done.stdout
