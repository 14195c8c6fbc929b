from vla_edge_ros.engine.benchmark import pass_times
from vla_edge_ros.engine.interface import EngineSpec


def test_passes_are_timed_by_stage_at_full_memory():
    times = pass_times(EngineSpec(n_slots=200), 5)
    assert times["passes"] == 5
    # 200 slots hold a prompt of 20 and 5 frames; a pass sees 4 of them beside its own.
    assert times["context_tokens"] == 20 + 4 * 32
    assert set(times["ms"]) == {"copy", "vision", "prefill", "decode", "total"}
    for stage in times["ms"].values():
        assert 0 < stage["p50"] <= stage["p99"] <= stage["p999"] <= stage["max"]
    assert times["ms"]["total"]["p50"] > times["ms"]["prefill"]["p50"]
