"""From tick records to the document that demo and replay write and that the report draws."""

import hashlib
import json
import os
import platform
from importlib.metadata import version
from itertools import pairwise
from typing import TypedDict

from vla_edge_ros import __version__
from vla_edge_ros.control.decision import Decision
from vla_edge_ros.control.promise import Promise
from vla_edge_ros.control.record import tick_record
from vla_edge_ros.control.settings import Parameters
from vla_edge_ros.engine.interface import STAGES
from vla_edge_ros.evaluation.json_shape import WrongShape, check
from vla_edge_ros.figures import percentiles

OUTCOME = ("decisions", "actions", "journal")


LONGEST_RUN_NS = 30 * 86_400 * 10**9


class _Time(TypedDict):
    scheduled_ns: int


class _Work(TypedDict):
    work_id: int
    submitted_ns: int
    finished_ns: int


class _Row(_Time, total=False):
    decision: str
    is_late: bool
    retained_frames: int | None
    evicted: list[int]
    pass_ms: float | None
    copy_ms: float | None
    vision_ms: float | None
    prefill_ms: float | None
    decode_ms: float | None
    predicted_ms: float | None
    submitted_work: int | None
    work: list[_Work]


_Parameters = TypedDict(
    "_Parameters",
    {"control.period_ms": float, "control.deadline_ms": float, "control.margin_ms": float},
    total=False,
)


class _Episode(TypedDict, total=False):
    task: str
    seed: int
    has_succeeded: bool
    seconds: float
    distance_m: float | None
    instructions: list[str]
    ticks: int
    fresh: int
    others: dict[str, int]
    late: int
    confidence: float | None


class _Rows(TypedDict):
    records: list[_Row]


class _Document(_Rows, total=False):
    """What the report draws; whatever is not there is shown as a dash."""

    kind: str
    bag: str
    topic: str
    policy: str
    machine: dict | None
    parameters: _Parameters | None
    engine: dict | None
    frames: int | None
    frames_skipped: int | None
    ticks: int | None
    fresh: int | None
    fresh_ratio: float | None
    misses: int | None
    miss_rate_wilson_95: list[float] | None
    refusals: int | None
    longest_refusal: int | None
    longest_hold: int | None
    steps: dict[str, int] | None
    late_publishes: int | None
    skipped_ticks: int | None
    aborted_passes: int | None
    bare_loop_late: int | None
    decision_counts: dict[str, int]
    latency_ms: dict[str, dict[str, float | None]]
    evictions: dict[str, int]
    episodes: list[_Episode]
    picture: str


def check_document(document: object) -> None:
    """Raises WrongShape where the report could not draw `document`, as it is read from a file."""
    check(document, _Document)
    times_ns = [record["scheduled_ns"] for record in document["records"]]
    if any(later < earlier for earlier, later in pairwise(times_ns)):
        raise WrongShape("has records that are not in the order of their times")
    if times_ns and times_ns[-1] - times_ns[0] > LONGEST_RUN_NS:
        raise WrongShape("has records of more than 30 days")


def row(record: dict) -> dict:
    """What the report draws beside a record (`TickRecord.to_json`) itself; None where the tick has none."""
    finished = (work for work in record["work"] if not work["is_aborted"])
    own = next((work for work in finished if work["work_id"] == record["submitted_work"]), None)
    stages = {f"{stage}_ms": _ms(own and own["stages"][f"{stage}_ns"]) for stage in STAGES}
    return {
        "frame_age_ms": _ms(record["frame_age_ns"]),
        "predicted_ms": _ms(record["predicted_ns"]),
        "allowance_ms": _ms(record["allowance_ns"]),
        "pass_ms": _ms(own and own["finished_ns"] - own["submitted_ns"]),
        **stages,
        "evicted": [line["frame"] for line in record["journal"]],
    }


def header(bag: str, topic: str, parameters: Parameters, engine: dict) -> dict:
    """What a run was: where its images came from and what fixes its arithmetic."""
    return {
        "bag": bag,
        "topic": topic,
        "policy": parameters["memory.policy"],
        "machine": machine(),
        "parameters": dict(parameters),
        "engine": engine,
    }


def summarise(records: list[dict], first_frame: int = 0) -> dict:
    """Counts and latencies over a run's records (`TickRecord.to_json`).

    first_frame: the newest frame before the run, which counts those that the run saw.
    """
    rows = [row(record) for record in records]
    decisions = [record["decision"] for record in records]
    fresh = decisions.count(Decision.FRESH.value)
    latency = {"pass": "pass_ms", **{stage: f"{stage}_ms" for stage in STAGES}}
    return {
        "frames": max((record["seen_frame"] for record in records), default=first_frame) - first_frame,
        "frames_skipped": sum(record["skipped_frames"] for record in records),
        "ticks": len(records),
        "fresh": fresh,
        "fresh_ratio": fresh / len(records) if records else 0.0,
        **_promise(records),
        "late_publishes": sum(record["is_late"] for record in records),
        "skipped_ticks": sum(record["skipped_ticks"] for record in records),
        "aborted_passes": sum(work["is_aborted"] for record in records for work in record["work"]),
        "decision_counts": {d.value: decisions.count(d.value) for d in Decision if d.value in decisions},
        "latency_ms": {stage: percentiles(r[key] for r in rows) for stage, key in latency.items()},
        "start_error_ms": percentiles(
            [(record["started_ns"] - record["scheduled_ns"]) / 1e6 for record in records]
        ),
    }


def _promise(records: list[dict]) -> dict:
    """Misses per tick and what they were avoided with, over `TickRecord.to_json`s."""
    promise = Promise()
    for record in records:
        promise.count(tick_record(record), 0.0)
    return {
        "misses": promise.misses,
        "miss_rate_wilson_95": list(promise.miss_interval()),
        "refusals": promise.refusals,
        "longest_refusal": promise.longest_refusal,
        "longest_hold": promise.longest_hold,
        "steps": dict(promise.steps),
    }


def at_full_memory(records: list[dict]) -> dict:
    """How soon fresh actions were published, from the first eviction on: memory is full from there.

    Returns `ticks`, `fresh_ratio`, and percentiles over the ticks that sent a trajectory on FRESH, from the
    tick's start and from the capture of the frame that was used: `tick_to_publish_ms`, `stamp_to_publish_ms`.
    """
    full = next((index for index, record in enumerate(records) if record["journal"]), len(records))
    judged = records[full:]
    fresh = [record for record in judged if record["decision"] == Decision.FRESH.value]
    sent = [record for record in fresh if record["trajectory_ns"] is not None]
    return {
        "ticks": len(judged),
        "fresh_ratio": len(fresh) / len(judged) if judged else 0.0,
        **{
            name: percentiles(_ms(record["trajectory_ns"] - record[since]) for record in sent)
            for name, since in (
                ("tick_to_publish_ms", "scheduled_ns"),
                ("stamp_to_publish_ms", "frame_capture_ns"),
            )
        },
    }


def outcome(records: list[dict]) -> dict:
    """What must be equal between two runs of the same: decisions, actions and journal, each with its hash."""
    parts = {
        "decisions": [[record["tick"], record["decision"]] for record in records],
        "actions": [[record["tick"], record["action"]] for record in records],
        "journal": [line for record in records for line in record["journal"]],
    }
    return parts | {f"{name}_sha256": canonical_sha256(part) for name, part in parts.items()}


def canonical_sha256(value: object) -> str:
    """Hash of the JSON text without spaces and with sorted keys; floats by their shortest exact form."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def machine() -> dict:
    """What a figure must be read with."""
    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "vla_edge_ros": __version__,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def _ms(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e6
