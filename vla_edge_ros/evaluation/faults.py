"""The table of faults: what `vla-edge inject` does to the real node, and what the node must do then.

docs/faults.md is this table: `python -m vla_edge_ros.evaluation.faults --write`.
"""

import argparse
import sys
from dataclasses import dataclass

from vla_edge_ros.control.decision import Decision
from vla_edge_ros.engine.factory import BACKENDS
from vla_edge_ros.share import share_directory

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
    skips_ticks: bool = False
    ends_record: bool = False
    is_inside: bool = False
    has_own_node: bool = False
    recovery_s: float = RECOVERY_S
    backends: tuple[str, ...] = BACKENDS


@dataclass(frozen=True, slots=True)
class Covered:
    """A fault that the tool does not inject, with the test that shows what the node does."""

    what: str
    node: str
    test: str


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
            "camera-60hz", "a camera at 60 Hz", "FRESH on the newest picture of each tick", 1.0, _see(FRESH)
        ),
        Fault(
            "camera-120hz",
            "a camera at 120 Hz",
            "FRESH on the newest picture of each tick; those between are passed over",
            1.0,
            _see(FRESH),
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
            _see(FRESH),
        ),
        Fault(
            "clock-jump",
            "the ROS clock jumps to 100 s, back to 50 s, and to the system's again",
            "each jump empties memory; ticks keep to the steady clock; FRESH goes on",
            1.0,
            must_happen=("clock_jump",),
        ),
        Fault(
            "subscriber-stops",
            "a reliable subscriber of ~/tick and ~/trajectory stops reading (SIGSTOP)",
            "no publish waits for it: FRESH goes on",
            2.0,
            _see(FRESH),
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
            "memory is empty from the start of a tick on; FRESH goes on",
            1.0,
            must_happen=("reset_memory",),
        ),
        Fault(
            "instruction-change",
            "another instruction at ten arbitrary moments within ticks",
            "memory is empty from the start of a tick on; HOLD_BUSY while the prompt is read; FRESH goes on",
            1.0,
            must_happen=("instruction",),
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
            "stops recording, says so in /diagnostics (ERROR) and goes on: FRESH",
            1.0,
            _see(FRESH),
            ends_record=True,
        ),
    )
}
"""In the order of `vla-edge inject all`."""

COVERED = (
    Covered(
        "the engine's process hangs for longer than engine.stall_timeout_ms",
        "FAULT; it is replaced as a dead one is",
        "test/nodes/test_edge_engine.py::"
        "test_an_engine_that_hangs_for_too_long_is_replaced_while_ticks_go_on",
    ),
    Covered(
        "the engine's process dies more often than engine.restart_limit",
        "FAULT until it is configured again; ~/enable is refused",
        "test/nodes/test_edge_engine.py::"
        "test_it_is_replaced_so_often_and_then_stays_a_fault_until_configured_again",
    ),
    Covered(
        "every pass would take 45 ms",
        "it is stopped at its deadline (HOLD_LATE) or refused; no later tick is HOLD_BUSY because of it",
        "test/nodes/test_edge_engine.py::test_a_pass_that_cannot_end_in_time_is_stopped_and_keeps_no_tick_busy",
    ),
    Covered(
        "one pass of 80 ms among passes of 20 ms",
        "admission does not shut: FRESH by the third tick after",
        "test/control/test_controller.py::test_under_the_conformal_rule_one_hiccup_costs_no_refusal",
    ),
    Covered(
        "a checkpoint with a NaN among its weights (engine.backend numpy)",
        "is not configured and says why; nothing has moved",
        "test/nodes/test_nan_weights.py::test_a_checkpoint_with_a_nan_is_refused_at_configure",
    ),
    Covered(
        "bad images: wrong step, depth, empty, unknown encoding, wrong size",
        "each is refused, counted and named; the next good one is used",
        "test/nodes/test_edge_perceives.py::"
        "test_bad_images_are_refused_counted_and_warned_of_and_the_next_good_one_is_acted_upon",
    ),
    Covered(
        "joint_states or pictures stop while the arm moves",
        "SAFE_STOP, one braking point; goes on when they are back",
        "test/nodes/test_edge_moves.py::"
        "test_without_joint_states_or_camera_an_enabled_arm_is_stopped_and_goes_on_when_they_are_back",
    ),
    Covered(
        "SIGTERM or SIGINT while the arm moves",
        "the arm is brought to rest, then the node ends with exit code 0",
        "test/nodes/test_edge_ends.py::test_a_signal_brings_the_arm_to_rest_and_ends_the_node_cleanly",
    ),
    Covered(
        "a defect in the tick thread",
        "the arm is brought to rest, then the node ends with exit code 1 and says why",
        "test/nodes/test_edge_ends.py::"
        "test_a_defect_in_the_tick_thread_brings_the_arm_to_rest_and_ends_the_node_with_a_word",
    ),
)

