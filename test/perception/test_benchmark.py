from vla_edge_ros.perception.benchmark import camera_callback_times


def test_it_times_each_kind_of_message():
    times = camera_callback_times(n=20)
    assert set(times) == {"rgb8", "bgr8", "jpeg"}
    for figures in times.values():
        assert figures["n"] == 20
        assert 0 < figures["p50"] <= figures["p99"] <= figures["p999"] <= figures["max"]
    assert times["jpeg"]["bytes"] > 10_000
