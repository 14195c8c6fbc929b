"""The record of `tiny-vla`: made of parts, each figure beside its must, and told alike by the page."""

import json
from pathlib import Path

import pytest

from training import benchmark
from training.benchmark import main, sources_sha256
from training.evaluate import CONDITIONS
from training.record import BEGIN, END, KEYS, MUSTS, gain_interval, into_page, judged, tables
from training.weights import weights_sha256
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.musts import judge
from vla_edge_ros.figures import proportion

ROOT = Path(__file__).resolve().parents[2]
RECORD, PAGE = ROOT / "docs/benchmarks/tiny_vla.json", ROOT / "docs/findings.md"

SUCCESS = {
    "reach": 0.92,
    "track_fresh_30hz": 0.8,
    "track_fresh_10hz": 0.4,
    "switch": 0.9,
    "remember_full": 0.9,
    "remember_evicted": 0.24,
    "remember_fifo": 0.5,
    "remember_semantic": 0.5,
}


def outcomes(share: float, n: int) -> list[bool]:
    return [i < round(share * n) for i in range(n)]


def live(first: int, n: int) -> dict:
    """Twenty episodes of which the first fails."""
    episode = {"ticks": 80, "fresh": 79, "late": 0}
    return {
        "engine": {"backend": "numpy"},
        "episodes": [{"seed": first + i, "has_succeeded": i > 0} | episode for i in range(n)],
        "camera_hz": 33.3,
        "tick_ms": [31.4] * 80 * n,
        "pass_ms": [9.0] * 79 * n,
    }


@pytest.fixture
def bench(tmp_path, monkeypatch, capsys):
    """Runs the command on a model of its own; its measurements are those of above, and counted."""
    model, runs = tmp_path / "model", []
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"weights")

    def measured_live(module, *words):
        assert module == "vla_edge_ros.nodes.policy_live"
        options = dict(zip(words[::2], words[1::2], strict=True))
        runs.append(("live", options["--seed"]))
        return live(options["--seed"], options["--episodes"])

    def evaluate(name_of_model, episodes, processes, names):
        assert name_of_model == str(model)
        for name in names:
            runs.append((name, episodes))
            yield name, proportion(outcomes(SUCCESS[name], episodes))

    monkeypatch.setattr(benchmark, "run_module", measured_live)
    monkeypatch.setattr(benchmark, "evaluate", evaluate)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.md").write_text(f"# Findings\n\n{BEGIN}\nold\n{END}\n\nThe end.\n")

    def run(*words: str) -> tuple[int, str]:
        code = main([*words, "--model", str(model), "--page", "page.md"])
        return code, "".join(capsys.readouterr())

    run.runs, run.folder, run.model = runs, tmp_path, model
    return run


def test_all_steps_make_a_record_with_every_key_and_a_page_that_agrees(bench):
    code, text = bench()
    record = json.loads((bench.folder / "docs/benchmarks/tiny_vla.json").read_text())
    assert code == 0 and "MISSED" not in text
    assert [key for key in KEYS if record.get(key) is None] == []
    assert record["reach_success"] == proportion([True] * 190 + [False] * 10)
    assert record["live"]["failed_seeds"] == list(range(0, 200, 20))
    assert record["tick_ms_p99_cpu"] == 31.4
    assert record["sources_sha256"] == sources_sha256()
    assert record["weights_sha256"] == weights_sha256(str(bench.model))
    page = (bench.folder / "page.md").read_text()
    assert page.startswith("# Findings") and page.endswith("The end.\n") and "old" not in page
    assert tables(record) in page
    assert "| reach, node in the loop | >= 90.00 % | 95.00 % | met |" in page


def test_a_call_goes_on_from_the_parts_that_are_there(bench):
    assert bench("live", "--minutes", "1e-9")[0] == benchmark.UNFINISHED
    assert bench.runs == []
    bench("live", "--episodes", "40")
    bench("live")
    assert bench.runs == [("live", seed) for seed in range(0, 200, 20)]
    bench()
    assert len(bench.runs) == 10 + len(CONDITIONS)


