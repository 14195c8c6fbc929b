"""The doctor's rows on the deadline: what can be promised here, and what stands in the way of better."""

import subprocess
from collections.abc import Mapping

from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation import deadline_promise
from vla_edge_ros.evaluation.check import OK, WARN, Check, row

GPU_PROCESSES = "other GPU processes"
OBSTACLES = ("cores", "real-time priority", "memory lock", "CPU governor", GPU_PROCESSES)
"""Checks whose failure makes passes and wake-ups slower now and then."""
_TIMEOUT_S = 30


def check_gpu_processes(works: bool, found: str) -> Check:
    """`found`: lines `pid, name` of the processes that compute on a GPU."""
    if not works:
        return Check(GPU_PROCESSES, OK, "nvidia-smi does not say")
    names = [line.strip() for line in found.splitlines() if line.strip()]
    advice = "end them, or give the robot a GPU of its own: they take turns with its passes"
    return row(GPU_PROCESSES, not names, "; ".join(names) or "no other process computes on it", advice)


def gpu_processes() -> tuple[bool, str]:
    """Whether nvidia-smi answers, and the processes that compute on a GPU, one a line."""
    command = ["nvidia-smi", "--query-compute-apps=pid,process_name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return False, ""
    return done.returncode == 0, done.stdout


def measure_promise(parameters: Mapping[str, object], seconds: float, checks: list[Check]) -> Check:
    """The tightest deadline that can be promised, with the engine that `parameters` name."""
    name = "tightest deadline"
    try:
        times_ns = deadline_promise.measure(parameters, seconds)
    except UserError as error:
        return Check(
            name, WARN, f"not measured: {error}", "choose an engine that runs: --param engine.model=tiny"
        )
    if not times_ns:
        return Check(name, WARN, "no tick was measured", "measure for longer: --seconds 100")
    found = deadline_promise.promisable(times_ns, parameters["admission.target_miss_rate"])
    is_met, text = deadline_promise.in_words(found, times_ns, parameters)
    obstacles = [check.name for check in checks if check.name in OBSTACLES and check.level != OK]
    better = f"in the way of a better one: {', '.join(obstacles)}" if obstacles else ""
    if is_met:
        return Check(name, OK, text, better)
    wanted_ms = parameters["control.deadline_ms"]
    more = f"; {better}" if better else ""
    return Check(name, WARN, text, f"raise control.deadline_ms ({wanted_ms:g}) or take a smaller model{more}")
