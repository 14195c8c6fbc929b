"""Success against injected latency, by what is done in the meantime: the real loop on a virtual clock.

    python -m vla_edge_ros.simulation.latency_study --json out/latency.json
    python -m vla_edge_ros.simulation.latency_study --json out/latency.json --pattern spells --task track

A pass takes 15 ms and what is injected: always, or in spells. A call goes on from the points that --json has,
where they are of as many episodes. docs/findings.md has the figures.
"""

import argparse
import json
import multiprocessing
import os
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vla_edge_ros import output
from vla_edge_ros.arguments import whole
from vla_edge_ros.errors import UserError
from vla_edge_ros.figures import proportion
from vla_edge_ros.simulation.closed_loop import ClosedLoop, LoopEpisode
from vla_edge_ros.simulation.commanded import arm_policy_file
from vla_edge_ros.simulation.model_actor import DEPLOYMENT
from vla_edge_ros.simulation.tasks import TASKS

BASE_MS = 15.0
LATENCIES_MS = (0, 25, 50, 75, 100, 200)
_SHARES = ("fresh", "misses", "refused")
CLEAR_S, SLOW_S = 3.0, 0.5
"""Means of the exponential lengths of clear and slow spells."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What is done about a pass that is late, and in the ticks without one."""

    parameters: dict[str, object]
    has_admission: bool = True
    repeats: bool = False


_LATE = {"actions.late_result": "next_tick"}
_FOR_EVER = {"actions.ttl_ms": 1000.0, "actions.max_hold_ms": 10_000.0}

RULES = {
    "hold, admission": Rule({}),
    "hold, admission 3 %": Rule({"admission.target_miss_rate": 0.03}),
    "hold, every pass": Rule({}, has_admission=False),
    "late action, admission": Rule(_LATE),
    "late action, every pass": Rule(_LATE, has_admission=False),
    "repeat, every pass": Rule(_LATE | _FOR_EVER, has_admission=False, repeats=True),
}
"""`hold`: a pass that is late is stopped and the arm stays where it was sent, the node's default.
`late action`: it is used in the next tick that finds it, within its time to live.
`repeat`: so it is up to a second later, and in every tick until then the last action is sent again, without
end: what a loop without deadlines does."""


def constant(latency_ms: float) -> Callable[[int], int]:
    service_ns = round((BASE_MS + latency_ms) * 1e6)
    return lambda now_ns: service_ns


def spells(latency_ms: float, hours: float = 2.0) -> Callable[[int], int]:
    """Clear and slow in turn, the same spells in every call; slow from the last one on."""
    rng = np.random.default_rng(0)
    n = round(3600 * hours / (CLEAR_S + SLOW_S))
    lengths_s = rng.exponential((CLEAR_S, SLOW_S), (n, 2)).ravel()
    ends_ns = (np.cumsum(lengths_s) * 1e9).astype(np.int64).tolist()
    base, slow = constant(0), constant(latency_ms)
    return lambda now_ns: (slow if bisect_right(ends_ns, now_ns) % 2 else base)(now_ns)


PATTERNS = {"constant": constant, "spells": spells}


@dataclass(frozen=True, slots=True)
class Point:
    task: str
    pattern: str
    latency_ms: int
    rule: str

    @property
    def name(self) -> str:
        return f"{self.task} | {self.pattern} | {self.latency_ms} | {self.rule}"


def measure(job: tuple[Point, str, int]) -> tuple[str, dict]:
    """A point's name and figures; job: the point, `engine.model`, episodes 0, 1, ... of its task."""
    point, model, n_episodes = job
    rule = RULES[point.rule]
    own = {
        "engine.model": model,
        "engine.blas_threads": 1,
        "actions.policy_file": arm_policy_file(),
    }
    loop = ClosedLoop(
        DEPLOYMENT | own | rule.parameters,
        PATTERNS[point.pattern](point.latency_ms),
        rule.has_admission,
        rule.repeats,
    )
    try:
        return point.name, figures(loop.run(point.task, range(n_episodes)))
    finally:
        loop.close()


def figures(episodes: list[LoopEpisode]) -> dict:
    """Success, shares of ticks, how far the arm went blind, and where failed episodes ended, by seed."""
    ticks = sum(episode.ticks for episode in episodes)
    return {
        "success": proportion([episode.has_succeeded for episode in episodes]),
        **{
            f"{name}_per_tick": sum(getattr(episode, name) for episode in episodes) / ticks
            for name in _SHARES
        },
        "failed_at_cm": {
            episode.seed: round(100 * episode.distance_m, 1)
            for episode in episodes
            if not episode.has_succeeded
        },
        "blind_cm_per_s": 100 * sum(episode.blind_m for episode in episodes) / (ticks / 30),
    }


def table(results: dict[str, dict]) -> str:
    """The points as Markdown."""
    columns = "task", "pattern", "injected, ms", "rule", "success (95 %)", "n", *_SHARES, "blind, cm/s"
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for name, found in results.items():
        low, high = found["success"]["ci95"]
        shares = (f"{100 * found[f'{key}_per_tick']:.1f} %" for key in _SHARES)
        success = f"{found['success']['value']:.2f} ({low:.2f} to {high:.2f})"
        cells = success, str(found["success"]["episodes"]), *shares, f"{found['blind_cm_per_s']:.1f}"
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def study(points: Iterable[Point], model: str, n_episodes: int, processes: int, path: Path) -> dict:
    """The figures of these points; those that `path` has of as many episodes are not measured again."""
    names = {point.name: point for point in points}
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    missing = [
        (point, model, n_episodes)
        for name, point in names.items()
        if known.get(name, {}).get("success", {}).get("episodes") != n_episodes
    ]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for name, found in pool.imap_unordered(measure, missing):
            known[name] = found
            output.write_text(path, json.dumps(known, indent=1) + "\n")
            print(table({name: found}).splitlines()[-1], flush=True)
    return {name: known[name] for name in names}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="latency_study", description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="tiny-vla", help="as engine.model (default: %(default)s)")
    parser.add_argument("--task", choices=list(TASKS), default="reach", help="default: %(default)s")
    parser.add_argument("--pattern", choices=list(PATTERNS), default="constant", help="default: %(default)s")
    parser.add_argument("--latency-ms", type=whole(0), action="append", help=f"default: {LATENCIES_MS}")
    parser.add_argument("--rule", choices=list(RULES), action="append", help="default: all")
    parser.add_argument("--episodes", type=whole(1), default=100, help="of each point (default: 100)")
    parser.add_argument("--processes", type=whole(1), default=os.cpu_count())
    parser.add_argument("--json", type=Path, required=True, metavar="PATH")
    args = parser.parse_args(argv)
    points = [
        Point(args.task, args.pattern, latency_ms, rule)
        for latency_ms in args.latency_ms or LATENCIES_MS
        for rule in args.rule or RULES
    ]
    try:
        output.prepare(args.json)
        print(table(study(points, args.model, args.episodes, args.processes, args.json)))
    except UserError as error:
        print(f"latency_study: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
