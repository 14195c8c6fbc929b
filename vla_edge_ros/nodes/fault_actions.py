"""How each fault of the table is made: a function of the rig and the seconds, which ends with it undone."""

import contextlib
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

from diagnostic_msgs.msg import DiagnosticStatus

from vla_edge_ros.control.decision import Decision
from vla_edge_ros.engine.linux import end_with_parent, process_memory
from vla_edge_ros.nodes import fault_edge_node, fault_engine
from vla_edge_ros.nodes.fault_engine_actions import (
    Observed,
    engine_fails,
    gpu_contention,
    stage_slow,
    stage_slow_once,
)
from vla_edge_ros.nodes.fault_rig import NODE, FaultRig
from vla_edge_ros.nodes.live_run import Process

TOLD_S = 2.0
"""How long the node may take to say which ticks it missed."""
ENDED_S = 5.0
"""How long an engine may take to end with its node."""
N_TIMES = 10
"""How often a service is called or a text told within one fault."""


def cpu_hogs(rig: FaultRig, seconds: float) -> Observed:
    with contextlib.ExitStack() as cleanup:
        for _ in os.sched_getaffinity(0):
            command = [sys.executable, "-c", "while True: pass"]
            hog = subprocess.Popen(command, preexec_fn=end_with_parent)
            cleanup.callback(hog.wait)
            cleanup.callback(hog.kill)
        rig.spin(seconds)
    return {}


def engine_stopped(rig: FaultRig, seconds: float) -> Observed:
    pid = rig.engine_pid()
    with _stopped(pid):
        rig.spin(seconds)
    return {"the engine was not replaced": rig.engine_pid() == pid}


def node_stopped(rig: FaultRig, seconds: float) -> Observed:
    mark = len(rig.ticks)
    with _stopped(rig.edge.pid):
        time.sleep(seconds)
    # The tick that was interrupted is told first, and then what was missed.
    rig.spin_until(lambda: any(tick.skipped_ticks for tick in rig.since(mark)), TOLD_S)
    return {}


def gc_pause(rig: FaultRig, seconds: float) -> Observed:
    os.kill(rig.edge.pid, signal.SIGUSR1)
    rig.until(
        lambda: any(fault_edge_node.DONE in line for line in rig.edge.log_lines()), "collect its garbage"
    )
    rig.spin(seconds)
    return {}


def node_killed(rig: FaultRig, seconds: float) -> Observed:
    engine, mark = rig.engine_pid(), len(rig.ticks)
    rig.edge.kill()
    give_up_s = time.monotonic() + ENDED_S
    while process_memory(engine) and time.monotonic() < give_up_s:
        time.sleep(0.01)
    has_ended = not process_memory(engine)
    time.sleep(seconds)
    rig.start()
    first = rig.since(mark)[:1]
    return {
        "its engine ended with it": has_ended,
        "the new node was disabled until ~/enable": [tick.is_enabled for tick in first] == [False],
        "its memory was empty": [tick.retained_frames for tick in first] == [0],
    }


def camera_unplugged(rig: FaultRig, seconds: float) -> Observed:
    rig.camera.unplug()
    try:
        rig.spin(seconds)
        return {"the arm was brought to rest": rig.is_at_rest()}
    finally:
        rig.camera.plug()


def camera_with(rig: FaultRig, seconds: float, **changes: object) -> Observed:
    """The camera with other attributes, for so long."""
    before = {name: getattr(rig.camera, name) for name in changes}
    _change_camera(rig, changes)
    try:
        rig.spin(seconds)
    finally:
        _change_camera(rig, before)
    return {}


def fast_camera(rig: FaultRig, seconds: float) -> Observed:
    mark = len(rig.ticks)
    camera_with(rig, seconds, rate_hz=120.0)
    used = [tick.frame_index for tick in rig.since(mark) if tick.decision is Decision.FRESH]
    # 60 Hz brings two a tick.
    return {"pictures between are passed over": any(b - a > 2 for a, b in pairwise(used))}


def swapped_frames(rig: FaultRig, seconds: float) -> Observed:
    before = rig.camera_count("backwards")
    camera_with(rig, seconds, is_swapped=True)
    is_counted = rig.spin_until(lambda: rig.camera_count("backwards") > before, 3.0)
    return {"/diagnostics counts the stamps that went back": is_counted}


def clock_jump(rig: FaultRig, seconds: float) -> Observed:
    observed = {}

    def jumps(what: str, jump: Callable[[], object]) -> None:
        mark = len(rig.ticks)
        jump()
        told = rig.spin_until(lambda: rig.has_event(mark, "clock_jump"), 5.0)
        tick = next((tick for tick in rig.since(mark) if "clock_jump" in tick.events), None)
        observed[f"{what}: memory is empty"] = told and tick.retained_frames == 0
        rig.spin(seconds / 4)

    jumps("no clock yet", lambda: rig.set_parameter("use_sim_time", True))
    jumps("forward to 100 s", lambda: rig.show_clock(100.0))
    jumps("back to 50 s", lambda: rig.show_clock(50.0))
    jumps("the system's again", lambda: rig.set_parameter("use_sim_time", False))
    return observed


