"""Admission on service times that runs have recorded: what the node's rule makes of a machine as it was.

    python -m vla_edge_ros.evaluation.recorded_trace out/demo.json --ticks 1e6

The passes of a run come in their order, and again from the first one behind the last. A machine that is never
late at its own cut-off asks nothing of the rule, so it is tried at cut-offs that the run's passes exceed too.
docs/admission.md has the figures.
"""

import argparse
import json
import multiprocessing
import shlex
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from vla_edge_ros import output
from vla_edge_ros.arguments import positive, whole
from vla_edge_ros.control.admission import Admission
from vla_edge_ros.control.miss_account import most_misses
from vla_edge_ros.ending import exit_code
from vla_edge_ros.engine.interface import FRAME_TOKENS, STAGES
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.admission_simulation import simulate
from vla_edge_ros.evaluation.admission_study import TARGETS, config, ticks
from vla_edge_ros.evaluation.admission_traces import CUTOFF_MS, Trace
from vla_edge_ros.evaluation.explain.recorded_ticks import read_ticks
from vla_edge_ros.evaluation.run_document import machine
from vla_edge_ros.figures import counted, percentiles

QUANTILES = (0.5, 0.9, 0.99, 0.999)
"""Of a run's passes: cut-offs at which half of them, 10 %, 1 % and 0.1 % are late."""
_LONGEST_NS = 3600 * 10**9


@dataclass(frozen=True, slots=True)
class RecordedPasses:
    """
    service_ms: (P,) from submission to end, in order; of a pass that was stopped what it would have taken at
        least, so that beyond the run's own cut-off they say little.
    context_tokens: (P,) of the frames that were retained then.
    cutoff_ms: the run's own, after the start of a tick.
    n_stopped: how many of the passes were stopped.
    n_refused: ticks in which no pass was begun for want of time, which therefore has none here.
    """

    service_ms: np.ndarray
    context_tokens: np.ndarray
    cutoff_ms: float = CUTOFF_MS
    n_stopped: int = 0
    n_refused: int = 0

    def cutoffs_ms(self) -> list[float]:
        """The run's own, and those of QUANTILES that are tighter; longest first."""
        found = np.quantile(self.service_ms, QUANTILES, method="inverted_cdf")
        tighter = {float(ms) for ms in found if 0 < ms < self.cutoff_ms}
        return [self.cutoff_ms, *sorted(tighter, reverse=True)]

    def trace(self, cutoff_ms: float, n_ticks: int) -> Trace:
        """The passes again and again, for `simulate`, whose cut-off is CUTOFF_MS.

        Times are scaled to it: admission only ever compares times with each other.
        """
        is_late = self.service_ms > cutoff_ms
        columns = self.service_ms * (CUTOFF_MS / cutoff_ms), is_late.astype(float), self.context_tokens
        return Trace(*(np.resize(column, n_ticks) for column in columns))


def read_passes(path: Path) -> RecordedPasses:
    """The passes of what control.record_path, `vla-edge demo` or `replay --json` wrote; of a large ring the
    newest. Raises UserError where there are none.
    """
    run = read_ticks(path)
    done = [
        (work, tick.get("retained_frames", 0))
        for tick in run.ticks
        for work in tick.get("work", [])
        if _is_timed_pass(work)
    ]
    if not done:
        raise UserError(
            f"{path}: no pass ended in this run, so it has no service times; wanted is one whose ticks begin "
            "passes"
        )
    service_ns = np.array([_service_ns(path, work) for work, _ in done])
    tokens = np.array([FRAME_TOKENS * n_frames for _, n_frames in done])
    refused = sum(map(_is_refused, run.ticks))
    n_stopped = sum(work.get("is_aborted", False) for work, _ in done)
    return RecordedPasses(service_ns / 1e6, tokens, _cutoff_ms(path, run.parameters), n_stopped, refused)


def _is_refused(tick: dict) -> bool:
    """A pass was in question, and none was begun; of a hold for too long the decision does not say it."""
    return tick.get("step") is not None and tick.get("submitted_work") is None


def _is_timed_pass(work: dict) -> bool:
    """No prompt, and no pass that found no whole frame; older versions did not write every field."""
    has_run = work.get("is_aborted", False) or work.get("frame_index", 0) is not None
    return work.get("kind") == "frame" and has_run and {"submitted_ns", "finished_ns"} <= work.keys()


def _service_ns(path: Path, work: dict) -> int:
    """As admission is told of it."""
    remaining = work.get("remaining", {})
    to_come_ns = sum(remaining.get(f"{stage}_ns", 0) for stage in STAGES)
    service_ns = work["finished_ns"] - work["submitted_ns"] + to_come_ns
    if not 0 <= service_ns <= _LONGEST_NS:
        raise UserError(f"{path}: no recorded run: a pass is said to have taken {service_ns / 1e9:g} s")
    return service_ns


def _cutoff_ms(path: Path, parameters: dict) -> float:
    names = "control.deadline_ms", "control.margin_ms"
    if not all(name in parameters for name in names):
        return CUTOFF_MS
    deadline_ms, margin_ms = (parameters[name] for name in names)
    if deadline_ms <= margin_ms:
        raise UserError(f"{path}: no recorded run: control.deadline_ms is within control.margin_ms")
    return deadline_ms - margin_ms


