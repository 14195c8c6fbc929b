"""The record of the deadline: made of parts, each figure beside its must; `live` goes on where it was."""

import json
from pathlib import Path

import pytest

from vla_edge_ros.evaluation import deadline_check
from vla_edge_ros.evaluation.deadline_check import main, sources_sha256
from vla_edge_ros.evaluation.deadline_record import KEYS, MUSTS, merge, page
from vla_edge_ros.evaluation.musts import judge

ROOT = Path(__file__).resolve().parents[2]
RECORD, PAGE = ROOT / "docs/benchmarks/deadline.json", ROOT / "docs/deadline.md"

FIGURES = {
    "accelerated": {"ticks": 50_000, "late_publishes": 0, "skipped_ticks": 0, "fresh": 40_000, "misses": 9},
    "recovery": {"ticks": 400, "recovery_ticks": 1, "refused": 0},
    "decision": {"n": 20_000, "p99": 41.0},
    "study": {
        "ticks": 1_000_000,
        "misses_over_target_max": 1.016,
        "goodput_over_causal_min": 0.93,
        "refusals_where_affordable_max": 0.009,
    },
}


def live(seconds: float, late: int = 1, bare_late: int = 0, priority: int = 40) -> dict:
    return {
        "seconds": seconds,
        "hogs": 2,
        "fifo_priority": priority,
        "ticks": round(30 * seconds),
        "fresh": 8000,
        "late_publishes": late,
        "late_wakes": 0,
        "skipped_ticks": 0,
        "misses": 0,
        "start_error_ms": {"max": 0.2},
        "bare_loop": {"ticks": round(30 * seconds), "late": bare_late},
        "engine": {"backend": "numpy"},
    }


@pytest.fixture
def check(tmp_path, monkeypatch, capsys):
    """Runs the check; its measurements are FIGURES, and `live` what was asked for."""
    for step, figures in FIGURES.items():
        monkeypatch.setitem(deadline_check.STEPS, step, lambda options, found=figures: found)
    monkeypatch.chdir(tmp_path)
    seconds = []

    def measured(module, *words):
        assert module == "vla_edge_ros.nodes.deadline_live"
        seconds.append(words[1])
        return live(words[1])

    monkeypatch.setattr(deadline_check, "run_module", measured)

    def run(*words: str) -> tuple[int, str]:
        code = main([*words, "--parts", "parts"])
        return code, "".join(capsys.readouterr())

    run.seconds, run.folder = seconds, tmp_path
    return run


def test_all_steps_make_a_record_and_a_page_that_agree(check):
    write_tuned(check.folder, tuned(0.91))
    code, text = check()
    record = json.loads((check.folder / "docs/benchmarks/deadline.json").read_text())
    assert [key for key in KEYS if record.get(key) is None] == []
    assert (record["ticks"], record["late_publishes"], record["bare_loop_late"]) == (104_000, 6, 0)
    assert record["sources_sha256"] == sources_sha256()
    assert (check.folder / "docs/deadline.md").read_text() == page(record)
    # Six late publishes, and the bare loop had none.
    assert code == 1 and "MISSED" in text
    missed = [verdict.must.key for verdict in judge(record, MUSTS) if not verdict.is_met]
    assert missed == ["late_publishes"]
    assert "| late publishes | <= 2 | 6 | **missed** |" in page(record)
    assert "| refused where all could be afforded | <= 1.00 % | 0.90 % | met |" in page(record)


BESIDE = {"trace": "spells_3000_150", "target": 0.001, "ticks": 1_000_000, "rule": "conformal"}
BEST = {"trace": "spells_3000_150", "target": 0.001, "ticks": 200_000}


def tuned(ema: float | None, conformal: float = 0.9, goodput: float = 0.89) -> dict:
    """What `admission_study --tune-ema` writes, of two traces."""
    best = [BEST | {"ema": ema, "conformal": conformal}, BEST | {"ema": 0.8, "conformal": 0.9}]
    return {"rows": [BESIDE | {"goodput": goodput}], "best_ema": best}


def write_tuned(folder: Path, document: dict) -> Path:
    path = folder / "docs/benchmarks/admission.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path


def verdict_on_ema(folder: Path) -> tuple[float | None, bool | None]:
    record = json.loads((folder / "docs/benchmarks/deadline.json").read_text())
    verdicts = {verdict.must.key: verdict for verdict in judge(record, MUSTS)}
    verdict = verdicts["goodput_below_tuned_ema_max"]
    return verdict.measured, verdict.is_met


@pytest.mark.parametrize(("ema", "is_met"), [(0.915, True), (0.9199, True), (0.926, False), (None, True)])
def test_the_best_tuned_ema_may_have_two_points_more_goodput(check, ema, is_met):
    check("recovery")
    write_tuned(check.folder, tuned(ema))
    check("record")
    below, was_met = verdict_on_ema(check.folder)
    # Where none of the settings kept to the target, the other row is the worst.
    assert below == pytest.approx(-0.1 if ema is None else ema - 0.9) and was_met is is_met
    told = f"<= 2.00 points | {100 * below:.2f} points"
    assert told in (check.folder / "docs/deadline.md").read_text()


