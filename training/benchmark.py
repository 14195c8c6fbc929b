"""Measure `tiny-vla` in steps: `python -m training.benchmark`.

    python -m training.benchmark live --minutes 8      reach with the real node, in real time; an idle machine
    python -m training.benchmark                       every step that has no part yet, then the record

Each step leaves a part, PARTS/STEP.json; `live` leaves one for every 20 episodes. A call goes on from the
parts that are there; those of other weights, sources or machines are measured again. `record` puts the parts
into docs/benchmarks/tiny_vla.json and docs/findings.md.

Exit codes: 0 all went well; 1 a step failed, or a must is missed or was not measured; 2 parts that do not
belong together, one line; 3 time was up: call again; 130 Ctrl-C.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from training import UNFINISHED
from training.evaluate import CONDITIONS, evaluate
from training.record import EPISODES, MUSTS, into_page, judged, merge
from training.weights import weights_sha256
from vla_edge_ros.arguments import positive, whole
from vla_edge_ros.ending import exit_code
from vla_edge_ros.errors import UserError, reason_of
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

LIVE_EPISODES = 20
"""Of a part of `live`: about a minute and a half."""

_LIVE = "vla_edge_ros.nodes.policy_live"

_MAX_PAGE_BYTES = 1_000_000
_PACKAGES = ("numpy", "mujoco", "ros-rclpy", "vla_edge_ros")
_PART = (
    *("step", "weights_sha256", "sources_sha256", "device", "machine", "date", "versions", "wall_s"),
    "figures",
)
_SOURCES = (
    *("training/evaluate.py", "config/policies/tiny_vla*", "config/simulation/*"),
    *(f"vla_edge_ros/{name}/*.py" for name in ("actions", "control", "engine", "memory", "perception")),
    *("vla_edge_ros/simulation/*.py", "vla_edge_ros/nodes/edge_node.py", "vla_edge_ros/nodes/sink.py"),
    *("vla_edge_ros/nodes/simulat*.py", "vla_edge_ros/nodes/policy_live.py"),
)


def sources_sha256() -> str:
    """One hash of what the figures are of: the node on the CPU, the simulation and the conditions."""
    return files_sha256(Path(__file__).resolve().parents[1], _SOURCES)


def run_live(options: argparse.Namespace, until_s: float) -> bool:
    """Measure the episodes that have no part; returns whether all of them have one now."""
    for first in range(0, options.episodes, LIVE_EPISODES):
        path = options.parts / f"live-{first:03}.json"
        n = min(LIVE_EPISODES, options.episodes - first)
        if _is_measured(path, "live", options, n):
            continue
        if time.monotonic() > until_s:
            return False
        words = "--model", options.model, "--seed", first, "--episodes", n
        _write_part("live", path, options, lambda words=words: run_module(_LIVE, *words))
    return True


def run_condition(name: str, options: argparse.Namespace, until_s: float) -> bool:
    """Measure a condition of training.evaluate where it has no part; returns whether it has one now."""
    path = options.parts / f"{name}.json"
    if _is_measured(path, name, options, options.episodes):
        return True
    if time.monotonic() > until_s:
        return False

    def figures() -> dict:
        return next(iter(evaluate(options.model, options.episodes, options.processes, [name])))[1]

    _write_part(name, path, options, figures)
    return True


def write_record(options: argparse.Namespace, console: Console) -> int:
    """Merge the parts, write the record and print the verdicts; 0 where every must is met."""
    record = merge(read_parts(options.parts))
    require_current(record, sources_sha256(), options.parts)
    try:
        page = into_page(options.page, read_text(options.page, _MAX_PAGE_BYTES), record)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{options.page}: cannot be read: {reason_of(error)}; name the page of the record with --page"
        ) from None
    write_pages({options.record: json.dumps(record, indent=1) + "\n", options.page: page}, console)
    return report(judged(record), MUSTS, console)


def read_parts(folder: Path) -> list[dict]:
    """Every part in `folder`. Raises UserError for a file that is none."""
    paths = [("live", path) for path in sorted(folder.glob("live-[0-9][0-9][0-9].json"))]
    paths += [(name, folder / f"{name}.json") for name in CONDITIONS]
    return [read_part(path, step, _PART) for step, path in paths if path.exists()]


def _is_measured(path: Path, step: str, options: argparse.Namespace, n_episodes: int) -> bool:
    """Whether there is a part of so many episodes, these weights and sources, and this machine."""
    if not path.exists():
        return False
    part = read_part(path, step, _PART)
    found = part["figures"]["episodes"]
    n_found = found if isinstance(found, int) else len(found)
    current = weights_sha256(options.model), sources_sha256(), machine()["processor"], n_episodes
    return (part["weights_sha256"], part["sources_sha256"], part["device"], n_found) == current


def _write_part(step: str, path: Path, options: argparse.Namespace, measure: Callable[[], dict]) -> None:
    print(f"{step}: {path}", file=sys.stderr, flush=True)
    made_of = {"weights_sha256": weights_sha256(options.model), "sources_sha256": sources_sha256()}
    write_part(path, step, made_of, _PACKAGES, measure)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m training.benchmark", description=__doc__.partition("\n")[0]
    )
    steps = ["live", *CONDITIONS, "record"]
    parser.add_argument(
        "steps",
        nargs="*",
        metavar="STEP",
        choices=[*steps, []],  # the last stands for none, which argparse checks too
        help=f"{', '.join(steps)} (default: all)",
    )
    parser.add_argument("--model", default="tiny-vla", help="as engine.model (default: %(default)s)")
    parser.add_argument("--episodes", type=whole(1), default=EPISODES, help="of each (default: %(default)s)")
    parser.add_argument("--minutes", type=positive, default=600.0, help="begin nothing after so many")
    parser.add_argument("--processes", type=whole(1), default=os.cpu_count(), help="not of `live`")
    parser.add_argument("--parts", type=Path, default=Path("out/tiny_vla_parts"), help="folder of the parts")
    parser.add_argument("--record", type=Path, default=Path("docs/benchmarks/tiny_vla.json"))
    parser.add_argument(
        "--page", type=Path, default=Path("docs/findings.md"), help="gets the record's tables"
    )
    options = parser.parse_args(argv)
    kept = f"the parts in {options.parts} are kept: call again to go on"
    return exit_code("training.benchmark", lambda: _run_steps(options.steps or steps, options), kept)


def _run_steps(steps: Sequence[str], options: argparse.Namespace) -> int:
    console, code = Console(), 0
    until_s = time.monotonic() + 60 * options.minutes
    for step in steps:
        try:
            if step == "record":
                code = max(code, write_record(options, console))
            elif not (
                run_live(options, until_s) if step == "live" else run_condition(step, options, until_s)
            ):
                print(f"{step}: time is up; call again to go on", file=sys.stderr)
                return UNFINISHED
        except UserError as error:
            print(f"training.benchmark: {step}: {error}", file=sys.stderr)
            if step == "record":
                return 2
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
