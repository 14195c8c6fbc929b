import os
import signal

import pytest
import workers

from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.forgetting import pool
from vla_edge_ros.evaluation.forgetting.pool import MAX_ATTEMPTS, run_local, run_on_ray


def values(outcomes):
    return sorted(row["value"] for outcome in outcomes for row in outcome.rows)


def test_every_job_is_done_once_by_workers_of_one_blas_thread():
    rows = [outcome.rows[0] for outcome in run_local(range(10), workers.double, 2)]
    assert sorted(row["value"] for row in rows) == [2 * job for job in range(10)]
    assert len({row["pid"] for row in rows} - {os.getpid()}) <= 2
    assert {row["threads"] for row in rows} == {"1"}


def test_the_job_of_a_worker_that_dies_is_done_by_another(tmp_path):
    jobs = [str(tmp_path / f"job{number}") for number in range(3)]
    outcomes = list(run_local(jobs, workers.die_once, 2))
    assert sorted(outcome.rows[0]["job"] for outcome in outcomes) == ["job0", "job1", "job2"]
    assert not any(outcome.error for outcome in outcomes)


def test_a_job_that_kills_every_worker_is_given_up_and_the_others_go_on():
    outcomes = list(run_local(range(6), workers.die_on_three, 2))
    assert values(outcomes) == [0, 1, 2, 4, 5]
    (given_up,) = (outcome for outcome in outcomes if outcome.error)
    assert given_up.job == 3 and given_up.error == f"its worker died {MAX_ATTEMPTS} times"


def test_a_job_that_raises_is_given_up_with_one_line():
    outcomes = list(run_local(range(5), workers.raise_on_three, 1))
    assert values(outcomes) == [0, 1, 2, 4]
    assert [outcome.error for outcome in outcomes if outcome.error] == [
        "ValueError: three is refused for good"
    ]


def test_a_job_that_raises_keeps_the_rows_that_it_had_finished():
    (outcome,) = run_local([0], workers.raise_after_two, 1)
    assert [row["value"] for row in outcome.rows] == [0, 1]
    assert outcome.error == "ValueError: the third is refused"


def test_no_more_workers_are_started_than_there_are_jobs(monkeypatch):
    started = []
    start = pool._start
    monkeypatch.setattr(pool, "_start", lambda function: started.append(start(function)) or started[-1])
    assert values(run_local([7], workers.double, 5)) == [14]
    assert len(started) == 1


def test_workers_end_with_whoever_asked_for_them(monkeypatch):
    started = []
    start = pool._start
    monkeypatch.setattr(pool, "_start", lambda function: started.append(start(function)) or started[-1])
    outcomes = run_local([0], workers.sleep_long, 1)
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    with pytest.raises(KeyboardInterrupt):
        next(outcomes)
    assert not started[0].process.is_alive()


def test_ctrl_c_in_the_terminal_reaches_no_worker_and_still_its_owner():
    own = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    (outcome,) = run_local([0], workers.tell_blocked_signals, 1)
    assert signal.SIGINT in outcome.rows[0]["value"]
    assert signal.SIGINT not in own
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == own


def test_a_ray_cluster_does_the_same_jobs(monkeypatch):
    """A cluster of this machine alone, where Ray is installed."""
    ray = pytest.importorskip("ray", reason="ray is not installed (the extra `cluster`)")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    monkeypatch.setattr(ray, "init", lambda **arguments: None)
    assert values(run_on_ray(range(4), lambda job: [{"value": job}], "auto")) == [0, 1, 2, 3]


def test_an_address_without_a_cluster_is_refused_in_one_line():
    pytest.importorskip("ray", reason="ray is not installed (the extra `cluster`)")
    with pytest.raises(UserError, match="no Ray cluster answers"):
        list(run_on_ray([1], workers.double, "auto"))
