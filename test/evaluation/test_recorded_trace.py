"""Admission on recorded service times: they are those of the run, and the rule keeps its promise on them."""

import json
from unittest import mock

import numpy as np
import pytest
from control_rig import MS, Aborts
from test_retrace import ENABLED, live, write
from test_ring_reading import write_ring

from vla_edge_ros.control.admission import Admission
from vla_edge_ros.control.miss_account import most_misses
from vla_edge_ros.evaluation import admission_simulation, recorded_trace
from vla_edge_ros.evaluation.admission_study import TARGETS, config
from vla_edge_ros.evaluation.admission_traces import CUTOFF_MS, Trace
from vla_edge_ros.evaluation.recorded_trace import RecordedPasses, main, read_passes, tried

SCRIPT = {10: Aborts(20 * MS, 30 * MS), 20: 25.0, 30: "no_frame", 31: 12.5}
"""A pass that is stopped after 20 ms with 30 to come at least, two of other times, one without a frame."""


@pytest.fixture(scope="module")
def run():
    return live(60, events=ENABLED, script=SCRIPT)


@pytest.fixture(scope="module")
def path(run, tmp_path_factory):
    return write(tmp_path_factory.mktemp("recorded") / "run.jsonl", run)


def passes_of(service_ms, **known) -> RecordedPasses:
    service_ms = np.array(service_ms, float)
    return RecordedPasses(service_ms, np.full(len(service_ms), 2048), **known)


def test_the_times_are_those_of_the_passes_in_their_order(path, run):
    passes = read_passes(path)
    service_ms = passes.service_ms.round(6).tolist()
    others = [ms for ms in service_ms if ms != 20.0]
    assert others == [50.0, 25.0, 12.5]
    # The first tick fills in the prompt, and one of the passes found no frame.
    assert len(service_ms) == len([t for t in run.ticks if t["submitted_work"] is not None]) - 1
    assert (passes.n_stopped, passes.n_refused, passes.cutoff_ms) == (1, 0, 31.0)
    assert passes.context_tokens.max() > passes.context_tokens[0]


def test_every_form_of_a_run_has_the_same_times(path, run, tmp_path):
    document = tmp_path / "demo.json"
    document.write_text(json.dumps(run.to_document() | {"parameters": run.run["parameters"]}))
    write_ring(tmp_path / "run.mcap", run)
    lines = read_passes(path)
    for other in (document, tmp_path / "run.mcap"):
        found = read_passes(other)
        assert found.service_ms.tolist() == lines.service_ms.tolist()
        assert found.context_tokens.tolist() == lines.context_tokens.tolist()
        assert (found.n_stopped, found.cutoff_ms) == (lines.n_stopped, lines.cutoff_ms)


def test_a_run_is_repeated_from_its_first_pass():
    trace = passes_of([1.0, 2.0, 40.0]).trace(CUTOFF_MS, 7)
    assert trace.service_ms.tolist() == [1.0, 2.0, 40.0, 1.0, 2.0, 40.0, 1.0]
    assert trace.miss_probability.tolist() == [0, 0, 1, 0, 0, 1, 0]


def test_a_tighter_cutoff_is_tried_as_if_the_node_had_it():
    service_ms = np.random.default_rng(3).choice([8.0, 9.0, 9.5, 14.0], 3000, p=[0.5, 0.3, 0.15, 0.05])
    found = tried(("run", passes_of(service_ms), 10.0, 0.01), 3000)
    trace = Trace(service_ms, np.zeros(3000), np.full(3000, 2048))
    with mock.patch.object(admission_simulation, "CUTOFF_NS", 10 * MS):
        wanted = admission_simulation.simulate(Admission(config("conformal", 0.01)), trace)
    assert wanted.misses > 0 and wanted.refusals > 0
    assert (found["fresh"], found["misses"], found["refusals"], found["longest_refusal"]) == (
        wanted.fresh,
        wanted.misses,
        wanted.refusals,
        wanted.longest_refusal,
    )
    late = (service_ms > 10).mean()
    assert found["all_admitted_goodput"] == pytest.approx(1 - late)
    assert found["all_admitted_over_target"] == pytest.approx(late / 0.01)


