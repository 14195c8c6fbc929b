"""`vla-edge replay`: a bag through the node's own control loop on a virtual clock, faster than real time."""

import argparse
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from vla_edge_ros import output
from vla_edge_ros.arguments import positive
from vla_edge_ros.control import settings
from vla_edge_ros.errors import UserError, printable
from vla_edge_ros.evaluation import run_document
from vla_edge_ros.evaluation.arguments import add_run_arguments, given_parameters
from vla_edge_ros.evaluation.bags import TRUNCATED, open_bag
from vla_edge_ros.evaluation.film import film_frames
from vla_edge_ros.evaluation.recorded_run import RecordedRun
from vla_edge_ros.evaluation.report import write_report
from vla_edge_ros.evaluation.retrace import command as retrace
from vla_edge_ros.evaluation.summary import summary_table
from vla_edge_ros.evaluation.virtual_run import Replay, replay, replay_recorded
from vla_edge_ros.parameters import validate_all
from vla_edge_ros.progress import told

_RECORD = "control.record_path"
_OF_A_REPLAY = b'{"kind": "replay"'
_ENGINE_PARAMETERS = {"engine.backend", "engine.model", "memory.slots"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "bag",
        type=Path,
        nargs="?",
        help="recording: a rosbag2 folder or file, a ROS 1 bag or a video; --ticks can do without",
    )
    parser.add_argument("--topic", help="image topic of the recording (default: the only one)")
    add_run_arguments(parser)
    parser.add_argument("--seconds", type=positive, default=float("inf"), help="stop after this much of it")
    times = parser.add_mutually_exclusive_group()
    times.add_argument(
        "--service-ms", type=positive, default=20.0, help="time that a pass takes (default: %(default)s)"
    )
    times.add_argument(
        "--times", type=Path, metavar="DEMO.JSON", help="repeat a recorded run at its own times instead"
    )
    times.add_argument(
        "--ticks",
        type=Path,
        metavar="RUN",
        help="run the ticks of a recorded run (demo.json, or what control.record_path wrote; not a replay's "
        "--json) again at their own times and compare each with its record: "
        "from that alone, or where BAG is named from its images too; exit code 1 where a tick differs",
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="write decisions, actions, journal, hashes")
    parser.add_argument("--report", type=Path, metavar="PATH", help="write the HTML report")
    parser.add_argument(
        "--allow-truncated", action="store_true", help="exit with 0 though the recording ends early"
    )


def run(args: argparse.Namespace) -> int:
    console = Console()
    given = given_parameters(args)
    if _RECORD in given:
        raise UserError(f"--param {_RECORD}: a replay records no run; --json PATH writes what it decided")
    for path in (args.times, args.ticks):
        if path is not None:
            _refuse_a_replay(path)
    if args.ticks is not None:
        return _retrace(args, given)
    if args.bag is None:
        raise UserError("name a recording; --ticks RUN alone can do without one")
    if args.times is not None and args.instruction is not None:
        raise UserError("--instruction goes with stated times: a recorded run has its own instructions")
    recorded = RecordedRun.load(args.times) if args.times is not None else None
    for path in (args.json, args.report):
        if path is not None:
            output.prepare(path)
    with open_bag(args.bag) as bag:
        topic = bag.pick_image_topic(args.topic)
        if recorded is None:
            values = validate_all(given)
            uses_recorded_text = args.instruction is None
            with told(f"replaying {args.bag.name}"):
                replayed = replay(bag, topic.name, values, args.service_ms, args.seconds, uses_recorded_text)
        else:
            # Another engine, model or memory has a plan of its own.
            plan = {} if given.keys() & _ENGINE_PARAMETERS else recorded.engine_plan()
            values = validate_all(recorded.run["parameters"] | plan | given)
            n_ticks = args.seconds * 1000 / values["control.period_ms"]
            with told(f"replaying {args.bag.name}"), _naming_truncation(bag.truncated_after):
                replayed = replay_recorded(bag, topic.name, values, recorded.until_tick(n_ticks))
        first_frame = 0 if recorded is None else recorded.begin["frame"]
        document = _document(args.bag.name, topic.name, values, replayed, first_frame)
        if args.json is not None:
            output.write_text(args.json, json.dumps(document))
        if args.report is not None:
            with told("drawing the report"):
                strip = film_frames(bag, topic.name, replayed.remembered)
                write_report(args.report, document, {document["policy"]: strip})
        losses, truncated_after = bag.losses, bag.truncated_after
    console.print(summary_table(document))
    for part in run_document.OUTCOME:
        console.print(f"{part}_sha256 {document[f'{part}_sha256']}", highlight=False, soft_wrap=True)
    if replayed.camera.last_refusal is not None:
        losses.append(
            f"refused {document['frames_refused']} images, the last: {replayed.camera.last_refusal.reason}"
        )
    for line in losses:
        console.print(line, style="yellow", highlight=False, markup=False, soft_wrap=True)
    return 0 if truncated_after is None or args.allow_truncated else TRUNCATED


def _retrace(args: argparse.Namespace, given: dict) -> int:
    """`--ticks`: 1 where a tick differs, then 3 where the recording is cut short, as for a replay."""
    work = f"running the ticks of {args.ticks} again"
    if args.bag is None:
        with told(work):
            return retrace.run(args, given)
    with open_bag(args.bag) as bag:
        truncated_after = bag.truncated_after
    with told(work), _naming_truncation(truncated_after):
        code = retrace.run(args, given)
    if truncated_after is None:
        return code
    print(printable(f"{args.bag}: truncated after {truncated_after} messages, which the run did not need"))
    return code or (0 if args.allow_truncated else TRUNCATED)


@contextlib.contextmanager
def _naming_truncation(truncated_after: int | None) -> Iterator[None]:
    """Have a refusal say that the recording is cut short, which may be why a frame is missing."""
    try:
        yield
    except UserError as error:
        if truncated_after is None:
            raise
        raise UserError(f"{error} (it is truncated after {truncated_after} messages)") from None


def _refuse_a_replay(path: Path) -> None:
    """Raises UserError where `path` is what `--json` of this command wrote, which begins with its kind."""
    is_replay = False
    if path.is_file():
        with path.open("rb") as file:
            is_replay = file.read(len(_OF_A_REPLAY)) == _OF_A_REPLAY
    if is_replay:
        raise UserError(
            f"{path}: is what `replay --json` wrote, which has no times to repeat: name what `vla-edge demo` "
            "or control.record_path wrote; two replays are compared by their hashes"
        )


def _document(bag: str, topic: str, values: dict, replayed: Replay, first_frame: int) -> dict:
    """first_frame: the newest frame before the run, which a recorded one does not count either."""
    records = [record.to_json() for record in replayed.records]
    return {
        "kind": "replay",
        **run_document.header(bag, topic, values, settings.describe_engine(values, replayed.info)),
        **run_document.summarise(records, first_frame),
        "frames_refused": sum(replayed.camera.refused.values()),
        "evictions": {values["memory.policy"]: len(replayed.journal)},
        **run_document.outcome(records),
        "records": [record | run_document.row(record) for record in records],
    }
