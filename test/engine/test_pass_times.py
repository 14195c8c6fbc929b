import pytest

from vla_edge_ros.engine.benchmark import pass_times
from vla_edge_ros.engine.interface import EngineError, EngineSpec


def test_passes_are_timed_by_stage_at_full_memory():
    times = pass_times(EngineSpec(n_slots=200), 5)
    assert times["backend"] == "numpy"
    assert times["passes"] == 5
    # 200 slots hold a prompt of 20 and 5 frames; a pass sees 4 of them beside its own.
    assert times["context_tokens"] == 20 + 4 * 32
    assert set(times["ms"]) == {"copy", "vision", "prefill", "decode", "total"}
    for stage in times["ms"].values():
        assert stage["n"] == 5
        assert 0 < stage["p50"] <= stage["p99"] <= stage["p999"] <= stage["max"]
    assert times["ms"]["total"]["p50"] > times["ms"]["prefill"]["p50"]


def test_the_engine_that_is_timed_is_the_one_asked_for():
    spec = EngineSpec(backend="fake", model="fake:service_ms=2", n_slots=200)
    times = pass_times(spec, 3)
    assert times["backend"] == "fake"
    assert times["ms"]["total"]["max"] == 2.0


def test_a_pass_that_fails_ends_the_timing_with_its_reason():
    spec = EngineSpec(backend="fake", model="fake:fail_after=2", n_slots=200)
    with pytest.raises(EngineError, match="fails after 2 frames"):
        pass_times(spec, 3)
