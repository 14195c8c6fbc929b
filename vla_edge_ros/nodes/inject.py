"""`vla-edge inject`: faults into the real node, and whether it does then what docs/faults.md says."""

import argparse
import json
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path

from rich.console import Console
from rich.table import Table

from vla_edge_ros import output
from vla_edge_ros.arguments import positive
from vla_edge_ros.engine.factory import cuda_obstacle
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation import run_document
from vla_edge_ros.evaluation.arguments import add_parameter_argument, given_parameters, refuse_own
from vla_edge_ros.evaluation.fault_verdict import Injection, broken, judge
from vla_edge_ros.evaluation.faults import FAULTS, Fault
from vla_edge_ros.evaluation.musts import LATE_ALLOWED
from vla_edge_ros.evaluation.recorded_run import RecordedRun
from vla_edge_ros.figures import in_words
from vla_edge_ros.nodes.fault_actions import INJECTORS
from vla_edge_ros.nodes.fault_rig import FaultRig
from vla_edge_ros.nodes.live_run import private_ros
from vla_edge_ros.parameters import validate_all

SETTLED_S = 0.4
"""How long the node moves the robot undisturbed before a fault, once it does."""
AFTER_S = 0.2
"""How long it is watched from its first fresh action after the fault on."""
OWN = {"camera.is_compressed": False, "control.bare_loop": True, "control.record_path": ""}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "faults",
        nargs="+",
        metavar="FAULT",
        choices=(*FAULTS, "all"),
        help=f"one after another in one run: all, or of {', '.join(FAULTS)}",
    )
    parser.add_argument("--seconds", type=positive, help="how long each lasts (default: docs/faults.md)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all figures")
    add_parameter_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Inject and print the table; 0 if all was kept that the table of faults says, 1 if not."""
    console = Console()
    given = given_parameters(args)
    refuse_own(given, OWN, "inject")
    if args.json is not None:
        output.prepare(args.json)
    values = validate_all(given | OWN)
    names = FAULTS if "all" in args.faults else dict.fromkeys(args.faults)
    asked_for = [fault for fault in FAULTS.values() if fault.name in names]
    obstacles = {fault.name: why for fault in asked_for if (why := obstacle(fault, values["engine.backend"]))}
    for name, why in obstacles.items():
        console.print(f"{name}: not injected: {why}", style="yellow", highlight=False, soft_wrap=True)
    faults = [fault for fault in asked_for if fault.name not in obstacles]
    if not faults:
        raise UserError(f"nothing was injected: {next(iter(obstacles.values()))}")
    verdicts, lives = inject(faults, values, args.seconds, console)
    document = {
        "kind": "inject",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": run_document.machine(),
        "parameters": values,
        "faults": verdicts,
        "not_injected": obstacles,
        "publishes": late_publishes(lives, verdicts),
    }
    document["passed"] = document["publishes"]["is_kept"] is not False and all(
        verdict["is_kept"] for verdict in verdicts
    )
    if args.json is not None:
        output.write_text(args.json, json.dumps(document, indent=1) + "\n")
    _print(document, console)
    return 0 if document["passed"] else 1


def inject(
    faults: list[Fault], values: dict, seconds: float | None, console: Console
) -> tuple[list[dict], list[RecordedRun]]:
    """The verdict on each fault, and what was recorded by the nodes that could record themselves to the end.

    Raises UserError where no node can be started.
    """
    verdicts: list[dict] = []
    lives: list[RecordedRun] = []
    with private_ros() as folder:
        for sharing in sharing_a_node(faults):
            is_inside = any(fault.is_inside for fault in sharing)
            module = "vla_edge_ros.nodes." + ("fault_edge_node" if is_inside else "edge_node")
            with FaultRig(values, module, Path(tempfile.mkdtemp(dir=folder)), sharing[0].record) as rig:
                is_fifo = rig.is_fifo
                found, is_alive = _one_after_another(rig, sharing, seconds, console)
                verdicts += found
                if not is_alive:
                    continue
                rig.stop()
                if not sharing[0].ends_record:
                    lives.append(RecordedRun.from_lines(rig.record))
                    for verdict in found:
                        verdict.update(_lateness(lives[-1], verdict, is_fifo))
    return verdicts, lives


def sharing_a_node(faults: list[Fault]) -> list[list[Fault]]:
    """The faults by node: most share one, those that end a record another, and some have their own."""
    groups: dict[object, list[Fault]] = {}
    for fault in faults:
        shared = fault.ends_record, fault.record
        groups.setdefault(fault.name if fault.has_own_node else shared, []).append(fault)
    return list(groups.values())


def obstacle(fault: Fault, backend: str) -> str:
    """Why the fault cannot be injected into this engine, in one line; empty where it can."""
    if backend in fault.backends:
        return ""
    wanted = " or ".join(fault.backends)
    why = cuda_obstacle() if fault.backends == ("cuda",) else ""
    return f"it needs engine.backend {wanted}, which is {backend}" + (f"; no cuda here: {why}" if why else "")


def _lateness(life: RecordedRun, verdict: dict, is_fifo: bool) -> dict:
    """Late publishes from the beginning of a fault to its end, and how many are allowed; None: any number.

    Without SCHED_FIFO what else runs on the machine makes them, and makes them in bursts; a fault that stops
    the node itself makes its own.
    """
    began_ns, ended_ns = verdict["began_ns"], verdict["ended_ns"]
    late = sum(tick["is_late"] for tick in life.ticks if began_ns <= tick["published_ns"] <= ended_ns)
    is_judged = is_fifo and not FAULTS[verdict["fault"]].skips_ticks
    allowed = life.end["bare_loop"]["late"] + LATE_ALLOWED if is_judged else None
    return {"late_publishes": late, "late_allowed": allowed}


def _one_after_another(
    rig: FaultRig, faults: list[Fault], seconds: float | None, console: Console
) -> tuple[list[dict], bool]:
    """The verdicts, and whether the node was there to the end: without it the faults left are broken too."""
    verdicts = []
    for index, fault in enumerate(faults):
        try:
            with console.status(f"{fault.name}: {fault.what}"):
                injection = _around(rig, fault, seconds or fault.seconds)
        except UserError as error:
            return verdicts + [broken(left, str(error)) for left in faults[index:]], False
        verdicts.append(judge(injection, rig.values["actions.max_hold_ms"]))
    return verdicts, True


def _around(rig: FaultRig, fault: Fault, seconds: float) -> Injection:
    """Let the node settle, inject the fault, and watch it recover."""
    rig.until(lambda: bool(rig.ticks) and rig.ticks[-1].is_moving, "move the robot")
    mark = len(rig.ticks)
    rig.spin(SETTLED_S)
    began_ns = time.monotonic_ns()
    observed = INJECTORS[fault.name](rig, seconds)
    ended_ns = time.monotonic_ns()
    rig.spin_until(lambda: rig.ticks[-1].received_ns > ended_ns and rig.ticks[-1].is_moving, fault.recovery_s)
    rig.spin(AFTER_S)
    return Injection(fault, rig.since(mark), began_ns, ended_ns, observed)


def late_publishes(lives: list[RecordedRun], verdicts: list[dict]) -> dict:
    """Late publishes beside the bare loop's over recorded runs; `is_kept` is None where there is none.

    allowed: of all faults together whose node was recorded. beyond: by how much one alone had more than it
    may.
    """
    late = sum(tick["is_late"] for life in lives for tick in life.ticks)
    bare = sum(life.end["bare_loop"]["late"] for life in lives)
    judged = [verdict for verdict in verdicts if "late_publishes" in verdict]
    allowed = bare + LATE_ALLOWED * len(judged)
    beyond = {
        verdict["fault"]: verdict["late_publishes"] - verdict["late_allowed"]
        for verdict in judged
        if verdict["late_allowed"] is not None and verdict["late_publishes"] > verdict["late_allowed"]
    }
    return {
        "ticks": sum(len(life.ticks) for life in lives),
        "late": late,
        "bare_loop_late": bare,
        "allowed": allowed,
        "beyond": beyond,
        "is_kept": late <= allowed and not beyond if lives else None,
    }


def _print(document: dict, console: Console) -> None:
    table = Table(
        "fault", "", "decisions", "verdict", title=f"vla-edge inject, {document['machine']['processor']}"
    )
    for verdict in document["faults"]:
        recovery, longest = verdict["recovery_ticks"], verdict["longest_without_fresh"]
        late = f", {verdict['late_publishes']} late" if "late_publishes" in verdict else ""
        sides = (
            "kept" if verdict["is_kept"] else "[red]BROKEN[/red]",
            f"{in_words(longest, 0, 'ticks')} without FRESH{late}",
            "no FRESH again" if recovery is None else f"FRESH at tick {recovery + 1}",
        )
        for part, side in zip(("before", "during", "after"), sides, strict=True):
            name = verdict["fault"] if part == "before" else ""
            table.add_row(name, part, _counts_in_words(verdict[part]), side, end_section=part == "after")
    console.print(table)
    for verdict in document["faults"]:
        for what, is_kept in verdict["checks"].items():
            if not is_kept:
                console.print(f"{verdict['fault']}: not so: {what}", style="red", highlight=False)
    publishes = document["publishes"]
    if publishes["is_kept"] is None:
        console.print("late publishes: not recorded to the end")
    else:
        console.print(
            f"late publishes: {publishes['late']} of {publishes['ticks']}, bare loop "
            f"{publishes['bare_loop_late']}, allowed {publishes['allowed']}: "
            + ("kept" if publishes["is_kept"] else "[red]MISSED[/red]")
        )
    for name, n_more in publishes["beyond"].items():
        console.print(f"{name}: {n_more} more late publishes than allowed", style="red", highlight=False)


def _counts_in_words(counts: dict[str, int]) -> str:
    return ", ".join(f"{decision} {count}" for decision, count in counts.items())
