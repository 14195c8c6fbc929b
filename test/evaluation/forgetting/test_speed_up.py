from pathlib import Path

import pytest

from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.forgetting import speed_up
from vla_edge_ros.evaluation.forgetting.jobs import Job, Plan


def test_a_round_has_seconds_of_one_worker_and_of_two_and_each_begins_in_turn(monkeypatch, capsys):
    order = []

    def run(jobs, workers):
        order.append((len(jobs), workers))
        return 6.0 / workers

    monkeypatch.setattr(speed_up, "seconds", run)
    assert speed_up.main(["--seeds", "4", "--rounds", "2"]) == 0
    assert order == [(4, 1), (4, 2), (4, 2), (4, 1)]
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "sample, 4 jobs of fifo, novelty in a memory of 8 frames, 2 rounds: 2.00 x in the median"


def test_a_job_that_is_given_up_is_no_figure(tmp_path):
    job = Job(Plan(), "gone", str(tmp_path / "missing.npz"), 0, speed_up.CAPACITY, speed_up.POLICIES)
    with pytest.raises(UserError, match=r"gone, seed 0, capacity 8: FileNotFoundError"):
        speed_up.seconds([job], 1)


def test_a_recording_that_is_not_there_is_one_line(tmp_path, capsys):
    missing = Path(tmp_path, "nothing")
    assert speed_up.main([str(missing)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"speed_up: {missing}: ")