def subscriber_stops(rig: FaultRig, seconds: float) -> Observed:
    count = rig.driver.node.count_subscribers
    others = count(f"{NODE}/tick")
    listener = Process("vla_edge_ros.nodes.fault_listener", {}, rig.folder)
    try:
        rig.until(lambda: count(f"{NODE}/tick") > others and count(f"{NODE}/trajectory"), "be listened to")
        with _stopped(listener.pid):
            rig.spin(seconds)
    finally:
        listener.stop()
    return {}


def parameter_change(rig: FaultRig, seconds: float) -> Observed:
    is_taken = rig.set_parameter("camera.max_age_ms", 1.0)
    try:
        rig.spin(seconds)
    finally:
        is_taken &= rig.set_parameter("camera.max_age_ms", rig.values["camera.max_age_ms"])
    return {"the node took the values": is_taken}


def memory_reset(rig: FaultRig, seconds: float) -> Observed:
    mark = len(rig.ticks)
    for _ in range(N_TIMES):
        rig.spin(random.uniform(0.5, 1.5) * seconds / N_TIMES)
        rig.reset_memory()
    rig.spin(seconds / N_TIMES)
    return _forgets(rig, mark, "reset_memory")


def instruction_change(rig: FaultRig, seconds: float) -> Observed:
    mark = len(rig.ticks)
    for number in range(N_TIMES):
        rig.spin(random.uniform(0.5, 1.5) * seconds / N_TIMES)
        rig.instruct(f"take cup {number} at {mark}")
    rig.spin(seconds / N_TIMES)
    return _forgets(rig, mark, "instruction")


def disk_full(rig: FaultRig, seconds: float) -> Observed:
    soft, hard = resource.prlimit(rig.edge.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(rig.edge.pid, resource.RLIMIT_FSIZE, (rig.record.stat().st_size, hard))

    def is_told() -> bool:
        status = rig.status("recorder")
        return (
            status is not None
            and status.level == DiagnosticStatus.ERROR
            and "recording stopped" in status.message
        )

    try:
        observed = {"/diagnostics says that recording stopped": rig.spin_until(is_told, 5.0)}
        rig.spin(seconds)
    finally:
        resource.prlimit(rig.edge.pid, resource.RLIMIT_FSIZE, (soft, hard))
    return observed


INJECTORS: dict[str, Callable[[FaultRig, float], Observed]] = {
    "cpu-hogs": cpu_hogs,
    "idle-gap": partial(camera_with, is_silent=True),
    "engine-stopped": engine_stopped,
    "node-stopped": node_stopped,
    "gc-pause": gc_pause,
    "stage-slow-once": stage_slow_once,
    "stage-slow": stage_slow,
    "nan-weights": partial(engine_fails, signal_number=fault_engine.NAN, reason="not finite"),
    "cuda-fault": partial(engine_fails, signal_number=fault_engine.CUDA, reason="CUDA_ERROR_ILLEGAL_ADDRESS"),
    "gpu-contention": gpu_contention,
    "engine-killed": partial(engine_fails, signal_number=signal.SIGKILL),
    "camera-unplugged": camera_unplugged,
    "camera-5hz": partial(camera_with, rate_hz=5.0),
    "camera-15hz": partial(camera_with, rate_hz=15.0),
    "camera-60hz": partial(camera_with, rate_hz=60.0),
    "camera-120hz": fast_camera,
    "camera-frozen": partial(camera_with, is_frozen=True),
    "frames-duplicate": partial(camera_with, times_sent=2),
    "frames-late": partial(camera_with, delay_ns=150_000_000),
    "frames-out-of-order": swapped_frames,
    "clock-jump": clock_jump,
    "subscriber-stops": subscriber_stops,
    "parameter-change": parameter_change,
    "memory-reset": memory_reset,
    "instruction-change": instruction_change,
    "node-killed": node_killed,
    "disk-full": disk_full,
}
"""By the names of the table of faults."""


@contextlib.contextmanager
def _stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _change_camera(rig: FaultRig, changes: dict[str, object]) -> None:
    for name, value in changes.items():
        setattr(rig.camera, name, value)


def _forgets(rig: FaultRig, mark: int, event: str) -> Observed:
    """Memory holds at most the frame of the tick itself where the event took effect."""
    ticks = [tick for tick in rig.since(mark) if event in tick.events]
    return {f"memory was empty at each of {N_TIMES}": all(tick.retained_frames <= 1 for tick in ticks)}
