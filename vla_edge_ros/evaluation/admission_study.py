"""Admission on simulated traces: misses against the target, and goodput against the best that could be known.

    python -m vla_edge_ros.evaluation.admission_study --ticks 1e6 --json docs/benchmarks/admission.json

The rules are the node's own, in simulated time. docs/admission.md has the figures.
"""

import argparse
import json
import multiprocessing
import shlex
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from vla_edge_ros import output
from vla_edge_ros.arguments import whole
from vla_edge_ros.control.admission import Admission, AdmissionConfig
from vla_edge_ros.control.miss_account import most_misses
from vla_edge_ros.engine.interface import StageTimes
from vla_edge_ros.evaluation.admission_simulation import simulate
from vla_edge_ros.evaluation.admission_traces import BENIGN, CUTOFF_MS, HICCUP_MS, TRACES, make_trace
from vla_edge_ros.evaluation.run_document import machine
from vla_edge_ros.figures import in_words, percentiles
from vla_edge_ros.parameters import defaults

TARGETS = (0.01, 0.001)
WITHOUT_TARGET = ("ema", "fixed")
EMA_GRID = tuple(product((0.05, 0.2, 1.0), (0.9, 0.99, 1.0), (8, 100, 1000)))
"""Weights, decays and probe intervals that the reference's rule is tuned over, in hindsight."""
EMA_TICKS = 200_000
"""Of each trace that it is tuned on: `drift_walk` is first too slow at tick 137,000."""


def config(estimator: str, target: float = 0.001) -> AdmissionConfig:
    """The defaults of the node, but for the rule and the target."""
    values = defaults()
    return AdmissionConfig(
        values["admission.ema_alpha"],
        values["admission.decay"],
        values["admission.probe_after_ticks"],
        estimator,
        target,
    )


def study(name: str, n_ticks: int, beside: tuple[str, ...] = WITHOUT_TARGET) -> list[dict]:
    """The rows of one trace: `conformal` at each target, and the rules `beside` it, which know none."""
    trace = make_trace(name, n_ticks)
    without_target = {rule: simulate(Admission(config(rule)), trace) for rule in beside}
    rows = []
    for target in TARGETS:
        outcomes = {"conformal": simulate(Admission(config("conformal", target)), trace), **without_target}
        causal = trace.causal_goodput(target)
        for rule, outcome in outcomes.items():
            rows.append(
                {
                    "trace": name,
                    "target": target,
                    "rule": rule,
                    **asdict(outcome),
                    "misses_over_target": outcome.misses / n_ticks / target,
                    "goodput": outcome.fresh / n_ticks,
                    "causal_goodput": causal,
                    "all_admitted_over_target": float(trace.miss_probability.mean()) / target,
                }
            )
    return rows


def best_ema(name: str, n_ticks: int) -> list[dict]:
    """By target, the goodput of the best of EMA_GRID that misses no more, and that of `conformal`.

    late: share of passes that are too slow. Where it is 0 every rule is right that begins all of them.
    """
    trace = make_trace(name, n_ticks)
    tuned = [simulate(Admission(AdmissionConfig(*values, "ema")), trace) for values in EMA_GRID]
    rows = []
    for target in TARGETS:
        kept = [outcome.fresh for outcome in tuned if outcome.misses <= target * n_ticks]
        ours = simulate(Admission(config("conformal", target)), trace)
        rows.append(
            {
                "trace": name,
                "target": target,
                "ticks": n_ticks,
                "late": float((trace.service_ms > CUTOFF_MS).mean()),
                "ema": max(kept) / n_ticks if kept else None,
                "conformal": ours.fresh / n_ticks,
            }
        )
    return rows


def recovery_ticks() -> int:
    """Ticks that one pass of 80 ms in steady 20 ms costs; raises ValueError where one was refused."""
    trace = make_trace("steady", 400)
    trace.service_ms[200] = HICCUP_MS
    outcome = simulate(admission := Admission(config("conformal")), trace)
    if admission.refusals:
        raise ValueError(f"{admission.refusals} passes were refused after one hiccup")
    return outcome.ticks - outcome.fresh


