"""How the faults of an engine are made, as in `fault_actions`."""

import os

from vla_edge_ros.control.decision import Decision
from vla_edge_ros.errors import UserError
from vla_edge_ros.nodes import fault_engine, fault_gpu_hog
from vla_edge_ros.nodes.fault_rig import FaultRig
from vla_edge_ros.nodes.live_run import Process

Observed = dict[str, bool]
"""What an injector looked at itself: words, and whether it was so."""

HEARD_S = 2.0
"""How long the node may take to tell of a slow pass."""
REPLACED_S = 60.0
"""How long the node may take to replace its engine, and a process to have the GPU busy."""


def stage_slow_once(rig: FaultRig, seconds: float) -> Observed:
    mark = len(rig.ticks)
    os.kill(rig.engine_pid(), fault_engine.SLOW_ONCE)

    def slow_tick() -> int | None:
        told = rig.since(mark)
        return next((index for index, tick in enumerate(told) if tick.decision is Decision.HOLD_LATE), None)

    rig.spin_until(lambda: slow_tick() is not None, HEARD_S)
    rig.spin(seconds)
    slow = slow_tick()
    after = [] if slow is None else rig.since(mark)[slow + 1 : slow + 4]
    return {"FRESH by the third tick after": any(tick.decision.is_fresh for tick in after)}


def stage_slow(rig: FaultRig, seconds: float) -> Observed:
    pid = rig.engine_pid()
    os.kill(pid, fault_engine.SLOW)
    try:
        rig.spin(seconds)
        return {
            "the arm was brought to rest": rig.is_at_rest(),
            "the engine was not replaced": rig.engine_pid() == pid,
        }
    finally:
        os.kill(pid, fault_engine.USUAL)


def gpu_contention(rig: FaultRig, seconds: float) -> Observed:
    hog = Process("vla_edge_ros.nodes.fault_gpu_hog", {}, rig.folder)

    def is_busy() -> bool:
        return not hog.is_running or any(fault_gpu_hog.BUSY in line for line in hog.log_lines())

    try:
        rig.until(is_busy, "be disturbed", REPLACED_S)
        if not hog.is_running:
            raise UserError(f"the GPU cannot be kept busy: {hog.complaint()}")
        rig.spin(seconds)
        return {"the GPU was kept busy to the end": hog.is_running}
    finally:
        hog.kill()


def engine_fails(rig: FaultRig, seconds: float, signal_number: int, reason: str = "") -> Observed:
    """The engine gets a signal of which it fails, and for which the node gives `reason` in its log."""
    pid, mark, n_lines = rig.engine_pid(), len(rig.ticks), len(rig.edge.log_lines())
    os.kill(pid, signal_number)
    is_replaced = rig.spin_until(lambda: rig.has_event(mark, "engine_replaced"), REPLACED_S)
    if not is_replaced:
        return {f"replaced within {REPLACED_S:g} s": False}
    mark = len(rig.ticks)
    rig.spin(seconds)
    stays_stopped = all(tick.decision is Decision.SAFE_STOP for tick in rig.since(mark))
    is_at_rest = rig.is_at_rest()
    rig.driver.enable()
    is_explained = any(reason in line for line in rig.edge.log_lines()[n_lines:])
    said = {f'the node said "{reason}"': is_explained} if reason else {}
    return said | {
        "the arm was brought to rest": is_at_rest,
        "stopped until ~/enable": stays_stopped,
        "another process": rig.engine_pid() != pid,
    }
