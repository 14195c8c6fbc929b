"""The record of the last run on a GPU is complete, and says when it is older than the sources."""

import json

import pytest

from vla_edge_ros.engine.cuda.compiler import source_directory
from vla_edge_ros.engine.cuda.sources import sources_sha256

RECORD = source_directory().parent / "docs" / "benchmarks" / "h200.json"


@pytest.fixture(scope="module")
def record() -> dict:
    return json.loads(RECORD.read_text())


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


def test_the_record_is_of_these_sources(record):
    if record["sources_sha256"] != sources_sha256():
        pytest.skip("docs/benchmarks/h200.json is older than the sources: run scripts/gpu_check.sh on a GPU")
