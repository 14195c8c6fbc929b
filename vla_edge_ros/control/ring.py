"""Recorded items in MCAP segments of one folder, which together never exceed a number of bytes.

The folder is the path that was named, with `NAME_0.mcap`, `NAME_1.mcap` ... in it, since that is what
`ros2 bag record -o` makes. A node that starts again goes on in the ring: what led to its end is still there.
"""

import json
import os
import re
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from mcap.writer import Writer

from vla_edge_ros.control.record import TickRecord
from vla_edge_ros.control.record_schema import json_schema
from vla_edge_ros.errors import UserError, reason_of
from vla_edge_ros.perception.frame import FrameMeta

SUFFIX = ".mcap"
TICK, FRAME, RUN = "tick", "frame", "run"
"""The channels: `TickRecord.to_json`; a FrameMeta; and what else there is: {"run": ...} at the start of each
segment, {"begin": ...} and {"end": ...}."""

N_SEGMENTS = 16
"""What is deleted at a time is this part of the ring."""

FLUSH_NS = 500_000_000
"""With the recorder's longest wait, what is not on disk is younger than a second."""

_CHUNK_BYTES = 256_000
_NEVER_BY_ITSELF = 2**62
_MESSAGE_BYTES = 9 + 22 + 16
"""Of a message beside its data, with its entry in the index."""
_PER_CHUNK_BYTES = 400
"""At most: its header, those of its three message indexes, and its entry in the summary."""
_AT_END_BYTES = 2000
"""At most, beside the schemas: channels, statistics, offsets and footer."""

_NUMBERED = re.compile(r"_(\d{1,18})\.mcap")


class Segment(NamedTuple):
    number: int
    path: Path


class RingFull(ValueError):
    """The item is larger than a segment."""


def segments_in(folder: Path, name: str | None = None) -> list[Segment]:
    """The segments of a folder in their order, those called `name` where one is given. Raises OSError."""
    found = []
    for path in folder.iterdir():
        match = _NUMBERED.search(path.name)
        if match is None or match.end() != len(path.name) or not path.is_file():
            continue
        if name is None or path.name[: match.start()] == name:
            found.append(Segment(int(match[1]), path))
    return sorted(found)


def n_to_delete(sizes: Sequence[int], room_bytes: int) -> int:
    """How many segments of `sizes` bytes, the oldest first, must go so that the rest takes `room_bytes`."""
    total, n = sum(sizes), 0
    while n < len(sizes) and total > room_bytes:
        total -= sizes[n]
        n += 1
    return n


