"""The processes of the comparison: one that dies, hangs or talks hides no other, and ratios count who ran."""

import sys
import time

import pytest

from vla_edge_ros.engine.cuda.comparison import compare, speedups

TALKS = 'import json, sys; print("a library says hello"); print(json.dumps({"ready": 1}), flush=True); '
MEASURES = TALKS + 'sys.stdin.readline(); print("[1]"); print(json.dumps({"measured": {"wall_ms": WALL}}))'
WALL = '{"p50": 2.0, "p99": 2.5, "max": 3.0, "n": 7}'


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_each_competitor_measures_alone_and_a_failure_is_told_in_one_line():
    began = time.monotonic()
    results = compare(
        {
            "dies early": python("raise RuntimeError('no kernel\\nfor this device')"),
            "good": python(MEASURES.replace("WALL", WALL)),
            "dies late": python(TALKS + "sys.stdin.readline(); sys.exit('out of memory')"),
            "never ready": python("import time; time.sleep(60)"),
            "never done": python(TALKS + "import time; time.sleep(60)"),
            "also good": python(MEASURES.replace("WALL", WALL)),
        },
        prepare_s=4.0,
        measure_s=0.5,
    )
    assert time.monotonic() - began < 30
    good = {"wall_ms": {"p50": 2.0, "p99": 2.5, "max": 3.0, "n": 7}}
    assert results == {
        "dies early": {"failed": "ended with exit code 1: for this device"},
        "good": good,
        "dies late": {"failed": "ended with exit code 1: out of memory"},
        "never ready": {"failed": "was not ready in time"},
        "never done": {"failed": "did not measure within 0 s"},
        "also good": good,
    }


def timed(ms: float, **more) -> dict:
    return {"wall_ms": {"p50": ms}, **more}


def test_speedups_are_ratios_of_medians_and_the_best_peer_is_the_fastest():
    results = {
        "own": timed(8.0),
        "hf_eager": timed(800.0),
        "hf_compile": timed(36.0),
        "static_graph": timed(30.0),
        "static_compile": timed(20.0),
        "bf16_product": timed(1.0),
    }
    assert speedups(results) == {
        "speedup_hf_eager": 100.0,
        "speedup_torch_compile": 4.5,
        "speedup_best_peer": 2.5,
    }


@pytest.mark.parametrize("failed", [{"failed": "out of memory"}, timed(9.0, failed="not in its tuned form")])
def test_a_peer_that_failed_is_not_counted_as_beaten(failed):
    results = {"own": timed(8.0), "hf_eager": timed(800.0), "hf_compile": failed, "static_compile": failed}
    assert speedups(results) == {
        "speedup_hf_eager": 100.0,
        "speedup_torch_compile": None,
        "speedup_best_peer": 100.0,
    }
    assert set(speedups({"own": failed, "hf_eager": timed(800.0)}).values()) == {None}
