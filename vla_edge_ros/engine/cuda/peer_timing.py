"""How long a pass takes on the device, in torch."""

import time
from collections.abc import Callable

import torch

from vla_edge_ros.figures import percentiles

WARM_UP_PASSES = 5
SLOW_MS, SLOW_REPEATS, REPEATS = 200, 30, 200
"""A pass slower than this is repeated less often."""

Run = Callable[[], object]


def warm_up(run: Run, prepare: Run = lambda: None) -> None:
    for _ in range(WARM_UP_PASSES):
        prepare()
        run()
        torch.cuda.synchronize()


def captured(run: Run) -> Run:
    """`run` as one CUDA graph: call it to replay."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def seconds_in_graph(run: Run, n: int = 20) -> float:
    """Device time of a call among `n` in one graph: launches from Python would hide which is fastest."""

    def several() -> None:
        for _ in range(n):
            run()

    replay = captured(several)
    replay()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / n


def time_passes(run: Run, prepare: Run = lambda: None) -> dict:
    """`wall_ms`: from the call until the device is done; `device_ms`: between events around it.

    `prepare` comes before each pass and is not timed.
    """
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    wall_ms, device_ms = [], []
    n = 1
    while len(wall_ms) < n:
        prepare()
        torch.cuda.synchronize()
        called_ns = time.perf_counter_ns()
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        wall_ms.append((time.perf_counter_ns() - called_ns) / 1e6)
        device_ms.append(begin.elapsed_time(end))
        n = SLOW_REPEATS if wall_ms[0] > SLOW_MS else REPEATS
    return {"wall_ms": percentiles(wall_ms), "device_ms": percentiles(device_ms)}


def graph_launches(run: Run, prepare: Run) -> int:
    """CUDA graphs that one pass launches. Raises RuntimeError where the profiler cannot say."""
    from torch.profiler import ProfilerActivity, profile

    prepare()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        run()
        torch.cuda.synchronize()
    counts = {event.key: event.count for event in profiled.key_averages()}
    if not any(name.startswith("cuda") for name in counts):
        raise RuntimeError("the profiler saw no call of CUDA")
    return counts.get("cudaGraphLaunch", 0)
