"""The table of faults: what `vla-edge inject` does to the real node, and what the node must do then.

docs/faults.md is this table (fault_page.py).
"""

from dataclasses import dataclass

from vla_edge_ros.control.decision import Decision
from vla_edge_ros.engine.factory import BACKENDS

FRESH, FAULT, SAFE_STOP = Decision.FRESH, Decision.FAULT, Decision.SAFE_STOP
HOLD_NO_FRAME, HOLD_STALE_FRAME = Decision.HOLD_NO_FRAME, Decision.HOLD_STALE_FRAME
HOLD_LATE, HOLD_BUSY, HOLD_REFUSED = Decision.HOLD_LATE, Decision.HOLD_BUSY, Decision.HOLD_REFUSED

RECOVERY_S = 3.0
TRIED_AGAIN_S = 35.0
"""A pass is tried after at most 1,000 refused ticks where the target is 0.1 % (docs/admission.md)."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault that can be injected.

    seconds: how long it lasts unless told otherwise; where the fault ends by itself, the least time watched.
    must_see: during the fault there is a tick with one decision of each set.
    must_happen: events that take effect at ticks during the fault.
    least_fresh: of the ticks during the fault, the share that must be FRESH.
    skips_ticks: during the fault at least one tick is wholly missed, and counted.
    ends_record: what the node records of itself is not complete afterwards.
    is_inside: it is made by code within the node's or the engine's process (nodes/fault_edge_node.py).
    has_own_node: its misses stay on admission's account, so the faults after it get another node.
    recovery_s: how long after its end the node may take to a fresh action.
    backends: the engines that it can be injected into.
    """

    name: str
    what: str
    node: str
    seconds: float
    must_see: tuple[frozenset[Decision], ...] = ()
    must_happen: tuple[str, ...] = ()
    least_fresh: float = 0.0
    skips_ticks: bool = False
    ends_record: bool = False
    is_inside: bool = False
    has_own_node: bool = False
    recovery_s: float = RECOVERY_S
    backends: tuple[str, ...] = BACKENDS


def _see(*decisions: Decision) -> tuple[frozenset[Decision], ...]:
    return tuple(frozenset([decision]) for decision in decisions)


LATE = frozenset({HOLD_LATE, HOLD_BUSY})

