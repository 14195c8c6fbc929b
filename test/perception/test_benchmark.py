from vla_edge_ros.perception.benchmark import camera_callback_times


def test_it_times_each_kind_of_message():
    times = camera_callback_times(n=20)
    assert set(times) == {"rgb8", "bgr8", "jpeg"}
    for figures in times.values():
        assert figures["n"] == 20
        assert 0 < figures["p50_ms"] <= figures["p99_ms"] <= figures["p99_9_ms"] <= figures["max_ms"]
    assert times["jpeg"]["bytes"] > 10_000
