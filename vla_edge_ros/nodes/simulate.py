"""`vla-edge simulate`: the loop closed around the real node, episode after episode."""

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from vla_edge_ros import output
from vla_edge_ros.arguments import whole
from vla_edge_ros.engine.presets import TRAINED
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation import run_document
from vla_edge_ros.evaluation.arguments import add_parameter_argument, given_parameters, refuse_own
from vla_edge_ros.figures import in_words, proportion
from vla_edge_ros.nodes.simulated_run import (
    Episode,
    SimulatedEpisode,
    SimulatedRun,
    figures_of,
    run_simulated,
)
from vla_edge_ros.parameters import validate_all
from vla_edge_ros.share import share_directory
from vla_edge_ros.simulation.commanded import arm_policy_file
from vla_edge_ros.simulation.model_actor import DEPLOYMENT
from vla_edge_ros.simulation.tasks import TASKS

_OWN = "control.record_path"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task", choices=list(TASKS), default="reach", help="default: %(default)s")
    parser.add_argument("--episodes", type=whole(1), default=3, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=whole(0), default=0, help="of the first episode (default: 0)")
    parser.add_argument("--expert", action="store_true", help="let the scripted expert act, not the model")
    add_parameter_argument(parser)
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all figures")


def run(args: argparse.Namespace) -> int:
    console = Console()
    given = given_parameters(args)
    refuse_own(given, [_OWN], "simulate")
    if args.expert and given:
        raise UserError("--param: the expert has no parameters of the node; leave them or --expert out")
    if args.json is not None:
        output.prepare(args.json)
    episodes = [Episode(args.task, seed) for seed in range(args.seed, args.seed + args.episodes)]
    with tempfile.TemporaryDirectory() as folder, console.status("starting the simulation") as status:
        values = None
        if not args.expert:
            own = {"actions.policy_file": arm_policy_file(), _OWN: str(Path(folder) / "run.jsonl")}
            values = validate_all(DEPLOYMENT | own | given)
            _tell_of_missing_weights(values["engine.model"], console)

        def warn(line: str) -> None:
            console.print(line, style="yellow", highlight=False, markup=False, soft_wrap=True)

        def show(episode: SimulatedEpisode) -> None:
            status.update(f"{args.task}: seed {episode.seed} {_outcome(episode)}")

        simulated = run_simulated(episodes, values, warn, show)
    document = _document(args.task, simulated)
    if args.json is not None:
        output.write_text(args.json, json.dumps(document, indent=1) + "\n")
    console.print(_table(document, simulated))
    success = document["success"]
    low, high = success["ci95"]
    console.print(
        f"success {success['value']:.2f} of {success['episodes']} (95 %: {low:.2f} to {high:.2f}), "
        f"camera {simulated.camera_hz:.1f} Hz, joint_states {simulated.joint_states_hz:.1f} Hz, "
        f"{simulated.skipped_steps} steps of physics skipped, {simulated.refused} messages refused",
        highlight=False,
        soft_wrap=True,
    )
    return 0


def _tell_of_missing_weights(model: str, console: Console) -> None:
    if model in TRAINED and not (share_directory() / TRAINED[model]).is_dir():
        console.print(
            f"{TRAINED[model]} is missing: {model} is not trained here, its actions mean nothing "
            "(docs/training.md)",
            style="yellow",
            highlight=False,
            soft_wrap=True,
        )


def _document(task: str, simulated: SimulatedRun) -> dict:
    recorded = simulated.recorded
    actor = {"actor": "expert"}
    if recorded is not None:
        run = recorded.run
        actor = {"actor": "model", "engine": run["engine"], "parameters": run["parameters"]}
    return {
        "kind": "simulate",
        "machine": run_document.machine(),
        "task": task,
        **actor,
        "success": proportion([episode.has_succeeded for episode in simulated.episodes]),
        "camera_hz": simulated.camera_hz,
        "joint_states_hz": simulated.joint_states_hz,
        "skipped_steps": simulated.skipped_steps,
        "refused": simulated.refused,
        "episodes": [
            asdict(episode) | (figures_of(recorded.ticks, episode) if recorded is not None else {})
            for episode in simulated.episodes
        ],
    }


def _table(document: dict, simulated: SimulatedRun) -> Table:
    table = Table(title=f"{document['task']}, by the {document['actor']}")
    for name in ("seed", "task", "simulated", "from the goal", "FRESH", "late publishes"):
        table.add_column(name, justify="left" if name == "task" else "right")
    for row, episode in zip(document["episodes"], simulated.episodes, strict=True):
        fresh = row["fresh"] / row["ticks"] if row.get("ticks") else None
        table.add_row(
            str(episode.seed),
            _outcome(episode),
            in_words(episode.seconds, 1, "s"),
            in_words(None if episode.distance_m is None else 100 * episode.distance_m, 1, "cm"),
            in_words(None if fresh is None else 100 * fresh, 1, "%"),
            in_words(row.get("late")),
        )
    return table


def _outcome(episode: SimulatedEpisode) -> str:
    return "succeeded" if episode.has_succeeded else "failed"
