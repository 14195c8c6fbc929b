"""The verdicts of `vla-edge bench`, on figures made up for it."""

import copy
import os

import pytest

from vla_edge_ros.engine.linux import process_memory, resident_bytes
from vla_edge_ros.nodes.bench import MemoryWatch, judge

GOOD = {
    "camera_callback_ms": {"rgb8": {"p99": 1.5}, "bgr8": {"p99": 0.4}, "jpeg": {"p99": 4.0}},
    "pass_alone_ms": {"ms": {"total": {"p99": 18.0}}},
    "latency_ms": {"pass": {"p99": 22.0}},
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
    watch = MemoryWatch(settled_s=10)
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