FAULTS = {
    fault.name: fault
    for fault in (
        Fault(
            "cpu-hogs",
            "a process on every core that computes without end",
            "goes on deciding every tick; with SCHED_FIFO as few late publishes as the bare loop beside it",
            2.0,
            _see(FRESH),
        ),
        Fault(
            "idle-gap",
            "no picture for 10 s and so no pass: caches and clocks go cold",
            "HOLD_NO_FRAME, then SAFE_STOP; FRESH again with the next pictures",
            10.0,
            _see(HOLD_NO_FRAME, SAFE_STOP),
        ),
        Fault(
            "engine-stopped",
            "SIGSTOP of the engine's process for 200 ms",
            "holds while the pass is late; FRESH again without ~/enable",
            0.2,
            (LATE,),
        ),
        Fault(
            "node-stopped",
            "SIGSTOP of the node's process for 200 ms",
            "says how many ticks it missed wholly and goes on with the next one",
            0.2,
            skips_ticks=True,
        ),
        Fault(
            "gc-pause",
            "a garbage collection over 4 million objects, with the interpreter lock held",
            "counts the ticks that it covers as skipped, and goes on with the next one",
            0.5,
            skips_ticks=True,
            is_inside=True,
        ),
        Fault(
            "stage-slow-once",
            "in one pass a stage takes ten times as long, and at least 40 ms more",
            "HOLD_LATE at the deadline; FRESH by the third tick after",
            0.5,
            (LATE,),
            is_inside=True,
        ),
        Fault(
            "stage-slow",
            "in every pass a stage takes ten times as long, and at least 40 ms more",
            "HOLD_LATE twice, then HOLD_REFUSED with a try now and then, and SAFE_STOP with the arm at rest; "
            "once it is over, FRESH with the first try, within 1 / admission.target_miss_rate ticks",
            2.0,
            (LATE, *_see(HOLD_REFUSED, SAFE_STOP)),
            is_inside=True,
            has_own_node=True,
            recovery_s=TRIED_AGAIN_S,
        ),
        Fault(
            "nan-weights",
            "a weight of the running engine becomes NaN",
            "no action comes of it: the pass has failed, FAULT says that its logits are not finite; "
            "the engine is replaced, which reads the weights anew; SAFE_STOP until ~/enable",
            0.5,
            _see(FAULT, SAFE_STOP),
            ("engine_replaced",),
            is_inside=True,
            backends=("auto", "cuda", "numpy"),
        ),
        Fault(
            "cuda-fault",
            "a kernel in the engine's context writes to an illegal address",
            "the pass has failed, FAULT quotes the driver; the process that holds the context is replaced; "
            "SAFE_STOP until ~/enable",
            0.5,
            _see(FAULT, SAFE_STOP),
            ("engine_replaced",),
            is_inside=True,
            backends=("cuda",),
        ),
        Fault(
            "gpu-contention",
            "another process computes on every multiprocessor of the GPU without end",
            "decides every tick; a pass that cannot end in time is stopped (HOLD_LATE) or refused; "
            "FRESH as after `stage-slow`",
            4.0,
            has_own_node=True,
            recovery_s=TRIED_AGAIN_S,
            backends=("cuda",),
        ),
        Fault(
            "engine-killed",
            "SIGKILL of the engine's process",
            "FAULT; the arm is brought to rest and the engine replaced; SAFE_STOP until ~/enable",
            0.5,
            _see(FAULT, SAFE_STOP),
            ("engine_replaced",),
        ),
        Fault(
            "camera-unplugged",
            "the camera's publisher goes, and comes back",
            "HOLD_NO_FRAME, then SAFE_STOP with the arm at rest; FRESH again with the next picture",
            1.0,
            _see(HOLD_NO_FRAME, SAFE_STOP),
        ),
        Fault(
            "camera-5hz",
            "a camera at 5 Hz",
            "FRESH on each picture, HOLD_NO_FRAME between",
            2.0,
            _see(FRESH, HOLD_NO_FRAME),
        ),
        Fault(
            "camera-15hz",
            "a camera at 15 Hz",
            "FRESH on each picture, HOLD_NO_FRAME between",
            1.0,
            _see(FRESH, HOLD_NO_FRAME),
        ),
        Fault(
            "camera-60hz",
            "a camera at 60 Hz",
            "FRESH on the newest picture of each tick",
            1.0,
            least_fresh=0.5,
        ),
        Fault(
            "camera-120hz",
            "a camera at 120 Hz",
            "FRESH on the newest picture of each tick; those between are passed over",
            1.0,
            least_fresh=0.5,
        ),
        Fault(
            "camera-frozen",
            "the same picture again and again under new stamps",
            "withholds it after camera.frozen_after_frames: HOLD_NO_FRAME, then SAFE_STOP",
            1.5,
            _see(SAFE_STOP),
        ),
        Fault(
            "frames-duplicate",
            "every picture is sent twice under one stamp",
            "uses each once: no two FRESH ticks have the same stamp",
            1.0,
            _see(FRESH),
        ),
        Fault(
            "frames-late",
            "every picture is 150 ms old when it is sent",
            "HOLD_STALE_FRAME beyond camera.max_age_ms, then SAFE_STOP",
            1.0,
            _see(HOLD_STALE_FRAME, SAFE_STOP),
        ),
        Fault(
            "frames-out-of-order",
            "of every two pictures the newer is sent first",
            "counts in /diagnostics the stamps that went back, takes their age from receipt; FRESH goes on",
            1.0,
            least_fresh=0.5,
        ),
        Fault(
            "clock-jump",
            "the ROS clock jumps to 100 s, back to 50 s, and to the system's again",
            "each jump empties memory; ticks keep to the steady clock; FRESH goes on",
            1.0,
            must_happen=("clock_jump",),
            least_fresh=0.5,
        ),
        Fault(
            "subscriber-stops",
            "a reliable subscriber of ~/tick and ~/trajectory stops reading (SIGSTOP)",
            "no publish waits for it: FRESH goes on",
            2.0,
            least_fresh=0.5,
        ),
        Fault(
            "parameter-change",
            "camera.max_age_ms becomes 1 and is put back",
            "obeys without a pause: HOLD_STALE_FRAME, and FRESH again afterwards",
            0.5,
            _see(HOLD_STALE_FRAME),
            ("retune",),
        ),
        Fault(
            "memory-reset",
            "~/reset_memory at ten arbitrary moments within ticks",
            "memory is empty from the start of a tick on; HOLD_BUSY while the prompt is read; FRESH goes on",
            1.0,
            must_happen=("reset_memory",),
            least_fresh=0.25,
        ),
        Fault(
            "instruction-change",
            "another instruction at ten arbitrary moments within ticks",
            "memory is empty from the start of a tick on; HOLD_BUSY while the prompt is read; FRESH goes on",
            1.0,
            must_happen=("instruction",),
            least_fresh=0.25,
        ),
        Fault(
            "node-killed",
            "SIGKILL of the node, which is then started, configured and activated again",
            "its engine ends with it; the new node is disabled until ~/enable and its memory empty",
            0.1,
            ends_record=True,
        ),
        Fault(
            "disk-full",
            "the file of control.record_path cannot grow",
            "stops recording, says so in /diagnostics (ERROR); FRESH goes on",
            1.0,
            least_fresh=0.5,
            ends_record=True,
        ),
    )
}
"""In the order of `vla-edge inject all`."""
