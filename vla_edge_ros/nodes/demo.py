"""`vla-edge demo`: the real node and a camera, each in its own process, over DDS and in real time.

The run is recorded, and replayed offline at its own times under every eviction policy: under its own that
must give its own decisions again, which is checked; the others show what they would have remembered.
"""

import argparse
import json
import tempfile
from pathlib import Path

from rich.console import Console

from vla_edge_ros import output
from vla_edge_ros.arguments import positive
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation import run_document
from vla_edge_ros.evaluation.arguments import add_run_arguments, given_parameters
from vla_edge_ros.evaluation.bags import TRUNCATED, Bag, TopicInfo, open_bag
from vla_edge_ros.evaluation.film import film_frames
from vla_edge_ros.evaluation.filmstrip import FilmFrame
from vla_edge_ros.evaluation.recorded_run import RecordedRun
from vla_edge_ros.evaluation.report import write_report
from vla_edge_ros.evaluation.summary import summary_table
from vla_edge_ros.evaluation.virtual_run import replay_recorded
from vla_edge_ros.nodes.live_run import LiveRun, run_live
from vla_edge_ros.parameters import validate_all
from vla_edge_ros.share import share_directory

COMPARED = ("fifo", "sliding_window", "semantic", "novelty")
"""Policies that the demo replays beside the node's own; `vla-edge evaluate` compares all of them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bag", type=Path, help="recording to play as the camera (default: the bundled one)")
    parser.add_argument("--topic", help="image topic of the recording (default: the only one)")
    add_run_arguments(parser)
    parser.add_argument("--seconds", type=positive, default=12.0, help="how long (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("out"), help="folder for demo.json and report.html (default: out)"
    )


def run(args: argparse.Namespace) -> int:
    console = Console()
    document_path, report_path = args.out / "demo.json", args.out / "report.html"
    for file in (document_path, report_path):
        output.prepare(file)
    path = args.bag or share_directory() / "recordings/sample"
    with open_bag(path) as bag, tempfile.TemporaryDirectory() as folder:
        topic = bag.pick_image_topic(args.topic)
        own = {
            "camera.is_compressed": topic.is_compressed,
            "control.record_path": str(Path(folder) / "run.jsonl"),
            "control.bare_loop": True,
        }
        given = given_parameters(args)
        for name in own.keys() & given.keys():
            raise UserError(f"--param {name}: the demo sets it itself; leave it out")
        values = validate_all(given | own)
        live = LiveRun(path, topic, values, args.seconds, plays_instructions=args.instruction is None)
        recorded = run_live(live, console)
        if not recorded.frames:
            raise UserError(f"{path}: the node could use none of the images on {topic.name}")
        document, strips = _evaluate(bag, topic, values, recorded, console)
        losses, truncated_after = bag.losses, bag.truncated_after
    output.write_text(document_path, json.dumps(document))
    write_report(report_path, document, strips)
    console.print(summary_table(document))
    console.print(f"written: {document_path} and {report_path}", soft_wrap=True)
    for line in losses:
        console.print(line, style="yellow", highlight=False, markup=False, soft_wrap=True)
    if truncated_after is not None:
        return TRUNCATED
    return 0 if document["replay_is_equal"] else 1


def _evaluate(
    bag: Bag, topic: TopicInfo, values: dict, recorded: RecordedRun, console: Console
) -> tuple[dict, dict[str, list[FilmFrame]]]:
    """The demo's document, and what each policy would remember at the end."""
    live = run_document.outcome(recorded.ticks)
    strips: dict[str, list[FilmFrame]] = {}
    evictions: dict[str, int] = {}
    for policy in dict.fromkeys((*COMPARED, values["memory.policy"])):
        with console.status(f"replaying under {policy}"):
            variant = values | recorded.engine_plan() | {"memory.policy": policy}
            replayed = replay_recorded(bag, topic.name, variant, recorded)
            strips[policy] = film_frames(bag, topic.name, replayed.remembered)
        evictions[policy] = len(replayed.journal)
        if policy == values["memory.policy"]:
            again = run_document.outcome([record.to_json() for record in replayed.records])
            differing = [part for part in run_document.OUTCOME if again[part] != live[part]]
    if differing:
        console.print(f"replayed at its own times the run has other {', '.join(differing)}", style="bold red")
    else:
        console.print("replayed at its own times the run has the same decisions, actions and journal")
    bare_loop = recorded.end["bare_loop"]
    document = {
        "kind": "demo",
        **run_document.header(bag.path.name, topic.name, values, recorded.run["engine"]),
        **run_document.summarise(recorded.ticks, recorded.begin["frame"]),
        "bare_loop_late": bare_loop["late"],
        "bare_loop": bare_loop,
        "evictions": evictions,
        "replay_is_equal": not differing,
        **live,
        **recorded.to_document(),
        "records": [record | run_document.row(record) for record in recorded.ticks],
    }
    return document, strips
