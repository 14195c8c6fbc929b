"""`vla-edge demo`: the real node and a camera in processes of their own, over DDS, in real time; then the report.

The run is recorded and replayed offline under every eviction policy at its own times: under its own policy that
must give its own decisions again, which is checked and said.
"""

import argparse
import json
import tempfile
from pathlib import Path

from rich.console import Console

from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation import summary
from vla_edge_ros.evaluation.bags import Bag, TopicInfo, open_bag
from vla_edge_ros.evaluation.filmstrip import film_strip
from vla_edge_ros.evaluation.recorded_run import RecordedRun
from vla_edge_ros.evaluation.replay import replay_recorded
from vla_edge_ros.evaluation.report import summary_table, write_report
from vla_edge_ros.memory.policies import POLICIES
from vla_edge_ros.nodes.live_run import run_live
from vla_edge_ros.parameters import validate, validate_all
from vla_edge_ros.share import share_directory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bag", type=Path, help="recording to play as the camera (default: the bundled sample)")
    parser.add_argument("--topic", help="image topic in it (default: the only one)")
    parser.add_argument("--seconds", type=float, default=12.0, help="how long to run (default: %(default)s)")
    parser.add_argument(
        "--policy", default="semantic", choices=POLICIES, help="eviction policy that runs live"
    )
    parser.add_argument("--instruction", help="what the robot is told (default: the recording's, if any)")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for demo.json and report.html")
    parser.add_argument(
        "--param",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any parameter of the node, as in docs/parameters.md; may be repeated",
    )


def run(args: argparse.Namespace) -> int:
    console = Console()
    if not args.seconds > 0:
        raise UserError(f"--seconds {args.seconds:g} must be above 0")
    with (
        open_bag(args.bag or share_directory() / "recordings/sample") as bag,
        tempfile.TemporaryDirectory() as scratch,
    ):
        topic = bag.pick_image_topic(args.topic)
        given = parse_parameters(args.param)
        given |= {
            "memory.policy": args.policy,
            "camera.is_compressed": topic.is_compressed,
            "control.record_path": str(Path(scratch) / "run.jsonl"),
            "control.bare_loop": True,
        }
        if args.instruction is not None:
            given["instruction.initial"] = args.instruction
        values = validate_all(given)
        n_ticks = int(args.seconds * 1000 / values["control.period_ms"])
        args.out.mkdir(parents=True, exist_ok=True)
        recorded = run_live(bag, topic.name, values, n_ticks, console, args.instruction is None)
        document, strips = evaluate(bag, topic, values, recorded, console)

    (args.out / "demo.json").write_text(json.dumps(document), encoding="utf-8")
    write_report(args.out / "report.html", document, strips)
    console.print(summary_table(document))
    console.print(f"written: {args.out / 'demo.json'}, {args.out / 'report.html'}")
    return 0 if document["replay_is_equal"] else 1


def evaluate(
    bag: Bag, topic: TopicInfo, values: dict, recorded: RecordedRun, console: Console
) -> tuple[dict, dict]:
    """The demo's document, and the film strip of what each policy would remember at the end."""
    live = summary.outcome(recorded.ticks)
    strips, evictions = {}, {}
    is_equal = False
    for policy in POLICIES:
        with console.status(f"replaying under {policy}"):
            replayed = replay_recorded(bag, topic.name, values | {"memory.policy": policy}, recorded)
        strips[policy] = film_strip(bag, topic.name, replayed.remembered)
        evictions[policy] = len(replayed.journal)
        if policy == values["memory.policy"]:
            again = summary.outcome([record.to_json() for record in replayed.records])
            is_equal = all(again[f"{part}_sha256"] == live[f"{part}_sha256"] for part in summary.OUTCOME)
    console.print(
        "replaying the recorded times gives the same decisions, actions and journal"
        if is_equal
        else "[bold red]replaying the recorded times gives another result than the live run"
    )
    document = {
        "kind": "demo",
        "bag": bag.path.name,
        "topic": topic.name,
        "policy": values["memory.policy"],
        **summary.header(values, recorded),
        **summary.summarise(recorded.ticks),
        "evictions": evictions,
        "replay_is_equal": is_equal,
        **live,
        **recorded.to_document(),
    }
    return document, strips


def parse_parameters(pairs: list[str]) -> dict:
    """`NAME=VALUE` texts as parameters, values read as YAML. Raises UserError."""
    import yaml

    values = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator:
            raise UserError(f"--param {pair}: wanted NAME=VALUE, for example --param memory.slots=2048")
        try:
            values[name] = validate(name, yaml.safe_load(text))
        except yaml.YAMLError:
            raise UserError(f"--param {pair}: the value is no YAML") from None
    return values