def tried(job: tuple[str, RecordedPasses, float, float], n_ticks: int) -> dict:
    """`conformal` on the passes of a run; the job: its name, its passes, cut-off in ms, and target.

    late: share of passes beyond the cut-off. Of beginning every pass the misses are `late`, and goodput is
    what is left of 1.
    """
    name, passes, cutoff_ms, target = job
    trace = passes.trace(cutoff_ms, n_ticks)
    outcome = simulate(Admission(config("conformal", target)), trace)
    late = float(trace.miss_probability.mean())
    return {
        "run": name,
        "cutoff_ms": cutoff_ms,
        "target": target,
        **asdict(outcome),
        "misses_over_target": outcome.misses / n_ticks / target,
        "goodput": outcome.fresh / n_ticks,
        "refused": outcome.refusals / n_ticks,
        "late": late,
        "all_admitted_over_target": late / target,
        "all_admitted_goodput": 1 - late,
    }


def summarise(rows: list[dict]) -> dict:
    """What the rule is judged by."""
    affordable = [row["refused"] for row in rows if row["all_admitted_over_target"] < 1]
    return {
        "misses_over_target_max": max(row["misses_over_target"] for row in rows),
        "refused_where_affordable_max": max(affordable, default=0.0),
    }


def _rows(jobs: list[tuple], n_ticks: int, n_processes: int) -> Iterator[dict]:
    one = partial(tried, n_ticks=n_ticks)
    if n_processes == 1:
        yield from map(one, jobs)
        return
    # Not forked: NumPy has threads, and a fork of theirs may hang.
    with ProcessPoolExecutor(n_processes, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(one, jobs)


def _described(name: str, passes: RecordedPasses) -> dict:
    return {
        "run": name,
        "passes": len(passes.service_ms),
        "stopped": passes.n_stopped,
        "refused": passes.n_refused,
        "cutoff_ms": passes.cutoff_ms,
        "service_ms": percentiles(passes.service_ms),
    }


def _print_run(run: dict) -> None:
    times = run["service_ms"]
    told = ", ".join(f"{name} {times[name]:.2f}" for name in ("p50", "p99", "max"))
    without = f"; {counted(run['refused'], 'tick')} refused, which have no time" if run["refused"] else ""
    print(
        f"{run['run']}: {run['passes']:,} passes, {told} ms, {run['stopped']:,} of them stopped at the "
        f"cut-off of {run['cutoff_ms']:.2f} ms{without}"
    )


def _print_row(row: dict) -> None:
    print(
        f"{row['run']} at {row['cutoff_ms']:6.2f} ms, {row['target']:5.1%}: "
        f"misses {row['misses_over_target']:6.3f} x target, goodput {row['goodput']:6.1%}, "
        f"refused {row['refused']:6.1%}, longest {row['longest_refusal']:5,} ticks; every pass begun: "
        f"misses {row['all_admitted_over_target']:7.3f} x, goodput {row['all_admitted_goodput']:6.1%}",
        flush=True,
    )


def main(argv: list[str] | None = None) -> int:
    """Print a row for each run, cut-off and target; 1 where a bound is broken, 2 for runs without passes."""
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(prog="recorded_trace", description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="what `vla-edge explain` reads")
    parser.add_argument(
        "--ticks", type=ticks, default=100_000, help="so many, by repeating the run; 1e6 may be said"
    )
    parser.add_argument(
        "--cutoff-ms",
        type=positive,
        nargs="+",
        metavar="MS",
        help="instead of the run's own and, where they are tighter, its p50, p90, p99 and p99.9",
    )
    parser.add_argument("--processes", type=whole(1), default=1)
    parser.add_argument("--json", type=Path, metavar="PATH")
    args = parser.parse_args(argv)
    return exit_code("recorded_trace", lambda: _run(args, argv))


def _run(args: argparse.Namespace, argv: list[str]) -> int:
    if args.json is not None:
        output.prepare(args.json)
    runs = {str(path): read_passes(path) for path in args.runs}
    described = [_described(name, passes) for name, passes in runs.items()]
    for run in described:
        _print_run(run)
    jobs = [
        (name, passes, cutoff_ms, target)
        for name, passes in runs.items()
        for cutoff_ms in args.cutoff_ms or passes.cutoffs_ms()
        for target in TARGETS
    ]
    rows = []
    for row in _rows(jobs, args.ticks, args.processes):
        _print_row(row)
        rows.append(row)
    summary = summarise(rows)
    for name, value in summary.items():
        print(f"{name}: {value}")
    if args.json is not None:
        command = shlex.join(["python", "-m", "vla_edge_ros.evaluation.recorded_trace", *argv])
        head = {"command": command, "machine": machine(), "ticks": args.ticks}
        document = head | summary | {"runs": described, "rows": rows}
        output.write_text(args.json, json.dumps(document, indent=1) + "\n")
    is_kept = all(row["misses"] <= row["target"] * row["ticks"] + most_misses(row["target"]) for row in rows)
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
