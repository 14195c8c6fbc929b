"""`vla-edge doctor`: what on this machine stands in the way of the deadline, and what to do about it.

Imports that may crash a process (ROS, OpenCV, cv_bridge, CUDA) are tried in processes of their own.
"""

import argparse
import contextlib
import ctypes
import json
import os
import platform
import resource
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from vla_edge_ros.control.bare_loop import BareLoop
from vla_edge_ros.control.realtime import describe_limit, set_fifo_priority
from vla_edge_ros.engine.interface import EngineSpec
from vla_edge_ros.engine.linux import same_imports
from vla_edge_ros.evaluation.arguments import add_parameter_argument, given_parameters
from vla_edge_ros.evaluation.check import FAIL, OK, WARN, Check, row
from vla_edge_ros.evaluation.doctor_promise import check_gpu_processes, gpu_processes, measure_promise
from vla_edge_ros.parameters import defaults, validate_all
from vla_edge_ros.share import profile_variables, share_directory

FIFO_PRIORITY = defaults()["control.priority"] + 1
"""The tick thread runs one above the node's other threads."""
TIMER_ERROR_MUST_NS = 500_000
SHARED_MEMORY_MUST_BYTES = 50 * 2**20
"""Three processes with the 16 MiB of config/fastdds.xml: the node, a camera, and who watches."""
SHARED_MEMORY_LEAST_BYTES = 2**20
_SHARED_MEMORY_ADVICE = "images between processes need 50 MiB: give a container --shm-size=256m"
_NUMPY_INSTEAD = "engine.backend auto uses the NumPy engine"
_PROBE_TIMEOUT_S = 30
_PERIOD_NS, _CUTOFF_NS, _EFFECT_NS = 33_333_000, 31_000_000, 33_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=5.0,
        help="time to measure the timer, and then the engine's passes, for (0: skip); 0.1 %% takes 100 s",
    )
    add_parameter_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Print every check; 1 if one of them failed, else 0."""
    checks = list(examine(args.seconds, validate_all(given_parameters(args))))
    has_failed = any(check.level == FAIL for check in checks)
    if args.json:
        print(json.dumps({"ok": not has_failed, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        _print_table(checks)
    return int(has_failed)


def examine(seconds: float, parameters: Mapping[str, object]) -> Iterator[Check]:
    """Every check, and the deadline that can be promised last, with what stood in the way of a better one."""
    checks = []
    for check in _checks(seconds):
        checks.append(check)
        yield check
    if seconds:
        yield measure_promise(parameters, seconds, checks)


def _checks(seconds: float) -> Iterator[Check]:
    yield check_python(sys.version_info[:2])
    yield check_platform(platform.machine(), platform.release())
    yield check_cores(len(os.sched_getaffinity(0)))
    yield check_ros(*probe("from rclpy.utilities import get_rmw_implementation_identifier as f; print(f())"))
    yield check_profile(os.environ)
    yield check_shared_memory(Path("/dev/shm"))
    yield check_opencv(*probe("import cv2; print(cv2.__version__)"))
    yield check_cv_bridge(*probe("import cv_bridge; cv_bridge.CvBridge(); print('imports')"))
    yield check_atomics("libatomic.so.1", platform.machine())
    yield check_priority(_refusal_in_a_thread_of_its_own())
    yield check_memory_lock(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])
    yield check_governors(Path("/sys/devices/system/cpu"))
    gpu = check_gpu(*probe("from vla_edge_ros.evaluation.doctor import describe_gpu as f; print(f())"))
    yield gpu
    if gpu.level == OK:
        yield from _gpu_checks()
    if seconds:
        yield measure_timer(seconds)


def _gpu_checks() -> Iterator[Check]:
    """What a GPU that is there needs; without one nothing of it matters."""
    yield check_gpu_processes(*gpu_processes())
    yield check_pycuda(*probe("import pycuda; print(pycuda.VERSION_TEXT)"))
    yield check_bindings(*probe("import cuda.bindings as f; print(f.__version__)"))
    yield check_nvcc(*probe("from vla_edge_ros.engine.cuda.compiler import find_nvcc as f; print(f())"))
    obstacle = probe("from vla_edge_ros.engine.factory import cuda_obstacle as f; print(f())")
    yield check_cuda_engine(*obstacle)
    if obstacle == (True, ""):
        yield check_gpu_memory(
            *probe("from vla_edge_ros.evaluation.doctor import describe_gpu_memory as f; f()")
        )


def check_python(version: tuple[int, int]) -> Check:
    is_tested = (3, 10) <= version <= (3, 13)
    otherwise = FAIL if version < (3, 10) else WARN
    return row("Python", is_tested, ".".join(map(str, version)), "use Python 3.10 to 3.13", otherwise)


def check_platform(machine: str, kernel: str) -> Check:
    is_known = machine in ("x86_64", "aarch64")
    return row("platform", is_known, f"{machine}, Linux {kernel}", "untried: use x86_64 or aarch64")


def check_cores(n_cores: int) -> Check:
    return row("cores", n_cores >= 2, str(n_cores), "the engine and the control loop want a core each")


def check_ros(works: bool, found: str) -> Check:
    if not works:
        advice = "no live node, replay works: source a ROS 2 distribution, or use scripts/demo.sh"
        return Check("ROS 2", WARN, found, advice)
    is_fast_dds = found.startswith("rmw_fastrtps")
    command = "export RMW_IMPLEMENTATION=rmw_fastrtps_cpp"
    return row("ROS 2", is_fast_dds, f"rclpy on {found}", "untried: choose Fast DDS", command=command)


def check_profile(environment: Mapping[str, str]) -> Check:
    variables = profile_variables(environment)
    variable = next((name for name in variables if environment.get(name)), variables[0])
    path = environment.get(variable, "")
    is_there = bool(path) and Path(path).is_file()
    found = f"{variable} {'is set' if is_there else 'names no file' if path else 'is not set'}"
    advice = "best-effort images between processes get lost: the launch files set it, or export it by hand"
    command = f"export {variables[0]}={shlex.quote(str(share_directory() / 'config/fastdds.xml'))}"
    return row("Fast DDS profile", is_there, found, advice, command=command)


def check_shared_memory(folder: Path) -> Check:
    """A little short of it Fast DDS falls back to UDP; a process that finds it full dies of SIGBUS."""
    if not folder.is_dir():
        return Check("shared memory", WARN, f"{folder} is missing", _SHARED_MEMORY_ADVICE)
    usage = shutil.disk_usage(folder)
    found = f"{folder} has {usage.free // 2**20} of {usage.total // 2**20} MiB free"
    if usage.free < SHARED_MEMORY_LEAST_BYTES:
        return Check("shared memory", FAIL, found, f"remove what fills it; {_SHARED_MEMORY_ADVICE}")
    return row("shared memory", usage.free >= SHARED_MEMORY_MUST_BYTES, found, _SHARED_MEMORY_ADVICE)


def check_opencv(works: bool, found: str) -> Check:
    advice = "pip install opencv-python-headless, or apt install python3-opencv"
    return row("OpenCV", works, found, advice, otherwise=FAIL)


def check_cv_bridge(works: bool, found: str) -> Check:
    return Check("cv_bridge", OK, found if works else f"not used, OpenCV does the same directly ({found})")


def check_atomics(library_name: str, machine: str) -> Check:
    with contextlib.suppress(OSError):
        ctypes.CDLL(library_name)
        return Check("libatomic", OK, library_name)
    level = WARN if machine == "x86_64" else FAIL
    return Check("libatomic", level, f"{library_name} not found", "apt install libatomic1")


def check_priority(refusal: str) -> Check:
    found, _, advice = refusal.partition("; ")
    return row("real-time priority", not refusal, found or f"SCHED_FIFO {FIFO_PRIORITY} permitted", advice)


def check_memory_lock(limit_bytes: int) -> Check:
    is_unlimited = limit_bytes == resource.RLIM_INFINITY
    advice = "add 'USER - memlock unlimited' to /etc/security/limits.conf; a container: --ulimit memlock=-1"
    return row("memory lock", is_unlimited, f"memlock limit {describe_limit(limit_bytes)} bytes", advice)


def check_governors(cpus: Path) -> Check:
    governors = {path.read_text().strip() for path in cpus.glob("cpu[0-9]*/cpufreq/scaling_governor")}
    found = ", ".join(sorted(governors)) or "no frequency scaling to be seen (a virtual machine?)"
    return row("CPU governor", governors <= {"performance"}, found, "cpupower frequency-set -g performance")


def check_gpu(works: bool, found: str) -> Check:
    return row("GPU", works, found, _NUMPY_INSTEAD)


def check_pycuda(works: bool, found: str) -> Check:
    return row("PyCUDA", works, found, "pip install pycuda")


def check_bindings(works: bool, found: str) -> Check:
    return row("cuda-bindings", works, found, "pip install cuda-bindings")


def check_nvcc(works: bool, found: str) -> Check:
    advice = "install the CUDA toolkit, or copy the kernels' cache from a machine that has it"
    return row("nvcc", works, found, advice)


def check_cuda_engine(works: bool, obstacle: str) -> Check:
    return row("CUDA engine", works and not obstacle, obstacle or "can run", _NUMPY_INSTEAD)


def check_gpu_memory(works: bool, found: str) -> Check:
    """The whole account of the engine against its budget, before it is configured."""
    advice = "raise memory.budget_bytes, or take fewer slots or a smaller model"
    return row("GPU memory", works, found, advice)


def measure_timer(seconds: float) -> Check:
    """The bare loop for so long, at real-time priority where that is permitted."""
    priority = 0 if _refusal_in_a_thread_of_its_own() else FIFO_PRIORITY
    with contextlib.closing(
        BareLoop(time.monotonic_ns(), _PERIOD_NS, _CUTOFF_NS, _EFFECT_NS, priority)
    ) as loop:
        time.sleep(seconds)
    p50_us, p99_us = (loop.error_percentile_ns(percent) / 1000 for percent in (50, 99))
    scheduler = f"SCHED_FIFO {priority}" if priority else "normal scheduler"
    found = (
        f"{loop.ticks} wake-ups ({scheduler}): error p50 {p50_us:.0f} us, p99 {p99_us:.0f} us, "
        f"max {loop.max_error_ns / 1000:.0f} us; {loop.late} late, {loop.skipped} ticks skipped"
    )
    if not loop.ticks:
        return Check("timer", WARN, "the bare loop made no tick", "measure for longer: --seconds 5")
    is_exact = not loop.late and p99_us * 1000 <= TIMER_ERROR_MUST_NS
    return row("timer", is_exact, found, "allow real-time priority; see what else uses the processor")


def probe(code: str) -> tuple[bool, str]:
    """Run Python code in a process of its own: whether it worked, and its last line of output or of error."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT_S,
            env=same_imports(os.environ),
        )
    except subprocess.TimeoutExpired:
        return False, f"no answer within {_PROBE_TIMEOUT_S} s"
    if done.returncode < 0:
        return False, f"crashes with signal {-done.returncode}"
    lines = (done.stderr if done.returncode else done.stdout).strip().splitlines()
    return done.returncode == 0, lines[-1].strip() if lines else ""


