"""What is judged at full memory: the ticks from the first eviction on."""

from vla_edge_ros.evaluation.run_document import at_full_memory


def tick(index, decision="FRESH", sent_ms=9.0, capture_ms=-10.0, journal=()):
    start_ns = index * 33_000_000
    return {
        "decision": decision,
        "journal": list(journal),
        "scheduled_ns": start_ns,
        "trajectory_ns": None if sent_ms is None else start_ns + round(sent_ms * 1e6),
        "frame_capture_ns": start_ns + round(capture_ms * 1e6),
    }


def test_only_ticks_from_the_first_eviction_on_count():
    records = [
        tick(0, sent_ms=100.0),
        tick(1, sent_ms=8.0, journal=[{"frame": 1}]),
        tick(2, sent_ms=10.0, capture_ms=-17.0),
        tick(3, "HOLD_LATE", sent_ms=None),
        tick(4, "FRESH_LATE", sent_ms=1.0),
    ]
    found = at_full_memory(records)
    assert found["ticks"] == 4
    assert found["fresh_ratio"] == 0.5
    assert (found["tick_to_publish_ms"]["n"], found["tick_to_publish_ms"]["max"]) == (2, 10.0)
    assert (found["stamp_to_publish_ms"]["p50"], found["stamp_to_publish_ms"]["max"]) == (18.0, 27.0)


def test_where_memory_was_never_full_there_is_nothing_to_judge():
    found = at_full_memory([tick(0), tick(1)])
    assert found["ticks"] == 0 and found["fresh_ratio"] == 0.0
    assert found["tick_to_publish_ms"] == {"n": 0, "p50": None, "p99": None, "p999": None, "max": None}


def test_a_fresh_tick_that_sent_no_trajectory_has_no_time():
    records = [tick(0, sent_ms=None, journal=[{"frame": 1}]), tick(1)]
    found = at_full_memory(records)
    assert found["fresh_ratio"] == 1.0
    assert found["tick_to_publish_ms"]["n"] == 1
