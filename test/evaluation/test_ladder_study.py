"""The ladder on simulated traces: what forgetting for time gains and that it breaks no promise."""

import pytest

from vla_edge_ros.control.admission import Admission
from vla_edge_ros.control.ladder import NO_STEPS
from vla_edge_ros.control.miss_account import most_misses
from vla_edge_ros.evaluation import ladder_study
from vla_edge_ros.evaluation.admission_study import config
from vla_edge_ros.evaluation.admission_traces import Trace, make_trace
from vla_edge_ros.evaluation.ladder_study import (
    CAPACITY_FRAMES,
    DECIDED,
    NAMES,
    WITH,
    climb,
    decision_us,
    main,
)

N_TICKS = 8000


@pytest.mark.parametrize("name", ["spells_3000_150", "spells_600_60"])
@pytest.mark.parametrize("share", [0.2, 0.8])
def test_in_slow_spells_no_less_is_fresh_with_the_ladder_within_the_same_bound(name, share):
    trace = make_trace(name, N_TICKS)
    without, with_it = (
        climb(Admission(config("conformal", 0.01), steps), trace, share) for steps in (NO_STEPS, WITH)
    )
    assert without.fresh < N_TICKS
    assert with_it.fresh >= without.fresh
    assert with_it.misses <= 0.01 * N_TICKS + most_misses(0.01)
    assert without.forgotten == 0


def test_a_drift_is_followed_with_a_smaller_memory():
    ramp = make_trace("drift_ramp", 30_000)
    # Memory fills before passes are longest, about tick 25,000.
    trace = Trace(
        *(column[18_000:] for column in (ramp.service_ms, ramp.miss_probability, ramp.context_tokens))
    )
    without, with_it = (
        climb(Admission(config("conformal", 0.01), steps), trace, 0.5) for steps in (NO_STEPS, WITH)
    )
    assert with_it.fresh > 1.2 * without.fresh
    assert WITH.least_frames < with_it.mean_frames < CAPACITY_FRAMES


def test_the_command_prints_a_row_for_each_trace_share_and_target(capsys):
    assert main(["--ticks", "50"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(NAMES) * 3 * 2
    assert all(line.count("fresh") == 2 for line in lines)


@pytest.mark.parametrize("case", DECIDED, ids=lambda case: case.what)
def test_nearly_every_timed_tick_comes_to_the_step_that_it_is_timed_for(case):
    found = decision_us(case, 600)
    assert 0.95 * 600 <= found["n"] <= 600
    assert 0 < found["p50"] <= found["p99"] <= found["max"]


def test_the_command_tells_what_deciding_takes_for_each_step(capsys, monkeypatch):
    monkeypatch.setattr(ladder_study, "DECISIONS", 50)
    assert main(["--decisions"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" p50 ")[0].strip() for line in lines] == [case.what for case in DECIDED]