def test_cutoffs_are_the_runs_own_and_the_quantiles_that_are_tighter():
    times_ms = np.arange(1, 1001) / 25
    assert passes_of(times_ms).cutoffs_ms() == [31.0, 20.0]
    assert passes_of(times_ms, cutoff_ms=50.0).cutoffs_ms() == [50.0, 39.96, 39.6, 36.0, 20.0]
    assert passes_of([20.0]).cutoffs_ms() == [31.0, 20.0]


def test_misses_stay_within_the_bound_whatever_share_of_the_passes_is_late(path, tmp_path, capsys):
    file = tmp_path / "out" / "recorded_trace.json"
    assert main([str(path), "--ticks", "2e3", "--json", str(file)]) == 0
    document = json.loads(file.read_text())
    rows = document["rows"]
    # More than half of the passes take 20 ms, and the one that was stopped is beyond every tighter cut-off.
    assert {(row["cutoff_ms"], row["target"]) for row in rows} == {
        (cutoff_ms, target) for cutoff_ms in read_passes(path).cutoffs_ms() for target in TARGETS
    }
    for row in rows:
        assert row["misses"] <= row["target"] * 2000 + most_misses(row["target"])
        assert row["fresh"] + row["misses"] + row["refusals"] == row["ticks"] == 2000
        assert row["all_admitted_goodput"] < 1
    assert document["misses_over_target_max"] == max(row["misses_over_target"] for row in rows)
    (described,) = document["runs"]
    assert (described["run"], described["passes"]) == (str(path), len(read_passes(path).service_ms))
    told = capsys.readouterr().out
    assert "1 of them stopped at the cut-off of 31.00 ms" in told
    assert told.count("every pass begun") == len(rows)
    assert document["command"].startswith(
        f"python -m vla_edge_ros.evaluation.recorded_trace {path} --ticks 2e3"
    )


def test_cutoffs_may_be_chosen_and_runs_are_tried_each_for_itself(path, tmp_path, capsys):
    other = write(tmp_path / "other.jsonl", live(20, events=ENABLED, service_ms=5.0))
    assert main([str(path), str(other), "--cutoff-ms", "10", "21", "--ticks", "100"]) == 0
    told = capsys.readouterr().out
    for row in (f"{path} at  10.00 ms", f"{other} at  10.00 ms", f"{other} at  21.00 ms"):
        assert told.count(row) == len(TARGETS)


def test_misses_beyond_the_bound_end_with_1(path, monkeypatch):
    monkeypatch.setattr(recorded_trace, "config", lambda rule, target: config("ema"))
    monkeypatch.setattr(recorded_trace, "most_misses", lambda target: 0)
    assert main([str(path), "--cutoff-ms", "24", "--ticks", "1000"]) == 1


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda tick: tick | {"work": []}, "no pass ended in this run"),
        (
            lambda tick: tick | {"work": [done | {"submitted_ns": 2**60} for done in tick["work"]]},
            "a pass is said to have taken -",
        ),
        (lambda tick: tick | {"work": 7}, "wanted a list"),
    ],
)
def test_a_run_without_times_is_refused_in_one_line(change, line, run, tmp_path, capsys):
    ticks = [change(tick) for tick in run.ticks]
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"records": ticks}))
    assert main([str(file)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"recorded_trace: {file}: ") and line in error and error.count("\n") == 1


def test_a_file_that_is_not_there_and_a_cutoff_of_nothing_are_refused(tmp_path, capsys):
    assert main([str(tmp_path / "none.jsonl")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["run.jsonl", "--cutoff-ms", "0"])
    assert ended.value.code == 2


def test_what_was_refused_while_the_arm_was_at_rest_counts_as_refused(tmp_path):
    slow = live(80, events=ENABLED, service_ms=45.0)
    refused = [tick for tick in slow.ticks if "a pass needs" in tick["reason"]]
    assert {tick["decision"] for tick in refused} == {"HOLD_REFUSED", "SAFE_STOP"}
    assert read_passes(write(tmp_path / "slow.jsonl", slow)).n_refused == len(refused)