def describe_gpu() -> str:
    """Name of the first device, their number and the driver's CUDA version. Raises OSError."""
    driver = ctypes.CDLL("libcuda.so.1")
    count, version, device = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(128)
    status = (
        driver.cuInit(0)
        or driver.cuDeviceGetCount(ctypes.byref(count))
        or driver.cuDriverGetVersion(ctypes.byref(version))
        or driver.cuDeviceGet(ctypes.byref(device), 0)
        or driver.cuDeviceGetName(name, len(name), device)
    )
    if status:
        raise OSError(f"the NVIDIA driver finds no device (CUDA error {status})")
    major, minor = divmod(version.value, 1000)
    return f"{count.value} x {name.value.decode()}, driver for CUDA {major}.{minor // 10}"


def describe_gpu_memory() -> None:
    """Print what the engine of the reference's model would take. Raises EngineError beyond the budget."""
    from vla_edge_ros.engine.cuda.account import describe_engine

    budget_bytes = defaults()["memory.budget_bytes"]
    spec = EngineSpec("cuda", "qwen2.5-coder-1.5b", n_slots=4096, budget_bytes=budget_bytes)
    print(f"{describe_engine(spec)}, of a budget of {budget_bytes / 1e6:.0f} MB")


def _refusal_in_a_thread_of_its_own() -> str:
    refusals: list[str] = []
    thread = threading.Thread(target=lambda: refusals.append(set_fifo_priority(FIFO_PRIORITY)))
    thread.start()
    thread.join()
    return refusals[0]


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 3600")
    return seconds


def _print_table(checks: list[Check]) -> None:
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    colors = {OK: "green", WARN: "yellow", FAIL: "red"}
    table = Table("", "what", *(Column(title, overflow="fold") for title in ("found", "what to do")))
    for check in checks:
        level = Text(check.level, colors[check.level])
        table.add_row(level, check.name, Text(check.found), Text(check.advice))
    Console().print(table)
    commands = [check.command for check in checks if check.command]
    if commands:
        # Below the table, whose cells break a line so that it cannot be pasted.
        print("\n".join(["by hand, in the shell that starts the node:", *commands]))