def test_parts_of_other_weights_are_measured_again(bench):
    bench("switch")
    (bench.model / "model.safetensors").write_bytes(b"other weights")
    bench("switch")
    assert bench.runs == [("switch", 200)] * 2


def test_parts_of_different_weights_make_no_record(bench):
    bench("switch")
    (bench.model / "model.safetensors").write_bytes(b"other weights")
    bench("reach")
    code, text = bench("record")
    assert code == 2 and "different weights_sha256" in text


def test_what_was_not_measured_is_no_must_met(bench):
    bench("reach")
    code, text = bench("record")
    assert code == 1 and "not measured" in text
    assert (
        "| reach, node in the loop | >= 90.00 % | – | not measured |"
        in (bench.folder / "page.md").read_text()
    )


def test_a_missed_must_is_named(bench, monkeypatch):
    monkeypatch.setitem(SUCCESS, "remember_evicted", 0.5)
    code, text = bench()
    record = json.loads((bench.folder / "docs/benchmarks/tiny_vla.json").read_text())
    missed = [verdict.must.key for verdict in judge(judged(record), MUSTS) if not verdict.is_met]
    assert (code, missed) == (1, ["remember_evicted_low"])
    assert "MISSED" in text


def test_a_gain_of_nothing_is_no_gain():
    (must,) = (must for must in MUSTS if must.key == "track_gain_low")
    verdicts = (judge({"track_gain_low": low}, [must])[0].is_met for low in (0.001, 0.0, -0.001))
    assert list(verdicts) == [True, False, False]


def test_weights_that_are_missing_are_one_line(bench):
    (bench.model / "model.safetensors").unlink()
    code, text = bench("live")
    assert code == 1 and text.count("cannot be read") == 1


def test_a_page_without_a_place_for_the_record_is_refused():
    with pytest.raises(UserError, match=r"page.md: has no place for the record: it needs a line"):
        into_page(Path("page.md"), "# Findings\n", {})


def test_a_page_that_is_missing_is_named_once_with_what_to_do(bench):
    bench("reach")
    (bench.folder / "page.md").unlink()
    code, text = bench("record")
    assert code == 2
    assert "page.md: cannot be read: No such file or directory; name the page" in text
    assert text.count("page.md") == 1


def test_the_difference_of_two_proportions_has_the_interval_of_newcombe():
    # Newcombe (1998), table II, case (a), method 10: 56/70 - 48/80 is 0.2, from 0.0524 to 0.3339.
    low, high = gain_interval(proportion(outcomes(0.8, 70)), proportion(outcomes(0.6, 80)))
    assert (round(low, 4), round(high, 4)) == (0.0524, 0.3339)


@pytest.fixture(scope="module")
def record() -> dict:
    if not RECORD.exists():
        pytest.skip("docs/benchmarks/tiny_vla.json is not there: python -m training.benchmark writes it")
    return json.loads(RECORD.read_text())


def test_the_committed_record_is_of_the_committed_weights(record):
    assert record["weights_sha256"] == weights_sha256("tiny-vla")


def test_the_committed_record_is_whole(record):
    assert [key for key in KEYS if record.get(key) is None] == []
    for name in ("reach_success", "remember_full_success", "remember_evicted_success"):
        assert set(record[name]) == {"value", "episodes", "ci95"}


def test_the_page_tells_what_the_committed_record_says(record):
    assert tables(record) in PAGE.read_text()


def test_ctrl_c_is_one_line_and_keeps_the_parts_that_are_there(bench, monkeypatch):
    def interrupted(*words):
        raise KeyboardInterrupt

    assert bench("reach", "--episodes", "4")[0] == 0
    monkeypatch.setattr(benchmark, "evaluate", interrupted)
    code, said = bench("reach", "switch", "--episodes", "4")
    assert code == 130
    kept = "training.benchmark: interrupted; the parts in out/tiny_vla_parts are kept: call again to go on"
    assert said.splitlines()[-1] == kept
    assert [path.name for path in (bench.folder / "out/tiny_vla_parts").iterdir()] == ["reach.json"]
