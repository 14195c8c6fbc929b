"""How the faults are made that a node's record must survive, as in `fault_actions`."""

import os
import resource
import signal
import time
from pathlib import Path

from diagnostic_msgs.msg import DiagnosticStatus

from vla_edge_ros.control.ring import segments_in
from vla_edge_ros.engine.linux import process_memory
from vla_edge_ros.evaluation.recorded_run import RecordedRun
from vla_edge_ros.nodes.fault_engine_actions import Observed
from vla_edge_ros.nodes.fault_rig import FaultRig

ENDED_S = 5.0
"""How long a node's process may take to end once it is killed, and its engine with it."""
TOLD_S = 5.0
"""How long the node may take to say that recording stopped."""


def node_killed(rig: FaultRig, seconds: float) -> Observed:
    """Of a node that records into a ring."""
    engine, last = rig.engine_pid(), rig.ticks[-1].tick
    os.kill(rig.edge.pid, signal.SIGKILL)
    give_up_s = time.monotonic() + ENDED_S
    while (rig.edge.is_running or process_memory(engine)) and time.monotonic() < give_up_s:
        time.sleep(0.01)
    has_ended = not process_memory(engine)
    time.sleep(seconds)
    left, segments = RecordedRun.load(rig.record).ticks, segments_in(rig.record)
    newest = left[-1]["tick"] if left else -1
    ticks_a_second = 1000 / rig.values["control.period_ms"]
    mark = len(rig.ticks)
    rig.start()
    first = rig.since(mark)[:1]
    return {
        "its engine ended with it": has_ended,
        "the new node was disabled until ~/enable": [tick.is_enabled for tick in first] == [False],
        "its memory was empty": [tick.retained_frames for tick in first] == [0],
        "the ring has its ticks up to a second before": newest > last - ticks_a_second,
        "the new node goes on in the ring": set(segments) < set(segments_in(rig.record)),
    }


def disk_full(rig: FaultRig, seconds: float) -> Observed:
    """The file that the node is writing to cannot grow."""
    soft, hard = resource.prlimit(rig.edge.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(rig.edge.pid, resource.RLIMIT_FSIZE, (_in_writing(rig.record).stat().st_size, hard))

    def is_told() -> bool:
        status = rig.status("recorder")
        return (
            status is not None
            and status.level == DiagnosticStatus.ERROR
            and "recording stopped" in status.message
        )

    try:
        is_said = rig.spin_until(is_told, TOLD_S)
        rig.spin(seconds)
    finally:
        resource.prlimit(rig.edge.pid, resource.RLIMIT_FSIZE, (soft, hard))
    return {
        "/diagnostics says that recording stopped": is_said,
        "what was recorded before can be read": bool(RecordedRun.load(rig.record).ticks),
    }


def _in_writing(record: Path) -> Path:
    """Of a ring the newest segment."""
    return segments_in(record)[-1].path if record.is_dir() else record
