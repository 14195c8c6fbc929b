"""Ticks that were run again beside those recorded, field by field and bit for bit."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vla_edge_ros.control.record import TickRecord

FIRST = ("decision", "reason", "frame_index", "seen_frame", "step", "submitted_work", "journal", "action")
"""Compared before all other fields: what the tick decided, of which frame, what it forgot and sent."""

INPUTS = ("joint_states",)
"""Handed to both: a state that arrives while a tick decides is written to that record or to the next one."""

READINGS = ("trajectory_ns", "woke_ns")
"""When it was is the machine's; whether it was is compared."""

OUT_AT = ("effect_stamp_ns", "published_ns", "is_late")
"""Readings of the machine's clocks, which a replay of the recording does not repeat."""


class Difference(NamedTuple):
    """field: of the tick's record, as `others`, which differ there too."""

    tick: int
    field: str
    recorded: object
    again: object
    others: list[str]


@dataclass(frozen=True, slots=True)
class Comparison:
    n_ticks: int
    n_equal: int
    first: Difference | None

    @property
    def is_equal(self) -> bool:
        return self.first is None


def compare(
    recorded: Sequence[dict], again: Sequence[TickRecord], left_out: Sequence[str] = ()
) -> Comparison:
    """recorded: `TickRecord.to_json` as read from a file. left_out: fields that are not compared."""
    fields = [*FIRST, *(name for name in TickRecord.__slots__ if name not in FIRST)]
    fields = [name for name in fields if name not in INPUTS and name not in left_out]
    n_equal, first = 0, None
    for tick, record in zip(recorded, again, strict=True):
        told = json.loads(json.dumps(record.to_json()))
        differing = [name for name in fields if not _is_equal(name, tick[name], told[name])]
        n_equal += not differing
        if differing and first is None:
            name = differing[0]
            first = Difference(tick["tick"], name, tick[name], told[name], differing[1:])
    return Comparison(len(recorded), n_equal, first)


def _is_equal(name: str, recorded: object, again: object) -> bool:
    if name in READINGS:
        return (recorded is None) == (again is None)
    if name == "work" and len(recorded) == len(again):
        # Older versions recorded no tokens: nothing to compare with.
        known = zip(recorded, again, strict=True)
        again = [new | {"tokens": None if old["tokens"] is None else new["tokens"]} for old, new in known]
    # As text: 1, 1.0 and true are no equals, and -0.0 is not 0.0.
    return json.dumps(recorded) == json.dumps(again)
