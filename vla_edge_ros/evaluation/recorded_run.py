"""A live run as it was recorded: the times at which things happened, for replaying it."""

import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypedDict

from vla_edge_ros.control.record import TickRecord, WorkTimes, work_times
from vla_edge_ros.engine.interface import loadable_plan
from vla_edge_ros.errors import UserError, reason_of
from vla_edge_ros.evaluation.json_shape import WrongShape, check
from vla_edge_ros.evaluation.playback import Lap
from vla_edge_ros.evaluation.ring_reading import NoRing, is_ring, ring_text
from vla_edge_ros.input import read_text
from vla_edge_ros.perception.frame import FrameMeta

NOT_REPLAYABLE = {
    "engine_replaced": "an engine fault cannot be made to happen again",
}
"""Events that a replay cannot repeat, with the reason."""

_MAX_RUN_BYTES = 4 * 10**9
"""A tick is recorded in about 1.8 kB: about a day of them."""

_ENOUGH_BYTES = 200_000_000
"""Of a ring where its newest ticks will do: about an hour of them, which takes 1.5 GB of memory."""

_Parameters = TypedDict(
    "_Parameters",
    {
        "memory.policy": str,
        "control.period_ms": float,
        "control.deadline_ms": float,
        "control.margin_ms": float,
    },
)


class _Started(TypedDict):
    parameters: _Parameters


class _Engine(TypedDict, total=False):
    backend: str
    plan_id: str
    vocabulary_size: int


class _Segment(TypedDict):
    number: int


class _Run(_Started, total=False):
    engine: _Engine
    laps: list[Lap]
    segment: _Segment


class _Begin(TypedDict):
    at_ns: int
    frame: int


class _BareLoop(TypedDict):
    late: int


class _End(TypedDict, total=False):
    bare_loop: _BareLoop


class _JournalLine(TypedDict):
    frame: int


class _Named(TypedDict):
    event: str


class _Event(_Named, total=False):
    text: str
    delta_ns: int
    control: dict
    admission: dict


class _Tick(TickRecord):
    """Says more of a record than the controller needs to know."""

    journal: list[_JournalLine]
    events: list[_Event]


