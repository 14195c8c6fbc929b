"""The demo on a recording: the real node and a camera, each in its own process, over DDS and in real time.

The run is recorded, and replayed offline at its own times under every eviction policy: under its own that
must give its own decisions again, which is checked; the others show what they would have remembered.
"""

import argparse
import json
import tempfile
from pathlib import Path

from rich.console import Console

from vla_edge_ros import output
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.arguments import refuse_own
from vla_edge_ros.evaluation.bags import TRUNCATED, open_bag
from vla_edge_ros.evaluation.report import write_report
from vla_edge_ros.evaluation.summary import summary_table
from vla_edge_ros.nodes.demo_evaluation import evaluate
from vla_edge_ros.nodes.live_run import LiveRun, run_live
from vla_edge_ros.parameters import validate_all
from vla_edge_ros.progress import told
from vla_edge_ros.share import share_directory

COMPARED = ("fifo", "sliding_window", "semantic", "novelty")
"""Policies that the demo replays beside the node's own; `vla-edge evaluate` compares all of them."""

OF_AN_ARM = ("episode.webp", "demo.mcap")
"""Files that the demo with a simulated arm writes beside its document: its picture and its recording."""

SECONDS = 12.0


def run(args: argparse.Namespace, given: dict, console: Console) -> int:
    """Play `args.bag`, or the bundled recording; given: the node's parameters of the command line."""
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
        refuse_own(given, own, "the demo")
        values = validate_all(given | own)
        live = LiveRun(
            path, topic, values, args.seconds or SECONDS, plays_instructions=args.instruction is None
        )
        recorded = run_live(live, console)
        if not recorded.frames:
            raise UserError(f"{path}: the node could use none of the images on {topic.name}")
        document, strips = evaluate(bag, topic.name, values, recorded, COMPARED, console)
        losses, truncated_after = bag.losses, bag.truncated_after
    for name in OF_AN_ARM:
        # Of an earlier run: beside this one's document it would be taken for its recording.
        (args.out / name).unlink(missing_ok=True)
    output.write_text(document_path, json.dumps(document))
    with told("drawing the report"):
        write_report(report_path, document, strips)
    console.print(summary_table(document))
    console.print(f"written: {document_path} and {report_path}", soft_wrap=True)
    for line in losses:
        console.print(line, style="yellow", highlight=False, markup=False, soft_wrap=True)
    if truncated_after is not None:
        return TRUNCATED
    return 0 if document["replay_is_equal"] else 1
