"""A live run as it was recorded: the times at which things happened, for replaying it."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

from vla_edge_ros.control.record import WorkTimes
from vla_edge_ros.engine.interface import StageTimes
from vla_edge_ros.errors import UserError
from vla_edge_ros.perception.frame import FrameMeta

NOT_REPLAYABLE = {
    "enable": "joint states are not recorded",
    "engine_replaced": "an engine fault cannot be made to happen again",
}
"""Events that a replay cannot repeat, with the reason."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """What a run recorded.

    run: how it was started (parameters, engine, and what else its maker put there).
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
        """Read the JSON lines of `control.record_path`; a last line cut by a kill is left out.

        Raises UserError if the file is none.
        """
        run, frames, ticks, begin, end = None, [], [], None, {}
        try:
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                try:
                    item = json.loads(line)
                except ValueError:
                    if number > 1:
                        break
                    raise
                if "frame" in item:
                    frames.append(FrameMeta(*item["frame"]))
                elif "tick" in item:
                    ticks.append(item["tick"])
                elif "begin" in item:
                    begin = item["begin"]
                elif "end" in item:
                    end = item["end"]
                else:
                    run = item["run"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: no recorded run: {type(error).__name__}: {error}") from None
        if run is None or begin is None:
            raise UserError(f"{path}: no recorded run: the node was never active")
        return cls(run, frames, ticks, begin, end)

    @classmethod
    def from_document(cls, path: Path) -> "RecordedRun":
        """Read what `to_document` wrote, as in `out/demo.json`. Raises UserError if the file is none."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                document["run"],
                [FrameMeta(*frame) for frame in document["received"]],
                document["records"],
                document["begin"],
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path}: holds no times of a recorded run ({type(error).__name__}: {error}); "
                "wanted is the JSON that `vla-edge demo` writes"
            ) from None

    def to_document(self) -> dict:
        frames = [[f.index, f.stamp_ns, f.capture_ns, f.receipt_ns] for f in self.frames]
        return {
            "run": self.run,
            "received": frames,
            "records": self.ticks,
            "begin": self.begin,
        }

    @classmethod
    def load(cls, path: Path) -> "RecordedRun":
        """Read either form, told by the content. Raises UserError if the file holds no recorded run."""
        try:
            with path.open(encoding="utf-8") as file:
                is_lines = file.readline().startswith('{"run"') and file.readline().startswith("{")
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read: {error}") from None
        return cls.from_lines(path) if is_lines else cls.from_document(path)

    def until_tick(self, end: float) -> "RecordedRun":
        """The run as if it had ended before tick `end`."""
        return replace(self, ticks=[tick for tick in self.ticks if tick["tick"] < end])

    def service(self) -> dict[int, WorkTimes]:
        """The times of each piece of work by its id."""
        return {
            work["work_id"]: WorkTimes(**(work | {"stages": StageTimes(**work["stages"])}))
            for tick in self.ticks
            for work in tick["work"]
        }

    def check_replayable(self) -> None:
        """Raises UserError where something happened that a replay cannot repeat, or was not recorded."""
        for number, frame in enumerate(self.frames, 1):
            if frame.index != number:
                raise UserError(f"the recorded run cannot be replayed: frame {number} was not recorded")
        for tick in self.ticks:
            for event in tick["events"]:
                reason = NOT_REPLAYABLE.get(event["event"])
                if reason is not None:
                    raise UserError(
                        f"the recorded run cannot be replayed from tick {tick['tick']} on "
                        f"({event['event']}): {reason}"
                    )
