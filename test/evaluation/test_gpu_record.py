"""The record of a GPU run: what its parts make, what is refused, and every must at its bound."""

import copy
import io

import pytest
from rich.console import Console

from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.gpu_record import KEYS, MUSTS, merge, stage_table
from vla_edge_ros.evaluation.musts import judge, verdict_table

STAGES = ("fetch_and_rank", "vision", "prefill", "decode_step")


def section(us: float, n: int) -> dict:
    return {
        "pass_us": {"p50": 4 * us, "n": n},
        "work": {stage: {"bytes": 2_000_000, "flops": 10**9} for stage in STAGES},
        **{f"{stage}_us": {"p50": us} for stage in STAGES},
    }


FIGURES = {
    "tests": {},
    "passes": {
        "date": "2026-01-01T00:00:00+00:00",
        "model": "qwen2.5-coder-1.5b",
        "device": "an H200",
        "sources_sha256": "of the benchmark",
        "read_ceiling_gbps": 4000.0,
        "copy_ceiling_gbps": 3900.0,
        "decode_fraction_of_read": 0.70,
        "decode_fraction_of_copy": 0.72,
        "decode_step_ms_p50": 0.8,
        "pass_ms_p50": 9.0,
        "pass_p999_over_p50": 1.2,
        "process_gpu_bytes": 3_900_000_000,
        "abort_ms_p99": 0.8,
        "full": section(1.0, 20_000),
    },
    "peers": {
        "speedup_hf_eager": 60.0,
        "speedup_torch_compile": 4.0,
        "speedup_best_peer": 2.0,
        "bf16_tflops": 800.0,
    },
    "node": {
        "ticks": 10_222,
        "late_publishes": 5,
        "bare_loop": {"late": 3, "ticks": 10_222},
        "cpu_ms_per_tick": {"tick thread": 0.75, "engine process": 0.25},
        "at_full_memory": {
            "ticks": 10_000,
            "tick_to_publish_ms": {"p999": 31.0},
            "stamp_to_publish_ms": {"p999": 50.0},
        },
    },
    "gate": {"token_agreement": 0.999, "passed": True},
    "sizes": {"qwen2.5-0.5b": {"read_ceiling_gbps": 4000.0, "full": section(2.0, 300)}},
}


def parts_of(figures: dict) -> dict[str, dict]:
    return {
        step: {
            "step": step,
            "sources_sha256": "5" * 64,
            "device": "NVIDIA H200",
            "driver": "580",
            "date": f"2026-01-01T00:00:0{number}+00:00",
            "versions": {"python": "3.12"},
            "wall_s": 10.0,
            "exit_code": 0,
            "figures": found,
        }
        for number, (step, found) in enumerate(figures.items())
    }


def record_without(*steps: str) -> dict:
    return merge(parts_of({step: found for step, found in FIGURES.items() if step not in steps}))


RECORD = merge(parts_of(FIGURES))


def test_a_record_has_every_figure_at_its_top_level():
    assert all(RECORD[key] is not None for key in KEYS)
    assert RECORD["host_ms_per_tick"] == 1.0
    assert (RECORD["ticks"], RECORD["late_publishes"], RECORD["bare_loop_late"]) == (10_000, 5, 3)
    assert (RECORD["sources_sha256"], RECORD["device"], RECORD["driver"]) == ("5" * 64, "NVIDIA H200", "580")
    assert RECORD["date"] == "2026-01-01T00:00:05+00:00"
    assert RECORD["full"]["pass_us"]["n"] == RECORD["passes"] == 20_000
    assert set(RECORD["steps"]) == set(FIGURES)


def test_every_figure_at_its_bound_is_met():
    assert all(verdict.is_met for verdict in judge(RECORD, MUSTS))
    assert len({must.key for must in MUSTS}) == len(MUSTS) == 15


@pytest.mark.parametrize("must", MUSTS, ids=lambda must: must.key)
def test_each_must_that_is_missed_is_named_alone(must):
    step = {"<=": 1.001, ">=": 0.999}[must.sense]
    beyond = RECORD[must.key] + 1 if must.key == "late_publishes" else RECORD[must.key] * step
    missed = [
        verdict.must for verdict in judge(RECORD | {must.key: beyond}, MUSTS) if verdict.is_met is False
    ]
    assert missed == [must]


@pytest.mark.parametrize("must", MUSTS, ids=lambda must: must.key)
def test_what_was_not_measured_is_not_met(must):
    unknown = [verdict.must for verdict in judge(RECORD | {must.key: None}, MUSTS) if verdict.is_met is None]
    assert unknown == [must]


def test_bounds_that_follow_from_other_figures_follow_them():
    slower = judge(RECORD | {"decode_step_ms_p50": 0.5}, MUSTS)
    assert [verdict.must.key for verdict in slower if not verdict.is_met] == ["abort_ms_p99"]
    steadier = judge(RECORD | {"bare_loop_late": 2}, MUSTS)
    assert [verdict.must.key for verdict in steadier if not verdict.is_met] == ["late_publishes"]
    blind = judge(RECORD | {"bare_loop_late": None, "decode_step_ms_p50": None}, MUSTS)
    assert [verdict.must.key for verdict in blind if verdict.is_met is None] == [
        "late_publishes",
        "abort_ms_p99",
    ]


@pytest.mark.parametrize("step", ["passes", "peers", "node", "gate"])
def test_a_missing_or_failed_step_leaves_its_figures_unmeasured_and_the_others_as_they_are(step):
    without = record_without(step)
    assert merge(parts_of(FIGURES | {step: {}}))["roofline"] == without["roofline"]
    verdicts = {verdict.must.key: verdict.is_met for verdict in judge(without, MUSTS)}
    assert None in verdicts.values() and True in verdicts.values() and False not in verdicts.values()


def test_parts_of_different_sources_devices_or_drivers_are_refused_in_one_line():
    for name in ("sources_sha256", "device", "driver"):
        parts = copy.deepcopy(parts_of(FIGURES))
        parts["node"][name] = "another"
        with pytest.raises(UserError) as refusal:
            merge(parts)
        assert name in str(refusal.value) and "node of another" in str(refusal.value)
        assert "\n" not in str(refusal.value)
    with pytest.raises(UserError, match="no part"):
        merge({})


def test_a_roofline_takes_products_into_account_where_their_rate_was_measured():
    # 2 MB at 4000 GB/s take 0.5 us; 1 GFLOP at 800 TFLOP/s takes 1.25 us.
    assert RECORD["roofline"]["full"]["prefill"]["limit_us"] == 1.25
    assert RECORD["sizes_roofline"]["qwen2.5-0.5b"]["full"]["prefill"]["share"] == 0.625
    assert record_without("peers")["roofline"]["full"]["prefill"]["limit_us"] == 0.5
    assert record_without("passes", "sizes")["roofline"] == {}


def test_the_tables_can_be_printed_for_whatever_was_measured():
    console = Console(width=200, record=True, file=io.StringIO())
    for record in (RECORD, record_without("passes", "peers"), record_without("node", "gate", "sizes")):
        console.print(verdict_table(record, MUSTS))
        console.print(stage_table(record))
    text = console.export_text()
    assert "must met" in text and "not measured" in text and "MISSED" not in text