class _Recorded(TypedDict):
    run: _Run
    received: list[list[int]]
    records: list[_Tick]
    begin: _Begin
    end: _End


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """What a run recorded.

    run: how it was started (parameters, engine, and what else its maker put there: `laps`; `segment`, the
        oldest one that a ring has).
    frames: every frame that was published to the frame buffer, in order.
    ticks: every tick's record, as `TickRecord.to_json`, in order.
    begin: `at_ns`, when the controller began, and `frame`, the newest frame then, void as those before it.
    end: what was known at the end (the bare loop's counts); empty where the run was cut off.
    """

    run: dict
    frames: list[FrameMeta]
    ticks: list[dict]
    begin: dict
    end: dict = field(default_factory=dict)

    @classmethod
    def from_lines(cls, path: Path) -> "RecordedRun":
        """Read what `control.record_path` was written to; a last line cut by a kill is left out.

        Raises UserError if it is none.
        """
        return cls._of_lines(path, read_run(path, is_whole=True))

    @classmethod
    def load(cls, path: Path) -> "RecordedRun":
        """Read either form, told by the content. Raises UserError if the file holds no recorded run."""
        return cls.from_text(path, read_run(path, is_whole=True))

    @classmethod
    def from_text(cls, path: Path, text: str) -> "RecordedRun":
        """What `load` reads of a file whose text is known already; `path` is for the error."""
        return cls._of_lines(path, text) if is_lines(text) else cls._of_document(path, text)

    @classmethod
    def _of_lines(cls, path: Path, text: str) -> "RecordedRun":
        run, frames, ticks, begin, end = None, [], [], None, {}
        try:
            for number, line in enumerate(text.splitlines(), 1):
                try:
                    item = json.loads(line)
                except ValueError:
                    if number > 1:
                        break
                    raise
                if "frame" in item:
                    frames.append(item["frame"])
                elif "tick" in item:
                    ticks.append(item["tick"])
                elif "begin" in item:
                    begin = item["begin"]
                elif "end" in item:
                    end = item["end"]
                else:
                    run = item["run"]
            if run is None or begin is None:
                raise UserError(f"{path}: no recorded run: the node was never active")
            return cls._of({"run": run, "received": frames, "records": ticks, "begin": begin, "end": end})
        except _NO_RUN as error:
            raise UserError(f"{path}: no recorded run: {_reason(error)}") from None

    @classmethod
    def _of_document(cls, path: Path, text: str) -> "RecordedRun":
        try:
            return cls._of({"end": {}, **json.loads(text)})
        except _NO_RUN as error:
            raise UserError(
                f"{path}: holds no times of a recorded run ({_reason(error)}); "
                "wanted is the JSON that `vla-edge demo` writes"
            ) from None

    @classmethod
    def _of(cls, recorded: dict) -> "RecordedRun":
        """Raises WrongShape, or TypeError for a frame of another length."""
        _add_tokens(recorded.get("records"))
        check(recorded, _Recorded)
        frames = [FrameMeta(*frame) for frame in recorded["received"]]
        return cls(recorded["run"], frames, recorded["records"], recorded["begin"], recorded["end"])

    def to_document(self) -> dict:
        """What `out/demo.json` holds of the run."""
        frames = [[f.index, f.stamp_ns, f.capture_ns, f.receipt_ns] for f in self.frames]
        return {
            "run": self.run,
            "received": frames,
            "records": self.ticks,
            "begin": self.begin,
        }

    def engine_plan(self) -> dict[str, str]:
        """The parameter that makes a replay's engine sum in the order of the run's."""
        engine = self.run.get("engine", {})
        return {"engine.plan": loadable_plan(engine.get("backend", ""), engine.get("plan_id", ""))}

    @property
    def is_start_lost(self) -> bool:
        """The ring no longer has the run's first segment."""
        return self.run.get("segment", {"number": 0})["number"] > 0

    @property
    def first_frame(self) -> int:
        """The newest frame before the ticks that are there."""
        return self.ticks[0]["seen_frame"] if self.is_start_lost and self.ticks else self.begin["frame"]

    def check_frames(self) -> None:
        """Raises UserError where the start was lost or a frame is missing: what follows is not known then."""
        if self.is_start_lost:
            numbers = [tick["tick"] for tick in self.ticks]
            there = f"ticks {numbers[0]} to {numbers[-1]} are" if numbers else "no tick is"
            raise UserError(
                f"the recorded run cannot be run again without its start, which its ring has lost: {there} "
                "there, for `vla-edge explain` and `report`; a larger control.record_bytes keeps more"
            )
        for number, frame in enumerate(self.frames, 1):
            if frame.index != number:
                raise UserError(f"the recorded run cannot be run again: frame {number} was not recorded")

    @property
    def vocabulary_size(self) -> int | None:
        """Of the engine, where every pass has its tokens and its action can be told from them."""
        passes = [w for tick in self.ticks for w in tick["work"] if w["frame_index"] is not None]
        is_known = all(done["tokens"] is not None for done in passes)
        return self.run.get("engine", {}).get("vocabulary_size") if is_known else None

    def until_tick(self, end: float) -> "RecordedRun":
        """The run as if it had ended before tick `end`."""
        return replace(self, ticks=[tick for tick in self.ticks if tick["tick"] < end])

    def service(self) -> dict[int, WorkTimes]:
        """The times of each piece of work by its id."""
        return {work["work_id"]: work_times(work) for tick in self.ticks for work in tick["work"]}

    def check_replayable(self) -> None:
        """Raises UserError where something happened that a replay cannot repeat, or was not recorded."""
        self.check_frames()
        for tick in self.ticks:
            for event in tick["events"]:
                reason = NOT_REPLAYABLE.get(event["event"])
                if reason is not None:
                    raise UserError(
                        f"the recorded run cannot be replayed from tick {tick['tick']} on "
                        f"({event['event']}): {reason}"
                    )


def read_run(path: Path, is_whole: bool = False, tick: int | None = None) -> str:
    """The text of a file that may hold a run in either form, or the lines of a ring. Raises UserError.

    is_whole: of a large ring too, of which else the newest segments are read, or those up to `tick`.
    """
    try:
        if is_ring(path):
            return ring_text(path, _MAX_RUN_BYTES, None if is_whole else _ENOUGH_BYTES, tick)
        return read_text(path, _MAX_RUN_BYTES)
    except (NoRing, WrongShape) as error:
        raise UserError(f"{path}: {error}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: cannot be read: {reason_of(error)}; name what `vla-edge demo`, `replay --json` or "
            "control.record_path wrote"
        ) from None


def _add_tokens(ticks: object) -> None:
    """Older versions recorded no tokens. What has another shape is left as it is."""
    for tick in ticks if isinstance(ticks, list) else ():
        work = tick.get("work") if isinstance(tick, dict) else None
        for done in work if isinstance(work, list) else ():
            if isinstance(done, dict):
                done.setdefault("tokens", None)


def is_lines(text: str) -> bool:
    """Whether the text is the recorder's, a JSON object a line, and not one document."""
    return _FIRST_LINES.match(text) is not None


_FIRST_LINES = re.compile(r'\{"run".*\n\{')

_NO_RUN = (ValueError, KeyError, TypeError, RecursionError)
"""What reading a text raises that holds something else."""


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, WrongShape) else f"{type(error).__name__}: {error}"
