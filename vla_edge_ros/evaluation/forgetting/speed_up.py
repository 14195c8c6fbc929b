"""How much sooner two processes are done with an evaluation than one.

    python -m vla_edge_ros.evaluation.forgetting.speed_up [RECORDING] [--seeds 40] [--rounds 4]

The same jobs of `vla-edge evaluate` by one worker and by two, of one BLAS thread each, in turn and each first
in every other round, so that a machine that slows down favours neither. The start of the workers counts.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vla_edge_ros.arguments import whole
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.bags import BagRefused
from vla_edge_ros.evaluation.forgetting.footage import read_footage
from vla_edge_ros.evaluation.forgetting.jobs import Job, Plan, run_job
from vla_edge_ros.evaluation.forgetting.kept_footage import save_footage
from vla_edge_ros.evaluation.forgetting.pool import run_local
from vla_edge_ros.share import share_directory

CAPACITY = 8
POLICIES = ("fifo", "novelty")


def seconds(jobs: Sequence[Job], workers: int) -> float:
    """From nothing to the last row. Raises UserError where a job was given up."""
    began = time.perf_counter()
    for outcome in run_local(jobs, run_job, workers):
        if outcome.error:
            raise UserError(f"{outcome.job.name}: {outcome.error}")
    return time.perf_counter() - began


def measure(recording: Path, seeds: int, rounds: int) -> list[tuple[float, float]]:
    """Seconds of one worker and of two, by round."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "footage.npz")
        save_footage(file, read_footage(recording))
        jobs = [Job(Plan(), recording.name, str(file), seed, CAPACITY, POLICIES) for seed in range(seeds)]
        found = []
        for place in range(rounds):
            order = (1, 2) if place % 2 == 0 else (2, 1)
            taken = {workers: seconds(jobs, workers) for workers in order}
            one, two = taken[1], taken[2]
            found.append((one, two))
            print(f"one worker {one:.1f} s, two {two:.1f} s: {one / two:.2f} x", flush=True)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m vla_edge_ros.evaluation.forgetting.speed_up", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("recording", nargs="?", type=Path, help="default: the sample")
    parser.add_argument("--seeds", type=whole(1), default=40, help="jobs (default: %(default)s)")
    parser.add_argument("--rounds", type=whole(1), default=4, help="default: %(default)s")
    arguments = parser.parse_args(argv)
    recording = arguments.recording or share_directory() / "recordings/sample"
    try:
        ratios = [one / two for one, two in measure(recording, arguments.seeds, arguments.rounds)]
    except (BagRefused, UserError) as error:
        print(f"speed_up: {error}", file=sys.stderr)
        return 2
    jobs = f"{arguments.seeds} jobs of {', '.join(POLICIES)} in a memory of {CAPACITY} frames"
    print(f"{recording.name}, {jobs}, {len(ratios)} rounds: {np.median(ratios):.2f} x in the median")
    return 0


if __name__ == "__main__":
    sys.exit(main())
