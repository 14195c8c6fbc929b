"""`vla-edge report`: the HTML report of a run again, from what demo, replay or the node's recorder wrote."""

import argparse
import json
from pathlib import Path

from vla_edge_ros import output
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation import run_document
from vla_edge_ros.evaluation.bags import open_bag
from vla_edge_ros.evaluation.film import film_frames
from vla_edge_ros.evaluation.filmstrip import FilmFrame
from vla_edge_ros.evaluation.json_shape import WrongShape
from vla_edge_ros.evaluation.recorded_run import RecordedRun, is_lines, read_run
from vla_edge_ros.evaluation.report import write_report
from vla_edge_ros.evaluation.virtual_run import replay_recorded
from vla_edge_ros.parameters import validate_all
from vla_edge_ros.progress import told

LARGEST_PICTURE_BYTES = 10_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", type=Path, help="out/demo.json, a replay's JSON, or what control.record_path names"
    )
    parser.add_argument(
        "--bag",
        type=Path,
        help="the recording it was made with, for the film strip (default: beside a demo's run)",
    )
    parser.add_argument("--topic", help="image topic in it (default: the only one)")
    parser.add_argument(
        "--out", type=Path, default=Path("out/report.html"), help="page to write (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    output.prepare(args.out)
    text = read_run(args.run)
    document = load(args.run, text)
    strips: dict[str, list[FilmFrame]] = {}
    bag = args.bag or _bag_beside(args.run, document)
    if bag is not None:
        if document["kind"] == "replay":
            raise UserError(f"{args.run}: its film strip is made by `vla-edge replay BAG --report PATH`")
        strips = _film_strips(RecordedRun.from_text(args.run, text), bag, args.topic)
    write_report(args.out, document, strips, _picture(args.run, document))
    print(f"written: {args.out}")
    return 0


def _bag_beside(path: Path, document: dict) -> Path | None:
    """The recording that the demo wrote beside its run, None where there is none."""
    file = path.parent / Path(document.get("bag", "")).name
    return file if document.get("kind") == "demo" and file.is_file() else None


def _picture(path: Path, document: dict) -> bytes | None:
    """The picture that lies beside the run's file, None where there is none."""
    name = document.get("picture")
    file = path.parent / Path(name).name if name else None
    if file is None or not file.is_file() or file.stat().st_size > LARGEST_PICTURE_BYTES:
        return None
    return file.read_bytes()


def load(path: Path, text: str) -> dict:
    """The document of a run; raises UserError where the text of `path` holds none."""
    if is_lines(text):
        return _document_of(RecordedRun.from_text(path, text), path.name)
    try:
        document = json.loads(text)
        run_document.check_document(document)
    except (ValueError, RecursionError) as error:
        reason = error if isinstance(error, WrongShape) else f"it is no JSON, or cut short ({error})"
        raise UserError(
            f"{path}: no recorded run: {reason}; wanted the JSON of `vla-edge demo` or `replay --json`"
        ) from None
    return document


def _document_of(recorded: RecordedRun, name: str) -> dict:
    parameters = recorded.run["parameters"]
    bare_loop = recorded.end.get("bare_loop")
    return {
        "kind": "recorded run",
        **run_document.header(name, "", parameters, recorded.run.get("engine", {})),
        **run_document.summarise(recorded.ticks, recorded.first_frame),
        **({"bare_loop_late": bare_loop["late"]} if bare_loop is not None else {}),
        "evictions": {parameters["memory.policy"]: sum(len(tick["journal"]) for tick in recorded.ticks)},
        "records": [tick | run_document.row(tick) for tick in recorded.ticks],
    }


def _film_strips(recorded: RecordedRun, path: Path, topic: str | None) -> dict[str, list[FilmFrame]]:
    parameters = validate_all(recorded.run["parameters"])
    with open_bag(path) as bag, told(f"replaying {path.name} for the film strip"):
        name = bag.pick_image_topic(topic).name
        replayed = replay_recorded(bag, name, parameters, recorded)
        return {parameters["memory.policy"]: film_frames(bag, name, replayed.remembered)}