def test_an_ema_that_nobody_tuned_is_not_measured(check):
    check("recovery")
    check("record")
    assert verdict_on_ema(check.folder) == (None, None)


def test_an_ema_that_was_tuned_beside_another_rule_is_refused_in_one_line(check, monkeypatch):
    study = FIGURES["study"] | {"rows": [BESIDE | {"goodput": 0.89}]}
    monkeypatch.setitem(deadline_check.STEPS, "study", lambda options: study)
    check("study")
    for goodput, code in ((0.8895, 1), (0.885, 2)):
        write_tuned(check.folder, tuned(0.915, goodput=goodput))
        assert (found := check("record"))[0] == code
    assert found[1].count("\n") == 1 and "spells_3000_150 at 0.1%" in found[1]


@pytest.mark.parametrize("document", [[], {"rows": []}, {"rows": [], "best_ema": [{"ema": 1}]}])
def test_a_file_that_tells_of_no_tuning_is_refused_in_one_line(check, document):
    check("recovery")
    path = write_tuned(check.folder, document)
    code, text = check("record")
    assert (code, text.count("\n")) == (2, 1) and str(path.relative_to(check.folder)) in text


def test_live_is_measured_in_stretches_and_goes_on_from_those_that_are_there(check):
    assert check("live", "--minutes", "7")[0] == 0
    assert check.seconds == [300.0, 120.0]
    assert check("live", "--minutes", "12")[0] == 0
    assert check.seconds == [300.0, 120.0, 300.0]
    assert check("live", "--minutes", "12")[0] == 0
    assert len(check.seconds) == 3
    assert [path.name for path in sorted((check.folder / "parts").iterdir())] == [
        f"live-{number:03}.json" for number in (1, 2, 3)
    ]


def test_stretches_of_other_sources_do_not_count(check):
    check("live", "--minutes", "5")
    path = check.folder / "parts/live-001.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sources_sha256": "0" * 64}))
    assert check("record")[0] == 2
    check("live", "--minutes", "10")
    assert check.seconds == [300.0, 300.0, 300.0]
    check("live", "--minutes", "15")
    parts = sorted((check.folder / "parts").iterdir())
    assert [json.loads(path.read_text())["sources_sha256"] for path in parts] == [sources_sha256()] * 3


def test_parts_that_do_not_belong_together_are_refused_in_one_line(check):
    code, text = check("record")
    assert (code, text.count("\n")) == (2, 1) and "run a step first" in text
    check("recovery", "decision")
    path = check.folder / "parts/decision.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"device": "another"}))
    code, text = check("record")
    assert (code, text.count("\n")) == (2, 1) and "different device" in text
    path.write_text("{}")
    code, text = check("record")
    assert (code, text.count("\n")) == (2, 1) and "decision.json" in text
    assert not (check.folder / "docs").exists()


def test_what_was_not_measured_is_not_met(check):
    check("recovery")
    assert check("record")[0] == 1
    record = json.loads((check.folder / "docs/benchmarks/deadline.json").read_text())
    assert (record["recovery_ticks"], record["late_publishes"], record["ticks"]) == (1, None, None)
    assert "| late publishes | <= – | – | not measured |" in page(record)


def test_a_measurement_that_fails_leaves_no_part_and_hides_no_other(check, monkeypatch):
    check("recovery")

    def fail(options):
        raise deadline_check.UserError("the node ended")

    monkeypatch.setitem(deadline_check.STEPS, "recovery", fail)
    code, text = check("recovery", "decision")
    assert code == 1 and "deadline_check: recovery: the node ended" in text and "decision: done" in text
    assert [path.name for path in (check.folder / "parts").iterdir()] == ["decision.json"]


def test_two_late_publishes_more_than_the_bare_loop_are_allowed_and_one_normal_priority_is_found():
    def part(figures: dict) -> dict:
        values = {"date": "2026-01-01", "machine": {}, "versions": {}, "wall_s": 1.0}
        return {"step": "live", "sources_sha256": "a", "device": "b", "figures": figures, **values}

    for late, is_met in ((5, True), (6, False)):
        record = merge([part(live(300, late, 3)), part(live(300, 0, 0, priority=0))])
        verdicts = {verdict.must.key: verdict.is_met for verdict in judge(record, MUSTS)}
        assert verdicts["late_publishes"] is is_met
        assert verdicts["fifo_priority"] is False


def test_the_committed_record_and_its_page_agree():
    if not RECORD.exists():
        pytest.skip("docs/benchmarks/deadline.json was not made yet: run evaluation.deadline_check")
    record = json.loads(RECORD.read_text())
    assert [key for key in KEYS if record.get(key) is None] == []
    assert PAGE.read_text() == page(record)


def test_every_missed_must_of_the_committed_record_is_explained():
    if not RECORD.exists():
        pytest.skip("docs/benchmarks/deadline.json was not made yet: run evaluation.deadline_check")
    record = json.loads(RECORD.read_text())
    explained = (ROOT / "docs/admission.md").read_text().partition("## Musts that are missed\n")[2]
    for verdict in judge(record, MUSTS):
        assert verdict.is_met or f"`{verdict.must.key}`" in explained
