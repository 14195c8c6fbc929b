"""The demo with a simulated arm: the loop closed around the real node, then the report and a picture of it.

The picture is drawn after the run from the joints that were measured, so that it costs the loop nothing.
"""

import argparse
import json
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from vla_edge_ros import output
from vla_edge_ros.control.settings import policy_of
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.arguments import refuse_own
from vla_edge_ros.evaluation.bags import open_bag
from vla_edge_ros.evaluation.report import write_report
from vla_edge_ros.nodes.demo_evaluation import evaluate
from vla_edge_ros.nodes.demo_recording import OF_AN_ARM
from vla_edge_ros.nodes.demo_screen import DemoScreen
from vla_edge_ros.nodes.simulated_run import Episode, SimulatedRun, figures_of, run_simulated
from vla_edge_ros.parameters import validate_all
from vla_edge_ros.progress import told
from vla_edge_ros.simulation.commanded import arm_policy_file
from vla_edge_ros.simulation.episode_film import film
from vla_edge_ros.simulation.model_actor import DEPLOYMENT
from vla_edge_ros.simulation.scene import JOINTS
from vla_edge_ros.simulation.spectator import Moment
from vla_edge_ros.simulation.told import seed_for

SEED = 0
IMAGE_TOPIC = "/image"


def run(args: argparse.Namespace, given: dict, console: Console) -> int:
    """given: the node's parameters of the command line. Raises UserError."""
    document_path, report_path = args.out / "demo.json", args.out / "report.html"
    picture_path, bag_path = (args.out / name for name in OF_AN_ARM)
    for file in (document_path, report_path, picture_path, bag_path):
        output.prepare(file)
    instruction = given.pop("instruction.initial", "")
    with tempfile.TemporaryDirectory() as folder:
        own = {"control.record_path": str(Path(folder) / "run.jsonl"), "control.bare_loop": True}
        refuse_own(given, own, "the demo")
        values = validate_all(DEPLOYMENT | {"actions.policy_file": arm_policy_file()} | given | own)
        _check_joints(values)
        episodes = _episodes(args.task, args.seed, instruction, args.seconds or 0.0)
        recording = Path(folder) / bag_path.name
        with DemoScreen(console, len(episodes)) as screen:
            simulated = run_simulated(
                episodes, values, screen.warn, screen.ended, screen.look, screen.start, recording
            )
        shutil.move(recording, bag_path)
    recorded = simulated.recorded
    screen.summarise(simulated)
    with open_bag(bag_path) as bag:
        document, strips = evaluate(bag, IMAGE_TOPIC, values, recorded, (), console)
    with told("drawing the picture of the episodes"):
        picture = film(_moments(simulated))
    output.write_bytes(picture_path, picture)
    document |= {
        "picture": picture_path.name,
        "episodes": [asdict(e) | figures_of(recorded.ticks, e) for e in simulated.episodes],
        "camera_hz": simulated.camera_hz,
        "skipped_steps": simulated.skipped_steps,
        "refused": simulated.refused,
    }
    output.write_text(document_path, json.dumps(document))
    with told("drawing the report"):
        write_report(report_path, document, strips, picture)
    console.print(
        f"written: {report_path} (open it in a browser), {picture_path}, {document_path}, {bag_path}",
        highlight=False,
        soft_wrap=True,
    )
    return 0 if document["replay_is_equal"] else 1


def _check_joints(values: dict) -> None:
    """Raises UserError where the policy moves a joint that the simulated arm does not have."""
    arm = [*JOINTS, "gripper"]
    moved = [joint for group in policy_of(values).groups for joint in group.joints]
    if strange := [joint for joint in moved if joint not in arm]:
        file = values["actions.policy_file"]
        raise UserError(f"{file}: moves {', '.join(strange)}; the simulated arm has {', '.join(arm)}")


def _episodes(task: str | None, seed: int | None, instruction: str, seconds: float) -> list[Episode]:
    """An instruction is for a table that has what it names, unless a seed is given."""
    if instruction:
        task = task or "reach"
        return [
            Episode(task, seed_for(instruction, task, SEED) if seed is None else seed, instruction, seconds)
        ]
    seed = SEED if seed is None else seed
    if task is not None:
        return [Episode(task, seed, seconds=seconds)]
    return [Episode("reach", seed), Episode("switch", seed, seconds=seconds)]


def _moments(simulated: SimulatedRun) -> list[Moment]:
    """What was seen of the episodes, each sighting with the newest decision then."""
    moments: list[Moment] = []
    ticks = iter(simulated.recorded.ticks)
    tick, decision = next(ticks, None), ""
    for sighting in simulated.sightings:
        while tick is not None and tick["published_ns"] <= sighting.received_ns:
            decision, tick = tick["decision"], next(ticks, None)
        if any(
            episode.began_ns <= sighting.received_ns <= episode.ended_ns for episode in simulated.episodes
        ):
            moments.append(sighting.to_moment(decision))
    return moments
