"""Admission on simulated traces: a short version of what docs/admission.md shows."""

import json
from unittest import mock

import numpy as np
import pytest

from vla_edge_ros.control.admission import Admission, AdmissionConfig
from vla_edge_ros.control.miss_account import most_misses
from vla_edge_ros.evaluation import admission_study
from vla_edge_ros.evaluation.admission_simulation import CUTOFF_NS, end_pass, simulate
from vla_edge_ros.evaluation.admission_study import (
    EMA_GRID,
    EMA_TICKS,
    TARGETS,
    best_ema,
    config,
    recovery_ticks,
    summarise,
)
from vla_edge_ros.evaluation.admission_traces import BENIGN, CUTOFF_MS, TRACES, Trace, make_trace


@pytest.mark.parametrize("name", TRACES)
def test_misses_stay_within_the_bound_on_every_trace(name):
    trace = make_trace(name, 6000, seed=1)
    outcome = simulate(Admission(config("conformal", 0.01)), trace)
    assert outcome.misses <= 0.01 * 6000 + most_misses(0.01)
    assert outcome.longest_refusal <= 1 / 0.01 + 1
    if trace.miss_probability.max() < 1e-6:
        assert outcome.fresh == 6000


@pytest.mark.parametrize("name", ["spells_3000_150", "clustered", "drift_ramp"])
def test_what_can_be_foreseen_is_used(name):
    trace = make_trace(name, 15_000, seed=2)
    outcome = simulate(Admission(config("conformal", 0.01)), trace)
    assert outcome.fresh / outcome.ticks >= 0.9 * trace.causal_goodput(0.01)


@pytest.mark.parametrize("name", TRACES)
def test_the_state_that_is_told_explains_the_misses(name):
    trace = make_trace(name, 50_000, seed=3)
    late = (trace.service_ms > CUTOFF_MS).mean()
    assert late == pytest.approx(trace.miss_probability.mean(), rel=0.1, abs=0.001)
    assert len(trace.service_ms) == len(trace.context_tokens) == 50_000


def test_the_causal_goodput_begins_the_safest_passes_that_the_target_pays_for():
    probability = np.array([0.0, 0.0, 0.5, 0.5, 1.0])
    trace = Trace(np.full(5, 20.0), probability, np.zeros(5, int))
    assert trace.causal_goodput(0.0) == 2 / 5
    assert trace.causal_goodput(0.1) == (3 - 0.5) / 5
    assert trace.causal_goodput(0.499) == (4 - 1.0) / 5


def test_a_late_pass_is_stopped_and_costs_its_own_tick():
    trace = Trace(np.array([20.0, 80.0, 20.0, 20.0, 20.0]), np.zeros(5), np.zeros(5, int))
    outcome = simulate(Admission(config("fixed")), trace)
    assert (outcome.fresh, outcome.misses, outcome.refusals) == (4, 1, 0)


def test_one_hiccup_costs_its_own_tick():
    assert recovery_ticks() == 1


def test_the_study_writes_what_it_prints(monkeypatch, tmp_path, capsys):
    names = ("steady", "spells_600_60")
    monkeypatch.setattr(admission_study, "TRACES", {name: TRACES[name] for name in names})
    path = tmp_path / "study.json"
    assert admission_study.main(["--ticks", "1500", "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    assert {(row["trace"], row["rule"]) for row in document["rows"]} == {
        (name, rule) for name in names for rule in ("conformal", "ema", "fixed")
    }
    assert document["recovery_ticks"] == 1
    assert document["command"].endswith(f"admission_study --ticks 1500 --json {path}")
    assert "spells_600_60" in capsys.readouterr().out


def test_the_reference_is_tuned_on_walks_long_enough_to_be_too_slow():
    late = {name: make_trace(name, EMA_TICKS).service_ms.max() > CUTOFF_MS for name in BENIGN}
    assert late == {name: name != "steady" for name in BENIGN}


def test_the_best_setting_of_the_reference_is_within_the_target():
    grid = {values: AdmissionConfig(*values, "ema") for values in EMA_GRID}
    trace = make_trace("drift_ramp", 2000)
    trace.service_ms[500:700] = 45.0
    kept = [
        found.fresh / 2000
        for found in (simulate(Admission(values), trace) for values in grid.values())
        if found.misses <= 0.01 * 2000
    ]
    with mock.patch.object(admission_study, "make_trace", lambda name, n_ticks: trace):
        one_percent, one_per_mille = best_ema("drift_ramp", 2000)
    assert one_percent["ema"] == max(kept) < 1800 / 2000
    assert one_percent["late"] == 0.1
    assert one_per_mille["ema"] is None or one_per_mille["ema"] <= one_percent["ema"]


def test_the_command_says_where_no_target_was_tested(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(admission_study, "TRACES", {"steady": TRACES["steady"]})
    monkeypatch.setattr(admission_study, "EMA_TICKS", 200)
    monkeypatch.setattr(admission_study, "BENIGN", ("steady", "spells_600_60"))
    path = tmp_path / "study.json"
    assert admission_study.main(["--ticks", "200", "--tune-ema", "--json", str(path)]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if " over 200 ticks: " in line]
    assert [line.endswith("; no pass is late, so no target was tested") for line in told] == [True] * 2 + [
        False
    ] * 2
    rows = json.loads(path.read_text())["best_ema"]
    assert [(row["trace"], row["target"]) for row in rows] == [
        (name, target) for name in ("steady", "spells_600_60") for target in TARGETS
    ]


@pytest.mark.parametrize("ticks", ["0", "1.5", "nan", "inf", "many"])
def test_ticks_that_are_no_whole_number_are_refused(ticks, capsys):
    with pytest.raises(SystemExit) as ended:
        admission_study.main(["--ticks", ticks])
    assert ended.value.code == 2 and "--ticks" in capsys.readouterr().err


def test_only_the_rule_that_promises_is_judged():
    row = {
        "trace": "steady",
        "rule": "conformal",
        "target": 0.01,
        "ticks": 100,
        "refusals": 3,
        "longest_refusal": 2,
        "misses_over_target": 0.5,
        "goodput": 0.9,
        "causal_goodput": 1.0,
        "all_admitted_over_target": 0.5,
    }
    figures = summarise([row, row | {"rule": "ema", "misses_over_target": 9.0, "goodput": 0.1}])
    assert figures["misses_over_target_max"] == 0.5
    assert figures["goodput_over_causal_min"] == 0.9
    assert figures["refusals_where_affordable_max"] == 0.03


class Told:
    """Takes what admission is told of passes."""

    def __init__(self):
        self.whole, self.stopped = [], []

    def observe(self, stages, total_ns):
        self.whole.append((stages.total_ns, total_ns))

    def observe_aborted(self, done, total_ns):
        self.stopped.append((done.total_ns, total_ns))


def test_a_pass_is_told_whole_up_to_the_cutoff_and_stopped_there_beyond_it():
    told = Told()
    assert not end_pass(told, CUTOFF_NS)
    assert end_pass(told, 3 * CUTOFF_NS)
    ((in_stages_ns, took_ns),) = told.whole
    assert in_stages_ns < took_ns == CUTOFF_NS
    assert told.stopped == [(CUTOFF_NS, CUTOFF_NS)]
