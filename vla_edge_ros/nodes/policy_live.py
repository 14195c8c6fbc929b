"""Episodes of the simulation with the real node in the loop: success, decisions, and what each tick took.

`vla-edge simulate` runs the same loop. The step `live` of training/benchmark.py runs this in parts.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from vla_edge_ros import output
from vla_edge_ros.arguments import whole
from vla_edge_ros.ending import exit_code
from vla_edge_ros.evaluation.run_document import row
from vla_edge_ros.nodes.simulated_run import Episode, SimulatedEpisode, figures_of, run_simulated
from vla_edge_ros.parameters import validate_all
from vla_edge_ros.simulation.commanded import arm_policy_file
from vla_edge_ros.simulation.model_actor import DEPLOYMENT
from vla_edge_ros.simulation.tasks import TASKS


def measure(model: str, task: str, seeds: range) -> dict:
    """Figures of the task's episodes by these seeds, in real time. Raises UserError.

    tick_ms: of each tick of an episode, from its scheduled start to its last publish; pass_ms: of each pass,
    from its submission to its end.
    """
    with tempfile.TemporaryDirectory() as folder:
        own = {
            "engine.model": model,
            "actions.policy_file": arm_policy_file(),
            "control.record_path": str(Path(folder) / "run.jsonl"),
        }
        episodes = [Episode(task, seed) for seed in seeds]
        run = run_simulated(episodes, validate_all(DEPLOYMENT | own), _tell, lambda episode: None)
    ticks = run.recorded.ticks
    own_ticks = [tick for tick in ticks if any(_is_in(tick, episode) for episode in run.episodes)]
    passes_ms = [row(tick)["pass_ms"] for tick in own_ticks]
    return {
        "task": task,
        "engine": run.recorded.run["engine"],
        "episodes": [
            {"seed": episode.seed, "has_succeeded": episode.has_succeeded, "seconds": episode.seconds}
            | {"distance_m": episode.distance_m}
            | figures_of(ticks, episode)
            for episode in run.episodes
        ],
        "camera_hz": run.camera_hz,
        "skipped_steps": run.skipped_steps,
        "refused": run.refused,
        "tick_ms": [(tick["published_ns"] - tick["scheduled_ns"]) / 1e6 for tick in own_ticks],
        "pass_ms": [pass_ms for pass_ms in passes_ms if pass_ms is not None],
    }


def _is_in(tick: dict, episode: SimulatedEpisode) -> bool:
    return episode.began_ns <= tick["scheduled_ns"] < episode.ended_ns


def _tell(line: str) -> None:
    print(line, file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    """Write the figures; 2 with a line where the loop cannot be run."""
    parser = argparse.ArgumentParser(prog="policy_live", description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="tiny-vla", help="as engine.model (default: %(default)s)")
    parser.add_argument("--task", choices=list(TASKS), default="reach", help="default: %(default)s")
    parser.add_argument("--seed", type=whole(0), default=0, help="of the first episode (default: 0)")
    parser.add_argument("--episodes", type=whole(1), default=20, help="how many (default: %(default)s)")
    parser.add_argument("--json", type=Path, required=True, metavar="PATH")
    args = parser.parse_args(argv)
    return exit_code("policy_live", lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    output.prepare(args.json)
    figures = measure(args.model, args.task, range(args.seed, args.seed + args.episodes))
    output.write_text(args.json, json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