def decision_us(n: int = 20_000) -> dict:
    """Percentiles of the time that one tick's admission takes here: ask, observe and settle."""
    admission = Admission(config("conformal"))
    rng = np.random.default_rng(0)
    stages = StageTimes(200_000, 600_000, 6_000_000, 12_000_000)
    durations_us = []
    for total_ns in rng.normal(20e6, 0.3e6, n).astype(int).tolist():
        start_ns = time.perf_counter_ns()
        admission.ask(0, round(CUTOFF_MS * 1e6), 2048)
        admission.observe(stages, total_ns)
        admission.settle(False)
        durations_us.append((time.perf_counter_ns() - start_ns) / 1e3)
    return percentiles(durations_us)


def summarise(rows: list[dict]) -> dict:
    """What the rule is judged by, over the rows of `conformal`."""
    ours = [row for row in rows if row["rule"] == "conformal"]
    affordable = [row for row in ours if row["all_admitted_over_target"] < 1]
    return {
        "misses_over_target_max": max(row["misses_over_target"] for row in ours),
        "goodput_over_causal_min": min(
            row["goodput"] / row["causal_goodput"] for row in ours if row["trace"] in BENIGN
        ),
        "refusals_where_affordable_max": max(
            (row["refusals"] / row["ticks"] for row in affordable), default=0.0
        ),
        "longest_refusal_over_earning_ticks_max": max(row["longest_refusal"] * row["target"] for row in ours),
    }


def _studied(n_ticks: int, n_processes: int, beside: tuple[str, ...]) -> Iterator[list[dict]]:
    # Not forked: NumPy has threads, and a fork of theirs may hang.
    with ProcessPoolExecutor(n_processes, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(partial(study, n_ticks=n_ticks, beside=beside), TRACES)


def ticks(text: str) -> int:
    ticks = float(text)
    if not (ticks >= 1 and ticks.is_integer()):
        raise argparse.ArgumentTypeError(f"{text} is no whole number of at least 1")
    return int(ticks)


def _print_rows(rows: list[dict]) -> None:
    for row in rows:
        print(
            f"{row['trace']:16} {row['target']:6.1%} {row['rule']:9} "
            f"misses {row['misses_over_target']:8.3f} x target, goodput {row['goodput']:6.1%} "
            f"(causal {row['causal_goodput']:6.1%}), refused {row['refusals'] / row['ticks']:6.1%}, "
            f"longest {row['longest_refusal']}",
            flush=True,
        )


def _print_tuned(rows: list[dict]) -> None:
    for row in rows:
        best = in_words(None if row["ema"] is None else 100 * row["ema"], 2, "%")
        is_tested = "" if row["late"] else "; no pass is late, so no target was tested"
        print(
            f"{row['trace']:16} {row['target']:6.1%} over {row['ticks']:,} ticks: goodput of ema {best}, "
            f"of conformal {in_words(100 * row['conformal'], 2, '%')}{is_tested}"
        )


def main(argv: list[str] | None = None) -> int:
    """Print a row for each trace, target and rule; 1 where misses exceed the bound of a target."""
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(prog="admission_study", description=__doc__.partition("\n")[0])
    parser.add_argument("--ticks", type=ticks, default=100_000, help="of each trace; 1e6 may be said")
    parser.add_argument("--processes", type=whole(1), default=1)
    parser.add_argument("--alone", action="store_true", help="`conformal` without the other rules beside it")
    parser.add_argument("--tune-ema", action="store_true", help="tune the reference's rule on benign traces")
    parser.add_argument("--json", type=Path, metavar="PATH")
    args = parser.parse_args(argv)
    if args.json is not None:
        output.prepare(args.json)
    start_s = time.monotonic()
    rows = []
    for found in _studied(args.ticks, args.processes, () if args.alone else WITHOUT_TARGET):
        _print_rows(found)
        rows += found
    document = {
        "command": shlex.join(["python", "-m", "vla_edge_ros.evaluation.admission_study", *argv]),
        "machine": machine(),
        "ticks": args.ticks,
        **summarise(rows),
        "recovery_ticks": recovery_ticks(),
        "decision_us": decision_us(),
        "seconds": round(time.monotonic() - start_s, 1),
        "rows": rows,
    }
    if args.tune_ema:
        tuned = [best_ema(name, EMA_TICKS) for name in BENIGN]
        document["best_ema"] = [row for found in tuned for row in found]
    for name, value in document.items():
        if name not in ("rows", "best_ema"):
            print(f"{name}: {value}")
    _print_tuned(document.get("best_ema", []))
    if args.json is not None:
        output.write_text(args.json, json.dumps(document, indent=1))
    kept = all(
        row["misses"] <= row["target"] * row["ticks"] + most_misses(row["target"])
        for row in rows
        if row["rule"] == "conformal"
    )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
