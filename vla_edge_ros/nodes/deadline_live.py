"""The real node with CPU hogs on every core, beside the bare loop.

The step `live` of evaluation/deadline_check.py runs it in stretches of some minutes.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from vla_edge_ros import output
from vla_edge_ros.arguments import positive
from vla_edge_ros.control import settings
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.arguments import add_parameter_argument, given_parameters
from vla_edge_ros.evaluation.recorded_run import RecordedRun
from vla_edge_ros.evaluation.run_document import summarise
from vla_edge_ros.nodes.fault_actions import cpu_hogs
from vla_edge_ros.nodes.fault_rig import FaultRig
from vla_edge_ros.nodes.inject import OWN
from vla_edge_ros.nodes.live_run import private_ros
from vla_edge_ros.parameters import validate_all

MOST_TOLD = 100


def measure(values: dict, seconds: float) -> dict:
    """Figures of a node that moves a robot at rest while every core is busy. Raises UserError."""
    with private_ros() as folder, FaultRig(values, "vla_edge_ros.nodes.edge_node", folder) as rig:
        rig.until(lambda: bool(rig.ticks) and rig.ticks[-1].is_moving, "move the robot")
        is_fifo = os.sched_getscheduler(rig.edge.pid) == os.SCHED_FIFO
        priority = os.sched_getparam(rig.edge.pid).sched_priority if is_fifo else 0
        cpu_hogs(rig, seconds)
        rig.stop()
        recorded = RecordedRun.from_lines(rig.record)
    if "bare_loop" not in recorded.end:
        raise UserError("the node could not record itself to the end: is the disk full?")
    summary = summarise(recorded.ticks)
    deadline_ns = settings.ns(values["control.deadline_ms"])
    counts = "ticks", "fresh", "late_publishes", "skipped_ticks", "misses"
    return {
        "seconds": seconds,
        "hogs": len(os.sched_getaffinity(0)),
        "fifo_priority": priority,
        **{name: summary[name] for name in (*counts, "decision_counts", "start_error_ms")},
        "late_wakes": sum(_woke_late(tick, deadline_ns) for tick in recorded.ticks),
        "late_ticks": [_late(tick) for tick in recorded.ticks if tick["is_late"]][:MOST_TOLD],
        "bare_loop": recorded.end["bare_loop"],
        "engine": recorded.run["engine"],
    }


def _woke_late(tick: dict, deadline_ns: int) -> bool:
    """Whether its wait for the cut-off ended after its effect time: what counts as late in the bare loop."""
    return tick["woke_ns"] is not None and tick["woke_ns"] > tick["scheduled_ns"] + deadline_ns


def _late(tick: dict) -> dict:
    """Where a late tick lost its time: before it began, in its wait for the cut-off, or in publishing."""
    since_ms = {
        f"{name}_ms": (tick[f"{name}_ns"] - tick["scheduled_ns"]) / 1e6
        for name in ("started", "woke", "published")
        if tick[f"{name}_ns"] is not None
    }
    return {"tick": tick["tick"], "decision": tick["decision"], **since_ms}


def main(argv: list[str] | None = None) -> int:
    """Write the figures; 2 with a line where the node cannot be measured."""
    parser = argparse.ArgumentParser(prog="deadline_live", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=positive, default=300.0)
    parser.add_argument("--json", type=Path, required=True, metavar="PATH")
    add_parameter_argument(parser)
    args = parser.parse_args(argv)
    try:
        output.prepare(args.json)
        figures = measure(validate_all(given_parameters(args) | OWN), args.seconds)
        output.write_text(args.json, json.dumps(figures, indent=1) + "\n")
    except UserError as error:
        print(f"deadline_live: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
