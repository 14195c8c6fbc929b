"""The table of faults: what `vla-edge inject` does to the real node, and what the node must do then.

docs/faults.md is this table (fault_page.py). Its words are no more than what is checked: by the fields of
`Fault` (fault_verdict.py), by the injector that makes the fault (nodes/fault_actions.py), or of every fault.
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
N_TIMES = 10
"""How often a service is called or a text told within one fault."""
LINES, RING = "run.jsonl", "run.mcap"
"""What the node records into (docs/decisions.md#recording)."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault that can be injected.

    seconds: how long it lasts unless told otherwise; where the fault ends by itself, the least time watched.
    must_see: during the fault there is a tick with one decision of each set, and the first of each set comes
        before the first of the next.
    must_happen: events that take effect at ticks during the fault, each as often as it stands here.
    least_fresh: of the ticks during the fault, the share that must be FRESH.
    fresh_hz: so many ticks a second must be FRESH, less two at the ends.
    most_age_ms: of the pictures that were used, at the start of their ticks, the median.
    most_late: so many HOLD_LATE at most before the first HOLD_REFUSED.
    skips_ticks: during the fault at least one tick is wholly missed, and counted.
    ends_record: what the node records of itself is not complete afterwards.
    record: the name of what it records itself into.
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
    fresh_hz: float = 0.0
    most_age_ms: float | None = None
    most_late: int | None = None
    skips_ticks: bool = False
    ends_record: bool = False
    record: str = LINES
    is_inside: bool = False
    has_own_node: bool = False
    recovery_s: float = RECOVERY_S
    backends: tuple[str, ...] = BACKENDS


def _see(*decisions: Decision) -> tuple[frozenset[Decision], ...]:
    return tuple(frozenset([decision]) for decision in decisions)


_LATE_OR_BUSY = frozenset({HOLD_LATE, HOLD_BUSY})
_TICK_MS = 33.3

FAULTS = {
    fault.name: fault
    for fault in (
        Fault(
            "cpu-hogs",
            "a process on every core that computes without end",
            "tells every tick or counts it as skipped, FRESH among them. How punctual it publishes beside "
            "the bare loop under this load is measured for half an hour by `python -m "
            "vla_edge_ros.evaluation.deadline_check live` ([deadline.md](deadline.md))",
            2.0,
            _see(FRESH),
        ),
        Fault(
            "idle-gap",
            "no picture for 10 s and so no pass: caches and clocks go cold",
            "HOLD_NO_FRAME, then SAFE_STOP with the arm at rest; FRESH again when pictures come",
            10.0,
            _see(HOLD_NO_FRAME, SAFE_STOP),
        ),
        Fault(
            "engine-stopped",
            "SIGSTOP of the engine's process for 200 ms",
            "HOLD_LATE or HOLD_BUSY; the engine is not replaced; FRESH again without ~/enable",
            0.2,
            (_LATE_OR_BUSY,),
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
            "HOLD_LATE; FRESH by the third tick after",
            0.5,
            _see(HOLD_LATE),
            is_inside=True,
        ),
        Fault(
            "stage-slow",
            "in every pass a stage takes ten times as long, and at least 40 ms more",
            "HOLD_LATE (on a clean account at a target of 0.1 % three times, at most four), HOLD_REFUSED, "
            "SAFE_STOP with the arm at rest, in this order; the engine is not replaced; afterwards FRESH "
            "within 35 s: a pass is tried after 1 / admission.target_miss_rate ticks at the latest",
            2.0,
            _see(HOLD_LATE, HOLD_REFUSED, SAFE_STOP),
            most_late=4,
            is_inside=True,
            has_own_node=True,
            recovery_s=TRIED_AGAIN_S,
        ),
        Fault(
            "nan-weights",
            "a weight of the running engine becomes NaN",
            "FAULT, and the log says that logits are not finite; the arm is brought to rest; another process "
            "is the engine, which reads the weights anew; SAFE_STOP until ~/enable",
            0.5,
            _see(FAULT, SAFE_STOP),
            ("engine_replaced",),
            is_inside=True,
            backends=("auto", "cuda", "numpy"),
        ),
        Fault(
            "cuda-fault",
            "a kernel in the engine's context writes to an illegal address",
            "FAULT, the log quotes the driver (CUDA_ERROR_ILLEGAL_ADDRESS); the arm is brought to rest; the "
            "process that holds the context is replaced; SAFE_STOP until ~/enable",
            0.5,
            _see(FAULT, SAFE_STOP),
            ("engine_replaced",),
            is_inside=True,
            backends=("cuda",),
        ),
        Fault(
            "gpu-contention",
            "another process computes on every multiprocessor of the GPU without end",
            "tells every tick or counts it as skipped, none of them FAULT; FRESH as after `stage-slow`",
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
            "HOLD_NO_FRAME, then SAFE_STOP with the arm at rest; FRESH again when pictures come",
            1.0,
            _see(HOLD_NO_FRAME, SAFE_STOP),
        ),
        Fault(
            "camera-5hz",
            "a camera at 5 Hz",
            "FRESH on each picture, two at most excepted; HOLD_NO_FRAME between",
            2.0,
            _see(HOLD_NO_FRAME),
            fresh_hz=5.0,
        ),
        Fault(
            "camera-15hz",
            "a camera at 15 Hz",
            "FRESH on each picture, two at most excepted; HOLD_NO_FRAME between",
            1.0,
            _see(HOLD_NO_FRAME),
            fresh_hz=15.0,
        ),
        Fault(
            "camera-60hz",
            "a camera at 60 Hz",
            "FRESH on a picture taken since the tick before: at most 33 ms old at its start (median)",
            1.0,
            least_fresh=0.5,
            most_age_ms=_TICK_MS,
        ),
        Fault(
            "camera-120hz",
            "a camera at 120 Hz",
            "FRESH on a picture at most 33 ms old, as at 60 Hz; those between are passed over",
            1.0,
            least_fresh=0.5,
            most_age_ms=_TICK_MS,
        ),
        Fault(
            "camera-frozen",
            "the same picture again and again under new stamps",
            "withholds it (camera.frozen_after_frames): HOLD_NO_FRAME, then SAFE_STOP with the arm at rest",
            1.5,
            _see(HOLD_NO_FRAME, SAFE_STOP),
        ),
        Fault(
            "frames-duplicate",
            "every picture is sent twice under one stamp",
            "uses each once: no two FRESH ticks in a row have the same stamp; FRESH goes on",
            1.0,
            least_fresh=0.5,
        ),
        Fault(
            "frames-late",
            "every picture is 150 ms old when it is sent",
            "HOLD_STALE_FRAME (camera.max_age_ms), then SAFE_STOP with the arm at rest",
            1.0,
            _see(HOLD_STALE_FRAME, SAFE_STOP),
        ),
        Fault(
            "frames-out-of-order",
            "at 50 Hz, of every two pictures the newer is sent first",
            "counts in /diagnostics the stamps that went back, takes the age of their pictures from receipt "
            "(median); FRESH goes on",
            1.0,
            least_fresh=0.5,
        ),
        Fault(
            "clock-jump",
            "the ROS clock jumps to 0, to 100 s, back to 50 s, and to the system's again",
            "each of the four jumps empties memory; ticks keep to the steady clock; FRESH goes on",
            1.0,
            must_happen=("clock_jump",) * 4,
            least_fresh=0.5,
        ),
        Fault(
            "subscriber-stops",
            "a reliable subscriber of ~/tick and ~/trajectory stops reading (SIGSTOP)",
            "does not wait for it: FRESH goes on",
            2.0,
            least_fresh=0.5,
        ),
        Fault(
            "parameter-change",
            "camera.max_age_ms becomes 1 and is put back",
            "takes both values: HOLD_STALE_FRAME, and FRESH again afterwards",
            0.5,
            _see(HOLD_STALE_FRAME),
            ("retune",) * 2,
        ),
        Fault(
            "memory-reset",
            "~/reset_memory at ten arbitrary moments within ticks",
            "each of the ten takes effect once, and memory has no older frame than its tick's; FRESH goes on",
            1.0,
            must_happen=("reset_memory",) * N_TIMES,
            least_fresh=0.25,
        ),
        Fault(
            "instruction-change",
            "another instruction at ten arbitrary moments within ticks",
            "each of the ten takes effect once, and memory has no older frame than its tick's; FRESH goes on",
            1.0,
            must_happen=("instruction",) * N_TIMES,
            least_fresh=0.25,
        ),
        Fault(
            "node-killed",
            "SIGKILL of the node, which is then started, configured and activated again; it records a ring",
            "its engine ends with it; the new one is disabled until ~/enable, its memory empty; the ring has "
            "the old node's ticks up to a second before, and the new one goes on in it",
            0.1,
            ends_record=True,
            record=RING,
        ),
        Fault(
            "disk-full-ring",
            "the newest segment of the ring that control.record_path names cannot grow",
            "as under `disk-full`",
            1.0,
            least_fresh=0.5,
            ends_record=True,
            record=RING,
        ),
        Fault(
            "disk-full",
            "the file of JSON lines that control.record_path names cannot grow",
            "stops recording, says so in /diagnostics (ERROR); what it recorded can be read; FRESH goes on",
            1.0,
            least_fresh=0.5,
            ends_record=True,
        ),
    )
}
"""In the order of `vla-edge inject all`."""
