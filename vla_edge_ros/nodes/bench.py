"""`vla-edge bench`: what this machine keeps of the promises, each figure beside what it must be.

The node is enabled and moves a robot that stands still, so that every message of a tick is sent. It wants an
otherwise idle machine: what else runs is measured too.
"""

import argparse
import json
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

import cv2
import numpy as np
from rich.console import Console
from rich.table import Table
from rosbags.rosbag2 import StoragePlugin, Writer

from vla_edge_ros import output
from vla_edge_ros.arguments import whole
from vla_edge_ros.control import settings
from vla_edge_ros.engine.benchmark import pass_times
from vla_edge_ros.engine.interface import FRAME_TOKENS
from vla_edge_ros.engine.linux import process_cpu_s, resident_bytes
from vla_edge_ros.evaluation import run_document
from vla_edge_ros.evaluation.arguments import add_run_arguments, given_parameters, refuse_own
from vla_edge_ros.evaluation.bags import open_bag
from vla_edge_ros.evaluation.message_types import IMAGE, image_message, ros2_types
from vla_edge_ros.evaluation.sample_motion import RATE_HZ, scene_at
from vla_edge_ros.evaluation.sample_scene import draw
from vla_edge_ros.figures import in_words
from vla_edge_ros.nodes.engine_process import engine_of
from vla_edge_ros.nodes.live_run import LiveRun, resting, run_live
from vla_edge_ros.parameters import validate_all
from vla_edge_ros.perception.benchmark import camera_callback_times

