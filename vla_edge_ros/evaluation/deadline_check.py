"""Measure the deadline contract in steps: `python -m vla_edge_ros.evaluation.deadline_check`.

    deadline_check live --minutes 30     the node under CPU hogs beside the bare loop; wants an idle machine
    deadline_check                       every step, then the record

Each step leaves a part, PARTS/STEP.json; `live` leaves one for every five minutes, and goes on from those
that are there. `record` puts the parts into docs/benchmarks/deadline.json and docs/deadline.md, and takes the
best-tuned `ema` from docs/benchmarks/admission.json.

Exit codes: 0 all went well; 1 a step failed, or a must is missed or was not measured; 2 parts that do not
belong together, one line.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypedDict

from rich.console import Console

from vla_edge_ros.arguments import positive, whole
from vla_edge_ros.errors import UserError, reason_of
from vla_edge_ros.evaluation import virtual_ticks
from vla_edge_ros.evaluation.admission_study import decision_us
from vla_edge_ros.evaluation.deadline_record import MUSTS, NOT_TUNED, STUDY_TICKS, TICKS, merge, page
from vla_edge_ros.evaluation.json_shape import check
from vla_edge_ros.evaluation.musts import report
from vla_edge_ros.evaluation.record_parts import (
    files_sha256,
    read_part,
    require_current,
    run_module,
    write_pages,
    write_part,
)
from vla_edge_ros.evaluation.run_document import machine
from vla_edge_ros.input import read_text

MINUTES, STRETCH_S = 30.0, 300.0
ACCELERATED_TICKS = TICKS // 2
"""Half an hour at 30 Hz is 54,000."""
DECISIONS = 20_000
_MOST_BYTES = 20_000_000

_PACKAGES = ("numpy", "ros-rclpy", "vla_edge_ros")
_PART = ("step", "sources_sha256", "device", "machine", "date", "versions", "wall_s", "figures")
_SOURCES = (
    *("actions/*.py", "control/*.py", "memory/*.py", "nodes/edge_node.py", "nodes/sink.py"),
    *("nodes/deadline_live.py", "evaluation/admission_*.py", "evaluation/virtual_*.py"),
)

Options = argparse.Namespace


class _Row(TypedDict):
    trace: str
    target: float
    ticks: int


class _Tried(_Row):
    rule: str
    goodput: float


class _Best(_Row):
    ema: float | None
    conformal: float


class _Tuned(TypedDict):
    rows: list[_Tried]
    best_ema: list[_Best]


def sources_sha256() -> str:
    """One hash of what the figures are of: the control loop, its node, and the simulation."""
    return files_sha256(Path(__file__).resolve().parents[1], _SOURCES)


def _accelerated(options: Options) -> dict:
    return virtual_ticks.accelerated(options.ticks)


def _recovery(options: Options) -> dict:
    return virtual_ticks.recovery()


def _decision(options: Options) -> dict:
    return decision_us(DECISIONS)


def _study(options: Options) -> dict:
    words = "--alone", "--ticks", options.study_ticks, "--processes", options.processes
    return run_module("vla_edge_ros.evaluation.admission_study", *words)


STEPS: dict[str, Callable[[Options], dict]] = {
    "accelerated": _accelerated,
    "recovery": _recovery,
    "decision": _decision,
    "study": _study,
}
"""Each returns its figures, or raises UserError. `live` comes before them."""


def run_live(options: Options) -> None:
    """Measure until the parts hold `options.minutes`; those of other sources or devices are removed."""
    while (left_s := 60 * options.minutes - _measured_s(options.parts)) >= 1:
        seconds = min(STRETCH_S, left_s)
        print(f"live: {left_s / 60:.0f} minutes to go", file=sys.stderr, flush=True)

        def stretch(options: Options, seconds: float = seconds) -> dict:
            return run_module("vla_edge_ros.nodes.deadline_live", "--seconds", seconds)

        number = max((int(path.stem[-3:]) for path in _live_paths(options.parts)), default=0) + 1
        _write_part("live", options.parts / f"live-{number:03}.json", stretch, options)


def _measured_s(parts: Path) -> float:
    total_s, current = 0.0, (sources_sha256(), machine()["processor"])
    for path in _live_paths(parts):
        part = read_part(path, "live", _PART)
        if (part["sources_sha256"], part["device"]) == current:
            total_s += part["figures"]["seconds"]
        else:
            path.unlink()
    return total_s


def _live_paths(parts: Path) -> list[Path]:
    return sorted(parts.glob("live-[0-9][0-9][0-9].json"))


def run_step(step: str, options: Options) -> None:
    """Run a step and write its part. What was there from before is gone even where it fails."""
    path = options.parts / f"{step}.json"
    path.unlink(missing_ok=True)
    _write_part(step, path, STEPS[step], options)


def _write_part(step: str, path: Path, measure: Callable[[Options], dict], options: Options) -> None:
    made_of = {"sources_sha256": sources_sha256()}
    write_part(path, step, made_of, _PACKAGES, lambda: measure(options))


def read_parts(folder: Path) -> list[dict]:
    """Every part in `folder`. Raises UserError for a file that is none."""
    others = [(step, folder / f"{step}.json") for step in STEPS]
    paths = [("live", path) for path in _live_paths(folder)]
    paths += [(step, path) for step, path in others if path.exists()]
    return [read_part(path, step, _PART) for step, path in paths]


def read_tuned(path: Path) -> Mapping:
    """What `admission_study --tune-ema` wrote to `path`, NOT_TUNED where there is no such file.

    Raises UserError for a file of anything else.
    """
    if not path.exists():
        return NOT_TUNED
    try:
        check(tuned := json.loads(read_text(path, _MOST_BYTES)), _Tuned)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: {reason_of(error)}; wanted is what admission_study --tune-ema --json wrote"
        ) from None
    return tuned


def write_record(options: Options, console: Console) -> int:
    """Merge the parts, write record and page, and print the verdicts; 0 where every must is met."""
    record = merge(read_parts(options.parts), read_tuned(options.tuned))
    require_current(record, sources_sha256(), options.parts)
    write_pages({options.record: json.dumps(record, indent=1) + "\n", options.page: page(record)}, console)
    return report(record, MUSTS, console)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure the deadline contract in steps.")
    parser.add_argument(
        "steps",
        nargs="*",
        metavar="STEP",
        choices=["live", *STEPS, "record", []],  # the last stands for none, which argparse checks too
        help=f"live, {', '.join(STEPS)}, record (default: all)",
    )
    parser.add_argument("--parts", type=Path, default=Path("out/deadline_parts"), help="folder of the parts")
    parser.add_argument(
        "--tuned",
        type=Path,
        default=Path("docs/benchmarks/admission.json"),
        help="what `admission_study --tune-ema --json` wrote (default: %(default)s)",
    )
    parser.add_argument("--record", type=Path, default=Path("docs/benchmarks/deadline.json"))
    parser.add_argument("--page", type=Path, default=Path("docs/deadline.md"))
    parser.add_argument("--minutes", type=positive, default=MINUTES, help="of `live` in all parts together")
    parser.add_argument(
        "--ticks", type=whole(1), default=ACCELERATED_TICKS, help="of `accelerated`, at least"
    )
    parser.add_argument("--study-ticks", type=whole(1), default=STUDY_TICKS, help="of each simulated trace")
    parser.add_argument("--processes", type=whole(1), default=2, help="of `study`")
    options = parser.parse_args(argv)
    console, code = Console(), 0
    for step in options.steps or ["live", *STEPS, "record"]:
        try:
            if step == "record":
                code = max(code, write_record(options, console))
                continue
            run_live(options) if step == "live" else run_step(step, options)
            print(f"{step}: done", file=sys.stderr, flush=True)
        except UserError as error:
            print(f"deadline_check: {step}: {error}", file=sys.stderr)
            if step == "record":
                return 2
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
