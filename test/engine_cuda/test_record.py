"""The record of the last run on a GPU: complete, every missed must explained, outdated if it is."""

import json
import re

import pytest

from vla_edge_ros.engine.cuda.compiler import source_directory
from vla_edge_ros.engine.cuda.sources import sources_sha256
from vla_edge_ros.evaluation.gpu_record import KEYS, MUSTS
from vla_edge_ros.evaluation.musts import judge

RECORD = source_directory().parent / "docs" / "benchmarks" / "h200.json"


@pytest.fixture(scope="module")
def record() -> dict:
    return json.loads(RECORD.read_text())


@pytest.fixture(scope="module")
def current(record) -> dict:
    """The record, where it is of these sources."""
    if record["sources_sha256"] != sources_sha256():
        pytest.skip("docs/benchmarks/h200.json is older than the sources: run scripts/gpu_check.sh on a GPU")
    return record


def test_the_record_names_its_device_and_counts_its_samples(record):
    for name in ("date", "device", "driver", "model", "plan_id", "sources_sha256"):
        assert record[name]
    for part in ("full", "at_128", "at_1024"):
        assert record[part]["pass_us"]["n"] >= 100
        assert (
            record[part]["pass_us"]["p50"]
            <= record[part]["pass_us"]["p999"]
            <= record[part]["pass_us"]["max"]
        )


def test_derived_figures_follow_from_measured_ones(record):
    full = record["full"]
    rate = full["decode_step_bytes"] / full["decode_step_us"]["p50"] / 1e3
    assert full["decode_gbps"] == pytest.approx(rate, rel=1e-3)
    assert record["decode_fraction_of_read"] == pytest.approx(rate / record["read_ceiling_gbps"], rel=2e-3)
    assert record["pass_ms_p50"] == pytest.approx(full["pass_us"]["p50"] / 1e3, rel=1e-3)


def test_the_record_of_these_sources_has_every_figure(current):
    assert [key for key in KEYS if current.get(key) is None] == []


def test_speedups_of_these_sources_are_ratios_within_one_run(current):
    competitors = current["peers"]["competitors"]
    own_ms = competitors["own"]["wall_ms"]["p50"]
    for key, name in (("speedup_hf_eager", "hf_eager"), ("speedup_torch_compile", "hf_compile")):
        assert current[key] == pytest.approx(competitors[name]["wall_ms"]["p50"] / own_ms, rel=1e-3)
    assert current["speedup_best_peer"] <= min(current["speedup_hf_eager"], current["speedup_torch_compile"])


def test_every_must_that_the_record_of_these_sources_misses_is_explained_and_no_other(current):
    missed = {verdict.must.key for verdict in judge(current, MUSTS) if not verdict.is_met}
    text = (RECORD.parents[1] / "kernels.md").read_text()
    section = text.partition("## Musts that the record misses\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == missed
