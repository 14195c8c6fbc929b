"""How each fault of the table is made: a function of the rig and the seconds, which ends with it undone."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from operator import gt
from statistics import median

from vla_edge_ros.control.decision import Decision
from vla_edge_ros.engine.linux import end_with_parent
from vla_edge_ros.evaluation.faults import N_TIMES
from vla_edge_ros.nodes import fault_edge_node, fault_engine
from vla_edge_ros.nodes.fault_camera import FaultCamera
from vla_edge_ros.nodes.fault_engine_actions import (
    Observed,
    engine_fails,
    gpu_contention,
    stage_slow,
    stage_slow_once,
)
from vla_edge_ros.nodes.fault_record_actions import disk_full, node_killed
from vla_edge_ros.nodes.fault_rig import NODE, FaultRig
from vla_edge_ros.nodes.live_run import Process

TOLD_S = 2.0
"""How long the node may take to say which ticks it missed, or what took effect."""
SWAPPED_HZ = 50.0
"""Not in step with the ticks: some use the older picture of a pair, whenever it comes."""
PUNCTUAL_TICKS = 3
"""By so much the number of ticks heard may differ from the time that passed: messages take a while."""


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


def camera_unplugged(rig: FaultRig, seconds: float) -> Observed:
    rig.camera.unplug()
    try:
        rig.spin(seconds)
        return {"the arm was brought to rest": rig.is_at_rest()}
    finally:
        rig.camera.plug()


def camera_with(rig: FaultRig, seconds: float, **changes: object) -> Observed:
    """The camera with other attributes, for so long."""
    with _changed(rig.camera, changes):
        rig.spin(seconds)
    return {}


def camera_until_rest(rig: FaultRig, seconds: float, **changes: object) -> Observed:
    """As `camera_with`, of which the arm comes to rest."""
    with _changed(rig.camera, changes):
        rig.spin(seconds)
        return {"the arm was brought to rest": rig.is_at_rest()}


def fast_camera(rig: FaultRig, seconds: float) -> Observed:
    mark = len(rig.ticks)
    camera_with(rig, seconds, rate_hz=120.0)
    used = [tick.frame_index for tick in rig.since(mark) if tick.decision is Decision.FRESH]
    steps = [later - earlier for earlier, later in pairwise(used)]
    # 60 Hz brings two a tick.
    return {"pictures between are passed over": bool(steps) and median(steps) > 2}


def swapped_frames(rig: FaultRig, seconds: float) -> Observed:
    before, mark = rig.camera_count("backwards"), len(rig.ticks)
    with _changed(rig.camera, {"is_swapped": True, "rate_hz": SWAPPED_HZ}):
        rig.spin(seconds)
        is_counted = rig.spin_until(lambda: rig.camera_count("backwards") > before, TOLD_S)
    held_back = [
        tick
        for tick in rig.since(mark)
        if tick.decision is Decision.FRESH and tick.frame_stamp_ns in rig.camera.held_back_ns
    ]
    younger_ms = [
        (tick.effect_stamp_ns - tick.frame_stamp_ns) / 1e6
        - rig.values["control.deadline_ms"]
        - tick.frame_age_ms
        for tick in held_back
    ]
    # They were received a period after their stamps, and more.
    is_from_receipt = bool(younger_ms) and median(younger_ms) > 1000 / SWAPPED_HZ / 2
    return {
        "/diagnostics counts the stamps that went back": is_counted,
        "the age of their pictures counts from receipt": is_from_receipt,
    }


def clock_jump(rig: FaultRig, seconds: float) -> Observed:
    observed = {}

    def jumps(what: str, jump: Callable[[], object]) -> None:
        mark = len(rig.ticks)
        jump()
        told = rig.spin_until(lambda: rig.has_event(mark, "clock_jump"), 5.0)
        tick = next((tick for tick in rig.since(mark) if "clock_jump" in tick.events), None)
        observed[f"{what}: memory is empty"] = told and tick.retained_frames == 0
        rig.spin(seconds / 4)

    first = rig.ticks[-1]
    jumps("no clock yet", lambda: rig.set_parameter("use_sim_time", True))
    jumps("forward to 100 s", lambda: rig.show_clock(100.0))
    jumps("back to 50 s", lambda: rig.show_clock(50.0))
    jumps("the system's again", lambda: rig.set_parameter("use_sim_time", False))
    last = rig.ticks[-1]
    n_periods = (last.received_ns - first.received_ns) / 1e6 / rig.values["control.period_ms"]
    observed["ticks kept to the steady clock"] = abs(n_periods - (last.tick - first.tick)) < PUNCTUAL_TICKS
    return observed


def subscriber_stops(rig: FaultRig, seconds: float) -> Observed:
    count = rig.driver.node.count_subscribers
    topics = f"{NODE}/tick", f"{NODE}/trajectory"
    others = [count(topic) for topic in topics]
    listener = Process("vla_edge_ros.nodes.fault_listener", {}, rig.folder)
    try:
        rig.until(lambda: all(map(gt, map(count, topics), others)), "be listened to")
        with _stopped(listener.pid):
            mark = len(rig.ticks)
            rig.spin(seconds)
            n_fresh = sum(tick.decision is Decision.FRESH for tick in rig.since(mark))
    finally:
        listener.stop()
    n_ticks = 1000 * seconds / rig.values["control.period_ms"]
    return {"FRESH in half of the ticks while it was stopped": n_fresh >= n_ticks / 2}


def parameter_change(rig: FaultRig, seconds: float) -> Observed:
    is_taken = rig.set_parameter("camera.max_age_ms", 1.0)
    try:
        rig.spin(seconds)
    finally:
        is_taken &= rig.set_parameter("camera.max_age_ms", rig.values["camera.max_age_ms"])
    return {"the node took the values": is_taken}


def memory_reset(rig: FaultRig, seconds: float) -> Observed:
    return _forgets(rig, seconds, "reset_memory", lambda number: rig.reset_memory())


def instruction_change(rig: FaultRig, seconds: float) -> Observed:
    mark = len(rig.ticks)
    return _forgets(rig, seconds, "instruction", lambda number: rig.instruct(f"take cup {number} at {mark}"))


INJECTORS: dict[str, Callable[[FaultRig, float], Observed]] = {
    "cpu-hogs": cpu_hogs,
    "idle-gap": partial(camera_until_rest, is_silent=True),
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
    "camera-frozen": partial(camera_until_rest, is_frozen=True),
    "frames-duplicate": partial(camera_with, times_sent=2),
    "frames-late": partial(camera_until_rest, delay_ns=150_000_000),
    "frames-out-of-order": swapped_frames,
    "clock-jump": clock_jump,
    "subscriber-stops": subscriber_stops,
    "parameter-change": parameter_change,
    "memory-reset": memory_reset,
    "instruction-change": instruction_change,
    "node-killed": node_killed,
    "disk-full-ring": disk_full,
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


@contextlib.contextmanager
def _changed(camera: FaultCamera, changes: Mapping[str, object]) -> Iterator[None]:
    before = {name: getattr(camera, name) for name in changes}
    try:
        for name, value in changes.items():
            setattr(camera, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(camera, name, value)


def _forgets(rig: FaultRig, seconds: float, event: str, send: Callable[[int], None]) -> Observed:
    """Send so often, each once the one before was told of: of a topic's messages the newest alone is kept.

    Memory holds at most the frame of the tick itself where the event took effect.
    """
    mark = len(rig.ticks)
    for number in range(N_TIMES):
        rig.spin(random.uniform(0.5, 1.5) * seconds / N_TIMES)
        send(number)
        rig.spin_until(partial(rig.has_event, mark, event, number + 1), TOLD_S)
    rig.spin(seconds / N_TIMES)
    kept = [tick.retained_frames for tick in rig.since(mark) if event in tick.events]
    return {"memory had no older frame in its tick each time": all(n_frames <= 1 for n_frames in kept)}
