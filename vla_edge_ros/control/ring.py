"""Recorded items in MCAP segments of one folder, which together never exceed a number of bytes.

The folder is the path that was named, with `NAME_0.mcap`, `NAME_1.mcap` ... in it, as a bag is a folder of
files. A node that starts again goes on in the ring: what led to its end is still there. What the ring did not
write is neither counted nor deleted, and one process at a time writes to a folder.
"""

import fcntl
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from mcap.writer import Writer

from vla_edge_ros.control.record import TickRecord
from vla_edge_ros.control.record_schema import json_schema
from vla_edge_ros.errors import UserError, reason_of
from vla_edge_ros.perception.frame import FrameMeta

SUFFIX = ".mcap"
TICK, FRAME, RUN = "/tick", "/frame", "/run"
"""The channels, with a slash as other topics of MCAP files: `TickRecord.to_json`; a FrameMeta; and what else
there is: {"run": ...} at the start of each segment, {"begin": ...} and {"end": ...}."""

N_SEGMENTS = 16
"""At least: what is deleted at a time is this part of the ring or less."""

_SEGMENT_BYTES = 16_000_000
"""At most: what is read at a time, of a ring of any size, are some 20 minutes of ticks."""

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
_BEGIN_BYTES = 200
"""At most, of {"begin": ...} at the start of a segment."""

_LIBRARY = "vla_edge_ros"
_NUMBERED = re.compile(r"_([0-9]+)\.mcap")


class Segment(NamedTuple):
    number: int
    path: Path


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

    n_unsure: items that were handed over and may not be on the disk.
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
        self._segment_bytes = min(max_bytes // N_SEGMENTS, _SEGMENT_BYTES)
        self._ros_offset_ns = ros_offset_ns or (lambda: time.time_ns() - time.monotonic_ns())
        self._begin: dict | None = None
        self._n_begun = 0
        self.n_unsure = 0
        self._next_number = 0
        self._stream = self._lock = None
        schemas = {TICK: json_schema(TickRecord), FRAME: json_schema(FrameMeta), RUN: json_schema(dict)}
        self._schemas = {channel: json.dumps(schema).encode() for channel, schema in schemas.items()}
        self._largest_bytes = self._segment_bytes - self._frame_bytes() - len(self._head())
        if self._largest_bytes < self._segment_bytes // 2:
            raise UserError(
                f"{folder}: control.record_bytes {max_bytes} is too small: the run's parameters and schemas, "
                f"with which each segment starts, take more than half of a segment of {self._segment_bytes}"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(folder)
            self._open()
        except BlockingIOError:
            raise UserError(
                f"{folder}: another node records into it; give each a control.record_path of its own"
            ) from None
        except (OSError, ValueError) as error:
            self.abandon()
            raise UserError(
                f"{folder}: cannot be written: {reason_of(error)}; name a folder for the segments"
            ) from None

    def write(self, item: TickRecord | FrameMeta | dict) -> bool:
        """False where the item is larger than a segment, and is left out."""
        self.n_unsure += 1
        if isinstance(item, TickRecord):
            message = TICK, item.effect_stamp_ns, item.to_json()
        elif isinstance(item, FrameMeta):
            message = FRAME, item.receipt_ns + self._ros_offset_ns(), asdict(item)
        else:
            message = RUN, self._now_ns(), item
        channel, log_ns, value = message
        data = json.dumps(value).encode()
        if len(data) > self._largest_bytes:  # before a segment is ended for nothing, and an old one deleted
            self.n_unsure -= 1
            return False
        if not self._fits(data):
            self._finish()
            self.n_unsure = 1
            self._open()
        self._add(channel, log_ns, data)
        if channel == RUN:
            self._begin = value.get("begin", self._begin)
        return True

    def flush(self) -> None:
        """Put what was written on the disk where that is due."""
        if time.monotonic_ns() - self._flushed_ns >= FLUSH_NS:
            self._flush()
            self.n_unsure = 0

    def close(self) -> None:
        """Complete the segment, and let others write to the folder."""
        self._finish()
        self._unlock()

    def abandon(self) -> None:
        """Let go of a file that the disk refuses to complete."""
        if self._stream is not None:
            with suppress(OSError):
                self._stream.close()
        self._unlock()

    def _open(self) -> None:
        """Begin a segment, after those have been deleted that would be too many with it."""
        there = segments_in(self._folder, self._name)
        sizes = _own_sizes(there)
        for path in list(sizes)[: n_to_delete([*sizes.values()], self._max_bytes - self._segment_bytes)]:
            path.unlink(missing_ok=True)
        self._next_number = max([self._next_number, *(segment.number + 1 for segment in there)])
        path = self._folder / f"{self._name}_{self._next_number}{SUFFIX}"
        self._stream = path.open("xb")
        self._next_number += 1
        self._writer = Writer(self._stream, chunk_size=_NEVER_BY_ITSELF)
        self._writer.start(library=_LIBRARY)
        self._channels = {}
        for channel, schema in self._schemas.items():
            schema_id = self._writer.register_schema(f"vla_edge_ros.{channel[1:]}", "jsonschema", schema)
            self._channels[channel] = self._writer.register_channel(channel, "json", schema_id)
        self._end_bytes = self._pending_bytes = self._schemas_bytes()
        self._sequence = 0
        self._add(RUN, self._now_ns(), self._head())
        self._n_begun += 1
        try:
            self._flush()
        except OSError:
            path.unlink()
            raise
        os.fsync(self._lock)  # a power cut does not take back that the file is in the folder

    def _head(self) -> bytes:
        """The message that a segment starts with."""
        head = {"run": self._run | {"segment": {"run_id": self._id, "number": self._n_begun}}}
        if self._begin is not None:
            head["begin"] = self._begin
        return json.dumps(head).encode()

    def _add(self, channel: str, log_ns: int, data: bytes) -> None:
        log_ns = max(0, log_ns)
        self._writer.add_message(self._channels[channel], log_ns, data, log_ns, self._sequence)
        self._sequence += 1
        self._pending_bytes += len(data) + _MESSAGE_BYTES
        if self._pending_bytes > _CHUNK_BYTES:
            self._flush()
            self.n_unsure = 0

    def _schemas_bytes(self) -> int:
        """What they and the channels take, once at the start of a segment and once at its end."""
        return sum(map(len, self._schemas.values())) + _AT_END_BYTES

    def _frame_bytes(self) -> int:
        """At most what a segment of its first message and another takes beside their data."""
        return 2 * self._schemas_bytes() + 2 * _MESSAGE_BYTES + 3 * _PER_CHUNK_BYTES + _BEGIN_BYTES

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

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _now_ns(self) -> int:
        return time.monotonic_ns() + self._ros_offset_ns()


def _locked(folder: Path) -> int:
    """A descriptor of the folder with a lock that one process can have, until it ends or closes it.

    Raises BlockingIOError where another has it, OSError.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:  # a file system of a network that has no locks
        pass
    return descriptor


def _own_sizes(segments: Sequence[Segment]) -> dict[Path, int]:
    """Those that a ring wrote, with their sizes: a bag may have files of such names, and begins otherwise."""
    stream = BytesIO()
    Writer(stream).start(library=_LIBRARY)
    start = stream.getvalue()
    found = {}
    for _, path in segments:
        with suppress(FileNotFoundError, PermissionError), path.open("rb") as file:
            if file.read(len(start)) == start and not path.is_symlink():
                found[path] = os.fstat(file.fileno()).st_size
    return found
