"""`python -m training.evaluate`: what it refuses, what it writes, and how it ends."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import becomes_true

from training import evaluate as command
from vla_edge_ros.engine.interface import EngineError
from vla_edge_ros.engine.linux import same_imports
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.forgetting.pool import Outcome

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def episodes(monkeypatch):
    """Episodes that are over at once, in the order that the test says; every even one succeeds."""

    def use(order=lambda jobs: jobs, error=""):
        def run_local(jobs, function, n_workers):
            for job in order(jobs):
                is_refused = bool(error) and job.seed == 1
                rows = [] if is_refused else [{"has_succeeded": job.seed % 2 == 0}]
                yield Outcome(job, rows, error if is_refused else "")

        monkeypatch.setattr(command, "run_local", run_local)

    return use


def test_conditions_come_whole_and_in_order_however_their_episodes_end(episodes):
    episodes(order=lambda jobs: jobs[::-1])
    found = list(command.evaluate("tiny-vla", 4, 2, ["reach", "switch", "reach"]))
    assert [name for name, _ in found] == ["reach", "switch"]
    assert all(success["episodes"] == 4 and success["value"] == 0.5 for _, success in found)


def test_an_episode_that_cannot_be_run_ends_the_evaluation(episodes):
    episodes(error="NoRenderer: OpenGL does not open")
    with pytest.raises(UserError, match="reach, episode 1: NoRenderer: OpenGL"):
        list(command.evaluate("tiny-vla", 4, 2, ["reach"]))


def test_a_model_is_refused_before_a_worker_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "run_local", lambda *words: pytest.fail("workers were started"))
    with pytest.raises(EngineError, match="neither a preset"):
        list(command.evaluate(str(tmp_path / "none"), 1, 1))


def test_each_condition_is_in_the_file_as_soon_as_it_is_done(episodes, tmp_path, capsys):
    path = tmp_path / "new" / "success.json"

    def interrupted(jobs):
        yield from jobs[:2]
        raise KeyboardInterrupt

    episodes(order=interrupted)
    words = ["--condition", "reach", "--condition", "switch", "--episodes", "2", "--json", str(path)]
    assert command.main(words) == 130
    assert list(json.loads(path.read_text())) == ["reach"]
    assert capsys.readouterr().err == (
        f"training.evaluate: interrupted; the conditions that were done are in {path}\n"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none"], "training.evaluate: model 'none' is neither a preset"),
        (
            ["--json", "/proc/none/success.json"],
            "training.evaluate: /proc/none/success.json: cannot be written",
        ),
    ],
)
def test_odd_input_is_one_line_and_exit_code_2(words, said, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert command.main(words) == 2
    line = capsys.readouterr().err
    assert line.startswith(said) and line.count("\n") == 1


def test_ctrl_c_in_the_terminal_is_one_line_and_leaves_no_worker():
    words = [sys.executable, "-m", "training.evaluate", "--condition", "reach", "--processes", "2"]
    environment = {**same_imports(os.environ), "OMP_NUM_THREADS": "1"}
    ran = subprocess.Popen(
        words,
        cwd=ROOT,
        env=environment,
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
        # A shell has what it starts in the background ignore Ctrl-C, these tests perhaps.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    children = Path(f"/proc/{ran.pid}/task/{ran.pid}/children")
    # Two workers, which import still, and the standard library's resource tracker.
    assert becomes_true(lambda: len(children.read_text().split()) == 3)
    os.killpg(ran.pid, signal.SIGINT)
    _, said = ran.communicate(timeout=30)
    assert (ran.returncode, said) == (130, "training.evaluate: interrupted\n")
    assert becomes_true(lambda: not running(ran.pid))


def running(session: int) -> list[str]:
    """The processes of a session that have not ended."""
    found = subprocess.run(["ps", "-eo", "sess=,stat="], capture_output=True, text=True, check=True)
    states = [line.split() for line in found.stdout.splitlines()]
    return [state for owner, state in states if int(owner) == session and not state.startswith("Z")]