CAMERA_SECONDS = 1.5
SETTLED_S = 60
"""Resident memory is judged from here on, or from a fifth of a shorter run: every path has run by then."""
MAX_GROWTH_BYTES = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all figures")
    parser.add_argument(
        "--ticks",
        type=whole(1),
        default=9000,
        help="length of the live run once memory is full (default: %(default)s, 5 minutes)",
    )
    parser.add_argument(
        "--callbacks", type=whole(1), default=5000, help="camera callbacks to time, each encoding"
    )
    parser.add_argument(
        "--passes", type=whole(0), default=1000, help="engine passes to time alone; 0: none (default: 1000)"
    )
    add_run_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Measure and print the table; 0 if every must is kept, 1 if one is missed."""
    console = Console()
    given = given_parameters(args)
    if args.json is not None:
        output.prepare(args.json)
    with tempfile.TemporaryDirectory() as folder:
        own = {
            "camera.is_compressed": False,
            "control.record_path": str(Path(folder) / "run.jsonl"),
            "control.bare_loop": True,
        }
        refuse_own(given, own, "bench")
        values = validate_all(given | own)
        with console.status("camera callbacks"):
            callbacks = camera_callback_times(args.callbacks)
        policy = settings.policy_of(values)
        passes = None
        if args.passes:
            with console.status("engine passes"):
                passes = pass_times(settings.engine_spec(values, len(policy.dimensions)), args.passes)
        camera = _write_camera(Path(folder) / "camera")
        with open_bag(camera) as bag:
            # Half as many more than the frames that fit, since not every tick remembers one.
            filling = 30 + values["memory.slots"] * 3 // (2 * FRAME_TOKENS)
            seconds = (args.ticks + filling) * values["control.period_ms"] / 1000 + 1e-3
            processes = ProcessWatch(min(SETTLED_S, seconds / 5))
            live = LiveRun(
                camera,
                bag.pick_image_topic(),
                values,
                seconds,
                joints=resting(policy.dimensions),
                each=processes.look,
            )
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
        "at_full_memory": run_document.at_full_memory(recorded.ticks),
        "cpu_ms_per_tick": {
            "tick thread": recorded.end["tick_thread_cpu_ns"] / 1e6 / len(recorded.ticks),
            "engine process": processes.engine_cpu_per_s() * values["control.period_ms"],
        },
        "bare_loop": recorded.end["bare_loop"],
        "memory": processes.growth(),
    }
    rows = judge(document)
    document["rows"] = [asdict(row) for row in rows]
    document["passed"] = all(row.is_kept is not False for row in rows)
    if args.json is not None:
        output.write_text(args.json, json.dumps(document, indent=1) + "\n")
    console.print(_table(document, rows))
    return 0 if document["passed"] else 1


class ProcessWatch:
    """The node's process and its engine's, looked at from outside once a second.

    samples: seconds since the first look, and for each process its resident bytes by kind.
    engine_cpu: the same seconds, and the processor time in seconds that the engine's process has used.
    """

    def __init__(self, settled_s: float) -> None:
        self.samples: list[tuple[float, dict[str, dict[str, int]]]] = []
        self.engine_cpu: list[tuple[float, float]] = []
        self._settled_s = settled_s
        self._began_s = 0.0

    def look(self, node_pid: int) -> None:
        now_s = time.monotonic()
        if not self.samples:
            self._began_s = now_s
        elif now_s - self._began_s - self.samples[-1][0] < 1.0:
            return
        engine_pid = engine_of(node_pid)
        if engine_pid is None:  # it is being replaced
            return
        sample = {"node": resident_bytes(node_pid), "engine": resident_bytes(engine_pid)}
        self.samples.append((now_s - self._began_s, sample))
        self.engine_cpu.append((now_s - self._began_s, process_cpu_s(engine_pid)))

    def engine_cpu_per_s(self) -> float:
        """Processor seconds of the engine's process a second, from the first look to the last."""
        (began_s, first_s), (ended_s, last_s) = self.engine_cpu[0], self.engine_cpu[-1]
        return (last_s - first_s) / (ended_s - began_s) if ended_s > began_s else 0.0

    def growth(self) -> dict:
        """What each process had once settled and at the end, by kind, and by how much the sum grew."""
        settled = next((sample for s, sample in self.samples if s >= self._settled_s), self.samples[-1][1])
        end = self.samples[-1][1]
        return {
            "samples": len(self.samples),
            "settled_s": self._settled_s,
            **{
                name: {
                    "bytes": sum(end[name].values()),
                    "growth_bytes": sum(end[name].values()) - sum(settled[name].values()),
                    "settled": settled[name],
                    "end": end[name],
                }
                for name in ("node", "engine")
            },
        }


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table; `is_kept` is None where a figure has no must."""

    what: str
    measured: str
    must: str = ""
    is_kept: bool | None = None


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


def judge(document: dict) -> list[Row]:
    """The figures of a bench document in words, each with its verdict."""
    rows = []
    for encoding, must_ms in (("rgb8", 1.5), ("bgr8", 1.5), ("jpeg", 4.0)):
        p99 = document["camera_callback_ms"][encoding]["p99"]
        what = f"camera callback {encoding} 640x480, p99"
        rows.append(Row(what, f"{p99:.2f} ms", f"<= {must_ms} ms", p99 <= must_ms))
    if document["pass_alone_ms"] is not None:
        alone = document["pass_alone_ms"]["ms"]["total"]["p99"]
        rows.append(Row("pass alone, full memory, p99", in_words(alone, 2, "ms")))
    rows.append(Row("pass in the node, p99", in_words(document["latency_ms"]["pass"]["p99"], 2, "ms")))
    full = document["at_full_memory"]
    for name, since in (("tick_to_publish_ms", "start of tick"), ("stamp_to_publish_ms", "capture")):
        what = f"{since} to the trajectory of a FRESH tick, p99.9"
        rows.append(Row(what, in_words(full[name]["p999"], 2, "ms")))
    for name, cpu_ms in document["cpu_ms_per_tick"].items():
        rows.append(Row(f"processor time a tick, {name}", in_words(cpu_ms, 2, "ms")))
    error = document["start_error_ms"]["p99"]
    rows.append(Row("tick start error, p99", f"{error:.3f} ms", "< 0.5 ms", error < 0.5))
    ticks, late, bare = document["ticks"], document["late_publishes"], document["bare_loop"]
    allowed = bare["late"] / max(bare["ticks"], 1) + 0.001
    rows.append(
        Row(
            f"late publishes in {ticks} ticks",
            f"{late} ({100 * late / ticks:.2f} %)",
            f"<= bare loop + 0.1 % = {100 * allowed:.2f} % (bare loop: {bare['late']} of {bare['ticks']})",
            late / ticks <= allowed,
        )
    )
    for name in ("node", "engine"):
        memory = document["memory"][name]
        growth = memory["growth_bytes"]
        measured = f"{memory['bytes'] / 1e6:.0f} MB, grew {growth / 1e6:.2f} MB"
        settled_s = document["memory"]["settled_s"]
        rows.append(
            Row(
                f"resident memory, {name} process",
                measured,
                f"grows < {MAX_GROWTH_BYTES / 1e6:.0f} MB after {settled_s:.0f} s",
                growth < MAX_GROWTH_BYTES,
            )
        )
    fresh = document["fresh_ratio"]
    rows.append(Row("FRESH", f"{100 * fresh:.1f} %", ">= 95 %", fresh >= 0.95))
    return rows


def _table(document: dict, rows: list[Row]) -> Table:
    verdicts = {None: "", True: "kept", False: "[red]MISSED[/red]"}
    columns = ("what", "measured", "must", "verdict")
    table = Table(*columns, title=f"vla-edge bench, {document['machine']['processor']}")
    for row in rows:
        table.add_row(row.what, row.measured, row.must, verdicts[row.is_kept])
    return table
