"""The ladder on simulated traces: what forgetting frames for time gains, and what it and deciding cost.

    python -m vla_edge_ros.evaluation.ladder_study --ticks 2e5
    python -m vla_edge_ros.evaluation.ladder_study --decisions    what deciding costs, on this machine

Admission and ladder are the node's own, in simulated time. docs/admission.md has the figures.
"""

import argparse
import sys
import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from vla_edge_ros.control.admission import Admission
from vla_edge_ros.control.ladder import NO_STEPS, LadderConfig, Step
from vla_edge_ros.engine.interface import FRAME_TOKENS, MAX_ACTION_TOKENS, StageTimes
from vla_edge_ros.evaluation.admission_simulation import CUTOFF_NS, end_pass
from vla_edge_ros.evaluation.admission_study import TARGETS, config, ticks
from vla_edge_ros.evaluation.admission_traces import Trace, make_trace
from vla_edge_ros.figures import percentiles

CAPACITY_FRAMES = 64
SHARES = (0.2, 0.5, 0.8)
"""Of a pass at full memory, the time that goes with what it attends to. Of the NumPy engine's `tiny` it is
0.47 at 1024 slots and 0.78 at 4096."""
NAMES = ("spells_3000_150", "spells_600_60", "drift_ramp", "clustered", "slow_at_random")
WITH = LadderConfig(forget_frames=4)

RETAINED_FRAMES = 120
DECISIONS = 20_000


@dataclass(slots=True)
class Climbed:
    """Ticks FRESH and missed, frames forgotten for time, and the mean of the frames that a FRESH pass saw."""

    fresh: int = 0
    misses: int = 0
    forgotten: int = 0
    mean_frames: float = 0.0


def climb(admission: Admission, trace: Trace, share: float) -> Climbed:
    """A memory of CAPACITY_FRAMES that starts empty; a frame enters with every pass that ends in time.

    A pass over n of N frames takes 1 - share + share * n / N of the trace's time; one that is not done at the
    cut-off is stopped there.
    """
    climbed, n_frames, seen = Climbed(), 0, 0
    for whole_ns in (trace.service_ms * 1e6).tolist():
        is_miss = False
        verdict = admission.ask(0, CUTOFF_NS, FRAME_TOKENS * n_frames, n_frames)
        if verdict.is_admitted:
            n_frames -= verdict.forgets_frames
            climbed.forgotten += verdict.forgets_frames
            service_ns = int(whole_ns * (1 - share + share * n_frames / CAPACITY_FRAMES))
            is_miss = end_pass(admission, service_ns)
            climbed.misses += is_miss
            if not is_miss:
                climbed.fresh += 1
                seen += n_frames
                n_frames = min(CAPACITY_FRAMES, n_frames + 1)
        admission.settle(is_miss)
    climbed.mean_frames = seen / max(1, climbed.fresh)
    return climbed


class Decided(NamedTuple):
    """A tick of which nearly every one comes to `step`, and the time that it has for that."""

    what: str
    step: Step
    budget_ms: float
    ladder: LadderConfig


_FRAMES, _BOTH = (LadderConfig(RETAINED_FRAMES, least_tokens=n) for n in (0, 7))
# A whole pass takes 20 ms, 18.5 without one of its tokens and 11.6 over the frames that stay.
DECIDED = (
    Decided("a whole pass fits", Step.FULL, 31.0, _BOTH),
    Decided("tokens are left out", Step.FEWER_TOKENS, 17.0, LadderConfig(RETAINED_FRAMES, least_tokens=1)),
    Decided("frames alone may be forgotten", Step.FEWER_FRAMES, 15.0, _FRAMES),
    Decided("frames, for tokens do not suffice", Step.FEWER_FRAMES, 15.0, _BOTH),
    Decided("nothing fits", Step.HOLD, 5.0, _BOTH),
)


def decision_us(case: Decided, n: int) -> dict:
    """Percentiles of what a tick's admission takes here where it comes to the step: ask, observe and settle.

    RETAINED_FRAMES are retained at every tick anew. What is begun ends in time and misses nothing.
    """
    admission = Admission(config("conformal"), case.ladder)
    for n_frames in (*range(RETAINED_FRAMES), *range(RETAINED_FRAMES)):
        admission.ask(0, CUTOFF_NS, FRAME_TOKENS * n_frames)
        admission.observe(*_pass(1.0, n_frames, MAX_ACTION_TOKENS))
        admission.settle(False)
    budget_ns, context_tokens = round(case.budget_ms * 1e6), FRAME_TOKENS * RETAINED_FRAMES
    durations_us = []
    for pace in np.random.default_rng(0).normal(1, 0.015, n).tolist():
        start_ns = time.perf_counter_ns()
        verdict = admission.ask(0, budget_ns, context_tokens, RETAINED_FRAMES, n_tokens=MAX_ACTION_TOKENS)
        took_ns = time.perf_counter_ns() - start_ns
        n_tokens = MAX_ACTION_TOKENS - verdict.holds_tokens
        done = _pass(pace, RETAINED_FRAMES - verdict.forgets_frames, n_tokens)
        start_ns = time.perf_counter_ns()
        if verdict.is_admitted:
            admission.observe(*done)
        admission.settle(False)
        took_ns += time.perf_counter_ns() - start_ns
        if verdict.step is case.step:
            durations_us.append(took_ns / 1e3)
    return percentiles(durations_us)


def _pass(pace: float, n_frames: int, n_tokens: int) -> tuple[StageTimes, int]:
    """Stages and whole time of a pass: 20 ms over RETAINED_FRAMES, 9 of which go with the frames."""
    fullness = n_frames / RETAINED_FRAMES
    prefill_ms, step_ms = 3 + 3 * fullness, (6 + 6 * fullness) / MAX_ACTION_TOKENS
    stages = StageTimes(*(round(pace * ms * 1e6) for ms in (0.2, 1.3, prefill_ms, n_tokens * step_ms)))
    return stages, stages.total_ns + round(pace * 0.5e6)


def _print_decisions() -> None:
    for case in DECIDED:
        us = decision_us(case, DECISIONS)
        print(
            f"{case.what:34} p50 {us['p50']:5.1f}, p99 {us['p99']:5.1f}, max {us['max']:7.1f} us "
            f"in {us['n']:,} ticks",
            flush=True,
        )


def main(argv: list[str] | None = None) -> int:
    """Print a row for each trace, share and target, without and with the ladder; or what deciding takes."""
    parser = argparse.ArgumentParser(prog="ladder_study", description=__doc__.partition("\n")[0])
    parser.add_argument("--ticks", type=ticks, default=200_000, help="of each trace; 1e6 may be said")
    parser.add_argument(
        "--decisions", action="store_true", help="tell what deciding takes on this machine, and nothing else"
    )
    args = parser.parse_args(argv)
    if args.decisions:
        _print_decisions()
        return 0
    for name in NAMES:
        trace = make_trace(name, args.ticks)
        for share in SHARES:
            for target in TARGETS:
                row = [f"{name:16} share {share:.1f} target {target:5.1%}"]
                for ladder in (NO_STEPS, WITH):
                    done = climb(Admission(config("conformal", target), ladder), trace, share)
                    misses = done.misses / args.ticks / target
                    row.append(
                        f"fresh {done.fresh / args.ticks:6.1%}, misses {misses:5.3f} x, "
                        f"{done.mean_frames:4.1f} frames, {done.forgotten:6d} forgotten"
                    )
                print(" | ".join(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