PAGE_HEAD = """\
# Faults

Generated from `vla_edge_ros/evaluation/faults.py` by `python -m vla_edge_ros.evaluation.faults --write`.

    vla-edge inject engine-killed
    vla-edge inject all --param engine.backend=fake --param engine.model=fake:service_ms=5

`vla-edge inject FAULT ...` runs the real node in a ROS domain of its own, with a 640x480 camera at 60 Hz and
an enabled robot that stands still, and injects each fault once the node has settled. It prints the decisions
before, during and after, and ends with exit code 0 where all that the table says was kept, 1 where something
was not. The decisions are those of [decisions.md](decisions.md), as `~/tick` told them.

Whatever the fault, this must hold too:

- every tick is told once, and those that were wholly missed are counted (`skipped_ticks`);
- no hold outlasts `actions.max_hold_ms`: SAFE_STOP ends it;
- no frame is used twice, or after one that came later;
- FAULT only where the table says so;
- FRESH within 3 s of the end of the fault, or as the table says;
- at most two late publishes a fault more than in the bare loop beside the node. This measures the machine
  too: it wants one that is otherwise idle, and SCHED_FIFO granted.

## Injected
"""

PAGE_MIDDLE = """
Each row is a case of `test/nodes/test_inject.py`; those of `engine.backend cuda` are run by
`scripts/gpu_check.sh faults`. A fault that the engine in use cannot have is not injected: a line says so, and
it does not count as passed. A killed process leaves the shared memory of Fast DDS behind, about 20 MB in
/dev/shm: `fastdds shm clean` frees it.

## Not injected, and tested
"""


def page() -> str:
    """The text of docs/faults.md."""
    lines = ["| fault | what happens | seconds | what the node does |", "|---|---|---|---|"]
    lines += [f"| `{f.name}` | {_what(f)} | {f.seconds:g} | {f.node} |" for f in FAULTS.values()]
    others = ["| what happens | what the node does | test |", "|---|---|---|"]
    others += [f"| {row.what} | {row.node} | `{row.test}` |" for row in COVERED]
    return "\n".join([PAGE_HEAD, *lines, PAGE_MIDDLE, *others, ""])


def _what(fault: Fault) -> str:
    if fault.backends == BACKENDS:
        return fault.what
    return f"{fault.what}; engine.backend {' or '.join(fault.backends)}"


def main(argv: list[str] | None = None) -> int:
    """Write docs/faults.md, or say that it is out of date."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--write", action="store_true", help="write the file; otherwise only compare")
    path = share_directory() / "docs/faults.md"
    if parser.parse_args(argv).write:
        path.write_text(page(), encoding="utf-8")
    is_current = path.exists() and path.read_text(encoding="utf-8") == page()
    print(f"docs/faults.md: {'current' if is_current else 'out of date, run with --write'}")
    return 0 if is_current else 1


if __name__ == "__main__":
    sys.exit(main())
