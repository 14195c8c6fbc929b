"""The ladder on simulated traces: what forgetting frames for time gains, and what it costs.

    python -m vla_edge_ros.evaluation.ladder_study --ticks 2e5

Admission and ladder are the node's own, in simulated time. docs/admission.md has the figures.
"""

import argparse
import sys
from dataclasses import dataclass

from vla_edge_ros.control.admission import Admission
from vla_edge_ros.control.ladder import NO_STEPS, LadderConfig
from vla_edge_ros.engine.interface import FRAME_TOKENS
from vla_edge_ros.evaluation.admission_simulation import CUTOFF_NS, end_pass
from vla_edge_ros.evaluation.admission_study import TARGETS, config, ticks
from vla_edge_ros.evaluation.admission_traces import Trace, make_trace

CAPACITY_FRAMES = 64
SHARES = (0.2, 0.5, 0.8)
"""Of a pass at full memory, the time that goes with what it attends to. Of the NumPy engine's `tiny` it is
0.47 at 1024 slots and 0.78 at 4096."""
NAMES = ("spells_3000_150", "spells_600_60", "drift_ramp", "clustered", "slow_at_random")
WITH = LadderConfig(forget_frames=4)


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


def main(argv: list[str] | None = None) -> int:
    """Print a row for each trace, share and target, without and with the ladder."""
    parser = argparse.ArgumentParser(prog="ladder_study", description=__doc__.partition("\n")[0])
    parser.add_argument("--ticks", type=ticks, default=200_000, help="of each trace; 1e6 may be said")
    args = parser.parse_args(argv)
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
