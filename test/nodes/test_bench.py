"""The verdicts of `vla-edge bench`, on figures made up for it."""

import copy
import json
import os
import subprocess
import sys

import pytest

from vla_edge_ros.cli import main
from vla_edge_ros.engine.linux import process_cpu_s, process_memory, resident_bytes
from vla_edge_ros.nodes import bench
from vla_edge_ros.nodes.bench import ProcessWatch, judge

GOOD = {
    "camera_callback_ms": {"rgb8": {"p99": 1.5}, "bgr8": {"p99": 0.4}, "jpeg": {"p99": 4.0}},
    "pass_alone_ms": {"ms": {"total": {"p99": 18.0}}},
    "latency_ms": {"pass": {"p99": 22.0}},
    "at_full_memory": {"tick_to_publish_ms": {"p999": 22.5}, "stamp_to_publish_ms": {"p999": None}},
    "cpu_ms_per_tick": {"tick thread": 0.3, "engine process": 0.1},
    "start_error_ms": {"p99": 0.499},
    "ticks": 1000,
    "late_publishes": 3,
    "bare_loop": {"ticks": 1000, "late": 2},
    "memory": {
        "settled_s": 60,
        "node": {"bytes": 100_000_000, "growth_bytes": 999_999},
        "engine": {"bytes": 90_000_000, "growth_bytes": -5},
    },
    "fresh_ratio": 0.95,
}


def missed(document) -> list[str]:
    return [row.what for row in judge(document) if row.is_kept is False]


def test_figures_at_their_bounds_are_kept():
    rows = judge(GOOD)
    assert not missed(GOOD)
    assert all((row.is_kept is None) == (row.must == "") for row in rows)
    assert sum(row.is_kept is True for row in rows) == 8


@pytest.mark.parametrize(
    ("path", "value", "what"),
    [
        (("camera_callback_ms", "rgb8", "p99"), 1.51, "camera callback rgb8 640x480, p99"),
        (("camera_callback_ms", "jpeg", "p99"), 4.01, "camera callback jpeg 640x480, p99"),
        (("start_error_ms", "p99"), 0.5, "tick start error, p99"),
        (("late_publishes",), 4, "late publishes in 1000 ticks"),
        (("memory", "node", "growth_bytes"), 1_000_000, "resident memory, node process"),
        (("memory", "engine", "growth_bytes"), 2_000_000, "resident memory, engine process"),
        (("fresh_ratio",), 0.949, "FRESH"),
    ],
)
def test_each_must_that_is_missed_is_named_alone(path, value, what):
    document = copy.deepcopy(GOOD)
    *parents, last = path
    place = document
    for key in parents:
        place = place[key]
    place[last] = value
    assert missed(document) == [what]


def test_memory_is_judged_from_the_settled_point_to_the_end():
    watch = ProcessWatch(settled_s=10)
    for second, anon in ((0, 50), (9, 60), (10.2, 70), (15, 95), (20, 75)):
        kinds = {"anon": anon, "file": 20, "shmem": 1}
        watch.samples.append((second, {"node": kinds, "engine": {"anon": 5, "file": 0, "shmem": 0}}))
    growth = watch.growth()
    assert growth["node"]["growth_bytes"] == 75 - 70
    assert growth["node"]["bytes"] == 75 + 20 + 1
    assert growth["node"]["settled"] == {"anon": 70, "file": 20, "shmem": 1}
    assert growth["engine"]["growth_bytes"] == 0


def test_the_kinds_of_resident_memory_add_up_to_all_of_it():
    kinds = resident_bytes(os.getpid())
    assert set(kinds) == {"anon", "file", "shmem"}
    assert kinds["anon"] > 1_000_000 and kinds["file"] > 1_000_000
    # The two files of /proc are read one after the other, and the kernel counts in batches.
    assert abs(sum(kinds.values()) - process_memory(os.getpid())) < 8_000_000
    assert sum(resident_bytes(2**22 + 1).values()) == 0


def test_passes_that_were_not_timed_have_no_row():
    rows = [row.what for row in judge(GOOD | {"pass_alone_ms": None})]
    assert len(rows) == len(judge(GOOD)) - 1
    assert not any("pass alone" in row for row in rows)


def test_processor_time_of_the_engine_is_what_was_used_between_the_first_look_and_the_last():
    watch = ProcessWatch(settled_s=10)
    watch.engine_cpu += [(0.0, 70.0), (1.0, 70.2), (10.0, 71.0)]
    assert watch.engine_cpu_per_s() == pytest.approx(0.1)
    assert 0 < process_cpu_s(os.getpid()) < 10_000
    assert process_cpu_s(2**22 + 1) == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("camera.is_compressed", "true"),
        ("control.record_path", "run.jsonl"),
        ("control.bare_loop", "false"),
    ],
)
def test_a_parameter_that_it_sets_itself_is_refused_before_anything_is_measured(
    monkeypatch, capsys, name, value
):
    monkeypatch.delattr(bench, "camera_callback_times")
    assert main(["bench", "--param", f"{name}={value}"]) == 2
    assert f"--param {name}: bench sets it itself; leave it out" in capsys.readouterr().err


def test_the_live_run_fills_memory_and_sends_trajectories(ros_environment, tmp_path):
    path = tmp_path / "bench.json"
    parameters = {"engine.backend": "fake", "engine.model": "fake:service_ms=2", "memory.slots": 128}
    words = [word for name, value in parameters.items() for word in ("--param", f"{name}={value}")]
    words += ["--ticks", "20", "--callbacks", "5", "--passes", "0", "--json", str(path)]
    done = subprocess.run(
        [sys.executable, "-m", "vla_edge_ros.cli", "bench", *words],
        env=ros_environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    # Whether a must is kept is for an idle machine to say.
    assert done.returncode in (0, 1) and path.exists(), done.stdout + done.stderr
    document = json.loads(path.read_text())
    full = document["at_full_memory"]
    assert 20 <= full["ticks"] < document["ticks"]
    for name in ("tick_to_publish_ms", "stamp_to_publish_ms"):
        assert full[name]["n"] >= 10
    assert 2 < full["tick_to_publish_ms"]["p50"] < full["stamp_to_publish_ms"]["p50"]
    assert document["cpu_ms_per_tick"]["tick thread"] > 0
    assert document["bare_loop"]["ticks"] > 0
    assert document["pass_alone_ms"] is None
