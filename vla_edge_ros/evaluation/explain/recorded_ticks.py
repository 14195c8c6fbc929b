"""The ticks of a recorded run for telling what happened: of older versions and cut runs too."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from vla_edge_ros.control.decision import Decision
from vla_edge_ros.control.record import TickRecord, WorkTimes
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.json_shape import WrongShape, check
from vla_edge_ros.evaluation.recorded_run import is_lines, read_run


class _Stages(TypedDict, total=False):
    copy_ns: int
    vision_ns: int
    prefill_ns: int
    decode_ns: int


class _Identified(TypedDict):
    work_id: int


class _Work(_Identified, total=False):
    kind: str
    submitted_ns: int
    started_ns: int
    finished_ns: int
    received_ns: int
    stages: _Stages
    is_aborted: bool
    steps_done: int
    remaining: _Stages
    frame_index: int | None
    retained_frame: int | None


class _JournalLine(TypedDict, total=False):
    policy: str
    frame: int
    reason: str


class _Event(TypedDict, total=False):
    event: str
    text: str
    plan_id: str
    delta_ns: int
    control: dict[str, object]
    admission: dict[str, object]


class _Decided(TypedDict):
    tick: int
    decision: Decision


class _Tick(_Decided, total=False):
    """The fields of `TickRecord` of which something is told; a run may lack any of them."""

    scheduled_ns: int
    started_ns: int
    effect_stamp_ns: int
    reason: str
    is_enabled: bool
    seen_frame: int
    skipped_frames: int
    frame_index: int | None
    frame_stamp_ns: int | None
    frame_capture_ns: int | None
    frame_receipt_ns: int | None
    frame_age_ns: int | None
    pass_cutoff_ns: int | None
    predicted_ns: int | None
    predicted_by_stage: dict[str, int] | None
    allowance_ns: int | None
    is_probe: bool
    step: str | None
    prices_ns: dict[str, int] | None
    held_tokens: int
    forgotten_frames: int
    submitted_work: int | None
    work: list[_Work]
    top_probability: float | None
    entropy: float | None
    action: list[float] | None
    steps_left: int
    steps_dropped: int
    retained_frames: int
    journal: list[_JournalLine]
    events: list[_Event]
    hold_ns: int
    skipped_ticks: int
    trajectory_ns: int | None
    woke_ns: int | None
    published_ns: int
    is_late: bool


_Parameters = TypedDict(
    "_Parameters",
    {
        "control.deadline_ms": float,
        "control.margin_ms": float,
        "actions.ttl_ms": float,
        "actions.max_hold_ms": float,
        "admission.estimator": str,
        "admission.target_miss_rate": float,
    },
    total=False,
)


class _Run(TypedDict):
    records: list[_Tick]
    parameters: _Parameters
    left_out: list[str]
    cut: list[str]


@dataclass(frozen=True, slots=True)
class RecordedTicks:
    """
    parameters: the node's, as far as they were recorded.
    ticks: `TickRecord.to_json` of each in the order of the file, without what its version did not have. The
        numbers begin anew where the node was activated again.
    is_cut: the last line was cut by a kill, and is left out.
    left_out, cut: segments of a ring that were not read, and not to their end (`ring_text`).
    """

    parameters: dict
    ticks: list[dict]
    is_cut: bool = False
    left_out: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)

    @property
    def range_in_words(self) -> str:
        """Which ticks there are."""
        numbers = [tick["tick"] for tick in self.ticks]
        there = f"ticks {min(numbers)} to {max(numbers)} are there" if numbers else "it has no ticks"
        if self.left_out:
            there += f"; not read: {len(self.left_out)} of the ring's segments, {_in_words(self.left_out)}"
        return f"{there}, and its last line is cut" if self.is_cut else there

    @property
    def gaps_in_words(self) -> str:
        """Where ticks are missing that were recorded; empty where none is known to be."""
        return f"{_in_words(self.cut)} cannot be read to the end: ticks are missing" if self.cut else ""


def read_ticks(path: Path, tick: int | None = None) -> RecordedTicks:
    """The ticks of what control.record_path, `vla-edge demo` or `replay --json` wrote. Raises UserError.

    tick: of a large ring what led to this one is read and a little of what followed, None: the newest.
    """
    text = read_run(path, tick=tick)
    try:
        found, is_cut = _of_lines(text) if is_lines(text) else (_of_document(text), False)
        check(found, _Run)
    except (ValueError, RecursionError) as error:
        reason = error if isinstance(error, WrongShape) else f"it is no JSON, or cut short ({error})"
        raise UserError(
            f"{path}: no recorded run: {reason}; wanted is what control.record_path, `vla-edge demo` or "
            "`replay --json` wrote"
        ) from None
    return RecordedTicks(found["parameters"], found["records"], is_cut, found["left_out"], found["cut"])


def is_miss(tick: dict) -> bool:
    """`TickRecord.is_miss` of a tick that may lack what the miss does not depend on."""
    work = [
        WorkTimes(done["work_id"], "", 0, 0, 0, 0, is_aborted=done.get("is_aborted", False))
        for done in tick.get("work", [])
    ]
    decision = Decision(tick["decision"])
    submitted = tick.get("submitted_work")
    return TickRecord(tick["tick"], 0, 0, 0, decision, submitted_work=submitted, work=work).is_miss


def _of_document(text: str) -> dict:
    document = json.loads(text)
    if not isinstance(document, dict) or "records" not in document:
        raise WrongShape("has no records of ticks")
    parameters = document.get("parameters") or {}
    return {"records": document["records"], "parameters": parameters, "left_out": [], "cut": []}


def _of_lines(text: str) -> tuple[dict, bool]:
    """Of the recorder's lines, and whether the last one is cut. Raises WrongShape, ValueError."""
    parameters, ticks, is_cut = {}, [], False
    left_out, cut = [], []
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        try:
            item = json.loads(line)
        except ValueError:
            if number < len(lines):
                raise WrongShape(f"has a line that is no JSON, the {number}.") from None
            is_cut = True
            break
        if not isinstance(item, dict):
            raise WrongShape(f"has a line that is no object, the {number}.")
        if "tick" in item:
            ticks.append(item["tick"])
        elif "run" in item and isinstance(item["run"], dict):
            parameters = item["run"].get("parameters") or {}
            left_out, cut = item.get("left_out", []), item.get("cut", [])
    return {"records": ticks, "parameters": parameters, "left_out": left_out, "cut": cut}, is_cut


def _in_words(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