class Ring:
    """For one thread. Raises OSError where the disk refuses; nothing else may be written then.

    ros_offset_ns: ROS time minus steady time, now: log times are ROS time, of a tick its effect stamp.
    """

    def __init__(
        self, folder: Path, run: dict, max_bytes: int, ros_offset_ns: Callable[[], int] | None = None
    ) -> None:
        """Raises UserError where the folder cannot be written, or is too small for what starts a segment."""
        self._folder = folder
        self._name = folder.name.removesuffix(SUFFIX)
        self._run = run
        self._id = uuid.uuid4().hex
        self._max_bytes = max_bytes
        self._segment_bytes = max_bytes // N_SEGMENTS
        self._ros_offset_ns = ros_offset_ns or (lambda: time.time_ns() - time.monotonic_ns())
        self._begin: dict | None = None
        self._n_begun = 0
        self._stream = None
        schemas = {TICK: json_schema(TickRecord), FRAME: json_schema(FrameMeta), RUN: json_schema(dict)}
        self._schemas = {channel: json.dumps(schema).encode() for channel, schema in schemas.items()}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._next_number = max((s.number for s in segments_in(folder, self._name)), default=-1) + 1
            self._open()
        except RingFull:
            self.abandon()
            raise UserError(
                f"{folder}: control.record_bytes {max_bytes} is too small: each of its {N_SEGMENTS} segments "
                "starts with the run's parameters"
            ) from None
        except (OSError, ValueError) as error:
            self.abandon()
            raise UserError(
                f"{folder}: cannot be written: {reason_of(error)}; name a folder for the segments"
            ) from None

    def write(self, item: TickRecord | FrameMeta | dict) -> bool:
        """False where the item is larger than a segment, and is left out."""
        if isinstance(item, TickRecord):
            message = TICK, item.effect_stamp_ns, item.to_json()
        elif isinstance(item, FrameMeta):
            message = FRAME, item.receipt_ns + self._ros_offset_ns(), asdict(item)
        else:
            message = RUN, self._now_ns(), item
        channel, log_ns, value = message
        data = json.dumps(value).encode()
        try:
            if not self._fits(data):
                self._finish()
                self._open()
            self._add(channel, log_ns, data)
        except RingFull:
            return False
        if channel == RUN:
            self._begin = value.get("begin", self._begin)
        return True

    def flush(self) -> bool:
        """Put what was written on the disk where that is due; whether it was."""
        if time.monotonic_ns() - self._flushed_ns < FLUSH_NS:
            return False
        self._flush()
        return True

    def close(self) -> None:
        """Complete the segment."""
        self._finish()

    def abandon(self) -> None:
        """Let go of a file that the disk refuses to complete."""
        if self._stream is not None:
            with suppress(OSError):
                self._stream.close()

    def _open(self) -> None:
        """Begin a segment, after those have been deleted that would be too many with it."""
        old = segments_in(self._folder, self._name)
        sizes = [segment.path.stat().st_size for segment in old]
        for segment in old[: n_to_delete(sizes, self._max_bytes - self._segment_bytes)]:
            segment.path.unlink()
        path = self._folder / f"{self._name}_{self._next_number}{SUFFIX}"
        self._stream = path.open("xb")
        self._next_number += 1
        self._writer = Writer(self._stream, chunk_size=_NEVER_BY_ITSELF)
        self._writer.start(library="vla_edge_ros")
        self._channels = {}
        for channel, schema in self._schemas.items():
            schema_id = self._writer.register_schema(f"vla_edge_ros.{channel}", "jsonschema", schema)
            self._channels[channel] = self._writer.register_channel(channel, "json", schema_id)
        schemas_bytes = sum(map(len, self._schemas.values()))
        self._end_bytes = schemas_bytes + _AT_END_BYTES
        self._pending_bytes = schemas_bytes + _AT_END_BYTES
        self._sequence = 0
        part = {"run_id": self._id, "number": self._n_begun}
        head = {"run": self._run | {"segment": part}}
        if self._begin is not None:
            head["begin"] = self._begin
        self._add(RUN, self._now_ns(), json.dumps(head).encode())
        self._n_begun += 1
        self._flush()
        _sync_folder(self._folder)

    def _add(self, channel: str, log_ns: int, data: bytes) -> None:
        if not self._fits(data):
            raise RingFull
        log_ns = max(0, log_ns)
        self._writer.add_message(self._channels[channel], log_ns, data, log_ns, self._sequence)
        self._sequence += 1
        self._pending_bytes += len(data) + _MESSAGE_BYTES
        if self._pending_bytes > _CHUNK_BYTES:
            self._flush()

    def _fits(self, data: bytes) -> bool:
        """Whether the segment is small enough with `data` and all that completes it, were none compressed."""
        so_far = self._stream.tell() + self._pending_bytes + self._end_bytes
        return so_far + len(data) + _MESSAGE_BYTES + 2 * _PER_CHUNK_BYTES <= self._segment_bytes

    def _flush(self) -> None:
        self._flushed_ns = time.monotonic_ns()
        if self._pending_bytes:
            self._writer.flush()
            self._pending_bytes = 0
            self._end_bytes += _PER_CHUNK_BYTES
            os.fsync(self._stream.fileno())

    def _finish(self) -> None:
        self._writer.finish()
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()

    def _now_ns(self) -> int:
        return time.monotonic_ns() + self._ros_offset_ns()


def _sync_folder(folder: Path) -> None:
    """A power cut does not take back that a file is in `folder`."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
