"""`vla-edge bench`: what this machine keeps of the promises, each figure beside what it must be."""

import argparse
import json
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path

import cv2
import numpy as np
from rich.console import Console
from rich.table import Table
from rosbags.rosbag2 import StoragePlugin, Writer

from vla_edge_ros.control import settings
from vla_edge_ros.engine.benchmark import pass_times
from vla_edge_ros.engine.linux import process_memory
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation import run_document
from vla_edge_ros.evaluation.arguments import add_run_arguments, given_parameters
from vla_edge_ros.evaluation.bags import open_bag
from vla_edge_ros.evaluation.message_types import IMAGE, image_message, ros2_types
from vla_edge_ros.evaluation.sample_motion import RATE_HZ, scene_at
from vla_edge_ros.evaluation.sample_scene import draw
from vla_edge_ros.nodes.live_run import LiveRun, run_live
from vla_edge_ros.parameters import validate_all
from vla_edge_ros.perception.benchmark import camera_callback_times

CAMERA_SECONDS = 1.5
SETTLED_S = 10
"""Resident memory is judged from here on: memory is full and every path has run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all figures")
    parser.add_argument(
        "--ticks", type=int, default=9000, help="length of the live run (default: %(default)s, 5 minutes)"
    )
    parser.add_argument("--callbacks", type=int, default=5000, help="camera callbacks to time, each encoding")
    parser.add_argument("--passes", type=int, default=1000, help="engine passes to time alone")
    add_run_arguments(parser)


def run(args: argparse.Namespace) -> int:
    console = Console()
    given = given_parameters(args)
    with console.status("camera callbacks"):
        callbacks = camera_callback_times(args.callbacks)
    with tempfile.TemporaryDirectory() as folder:
        values = validate_all(
            given | {"control.record_path": str(Path(folder) / "run.jsonl"), "control.bare_loop": True}
        )
        with console.status("engine passes"):
            policy = settings.policy_of(values)
            passes = pass_times(settings.engine_spec(values, len(policy.dimensions)), args.passes)
        camera = _write_camera(Path(folder) / "camera")
        memory = MemoryWatch()
        with open_bag(camera) as bag:
            seconds = args.ticks * values["control.period_ms"] / 1000 + 1e-3
            live = LiveRun(camera, bag.pick_image_topic(), values, seconds, each=memory.look)
            recorded = run_live(live, console)
    document = {
        "kind": "bench",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": run_document.machine(),
        "engine": recorded.run["engine"],
        "parameters": recorded.run["parameters"],
        "camera_callback_ms": callbacks,
        "pass_alone_ms": passes,
        **run_document.summarise(recorded.ticks),
        "bare_loop": recorded.end["bare_loop"],
        "memory": memory.growth(),
    }
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    console.print(_table(document))
    return 0


class MemoryWatch:
    """Resident memory of the node's process and of its engine's, looked at from outside once a second."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, int, int]] = []

    def look(self, node_pid: int) -> None:
        now_s = time.monotonic()
        if not self._samples or now_s - self._samples[-1][0] >= 1.0:
            node, engine = process_memory(node_pid), process_memory(_engine_of(node_pid))
            self._samples.append((now_s, node, engine))

    def growth(self) -> dict:
        """Bytes at the end and the most that was gained over the sample at SETTLED_S, for each process."""
        _, node, engine = np.array(self._samples).T
        settled = slice(min(SETTLED_S, len(node) - 1), None)
        return {
            "samples": len(node),
            "settled_s": SETTLED_S,
            **{
                name: {"bytes": int(rss[-1]), "growth_bytes": int((rss[settled] - rss[settled][0]).max())}
                for name, rss in (("node", node), ("engine", engine))
            },
        }


def _engine_of(node_pid: int) -> int:
    """The engine process among the children of the node."""
    for task in Path(f"/proc/{node_pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            if b"vla_edge_ros.engine.child" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    raise UserError(f"process {node_pid} has no engine process")


def _write_camera(folder: Path) -> Path:
    """A recording of a 640x480 rgb8 camera at 60 Hz: the sample's scene under sensor noise, seeded."""
    rng = np.random.default_rng(0)
    store = ros2_types()
    with Writer(folder, version=8, storage_plugin=StoragePlugin.MCAP) as writer:
        connection = writer.add_connection("/camera/image_raw", IMAGE, typestore=store)
        for index in range(round(CAMERA_SECONDS * RATE_HZ)):
            picture = cv2.resize(draw(scene_at(index / RATE_HZ)), (640, 480)).astype(np.float32)
            noise = rng.normal(0.0, 1.0, (480, 640, 1)).astype(np.float32)
            pixels = np.clip(picture + noise, 0, 255).astype(np.uint8)
            now_ns = (index + 1) * 1_000_000_000 // RATE_HZ
            message = image_message(pixels, "rgb8", now_ns, "camera")
            writer.write(connection, now_ns, store.serialize_cdr(message, IMAGE))
    return folder


def _table(document: dict) -> Table:
    table = Table("what", "measured", "must", title=f"vla-edge bench, {document['machine']['processor']}")
    callbacks = document["camera_callback_ms"]
    for encoding, must_ms in (("rgb8", 1.5), ("bgr8", 1.5), ("jpeg", 4.0)):
        p99 = callbacks[encoding]["p99"]
        table.add_row(f"camera callback {encoding} 640x480, p99", f"{p99:.2f} ms", f"<= {must_ms} ms")
    table.add_row(
        "pass alone, full memory, p99", f"{document['pass_alone_ms']['ms']['total']['p99']:.2f} ms", ""
    )
    table.add_row("pass in the node, p99", f"{document['latency_ms']['pass']['p99']:.2f} ms", "")
    table.add_row("tick start error, p99", f"{document['start_error_ms']['p99']:.3f} ms", "< 0.5 ms")
    ticks, late = document["ticks"], document["late_publishes"]
    bare = document["bare_loop"]
    allowed = bare["late"] / max(bare["ticks"], 1) + 0.001
    table.add_row(
        f"late publishes in {ticks} ticks",
        f"{late} ({100 * late / ticks:.2f} %)",
        f"<= bare loop + 0.1 % = {100 * allowed:.2f} % (bare loop: {bare['late']} of {bare['ticks']})",
    )
    for name in ("node", "engine"):
        memory = document["memory"][name]
        table.add_row(
            f"resident memory, {name} process",
            f"{memory['bytes'] / 1e6:.0f} MB, grew {memory['growth_bytes'] / 1e6:.2f} MB",
            "grows < 1 MB",
        )
    table.add_row("FRESH", f"{100 * document['fresh_ratio']:.1f} %", ">= 95 %")
    return table
