"""What a ring of MCAP segments holds (`control/ring.py`), as the JSON lines that the recorder writes else."""

import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

from vla_edge_ros.control.ring import FRAME, RUN, SUFFIX, TICK, segments_in
from vla_edge_ros.evaluation.json_shape import WrongShape, check
from vla_edge_ros.evaluation.recording import StorageError
from vla_edge_ros.evaluation.storage_mcap import MAGIC, CutShort, walk
from vla_edge_ros.perception.frame import FrameMeta


class _Part(TypedDict):
    run_id: str
    number: int


class _Run(TypedDict):
    segment: _Part


class _Head(TypedDict):
    run: _Run


class NoRing(ValueError):
    """`str()` of it is one line."""


def is_ring(path: Path) -> bool:
    """Whether `path` is a folder or an MCAP file. Raises OSError."""
    if path.is_file():
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    return path.is_dir()


def ring_text(path: Path, max_bytes: int) -> str:
    """The newest run in a folder of segments, or what one segment has of its run, from its oldest tick on.

    A segment without an end is read as far as it is whole.
    Raises NoRing where there is no run, OSError.
    """
    lines, n_bytes = [], 0
    for file in _of_newest_run(path):
        for line in _lines(file, is_first=not lines):
            n_bytes += len(line) + 1
            if n_bytes > max_bytes:
                raise OSError(
                    errno.EFBIG, f"Larger than {max_bytes / 1e6:.0f} MB, which no run is", str(path)
                )
            lines.append(line)
    if len(lines) < 2:
        raise NoRing("no recorded run: nothing was recorded after its start")
    return "".join(f"{line}\n" for line in lines)


def _of_newest_run(path: Path) -> list[Path]:
    """The segments of the run that was begun last, in their order. Raises NoRing, OSError."""
    files = [segment.path for segment in segments_in(path)] if path.is_dir() else [path]
    found, run_id = [], None
    for file in reversed(files):
        head = _head(file)
        if head is None:  # of a node that was killed while it began it, or something else
            continue
        if run_id not in (None, head["run_id"]):
            break
        run_id = head["run_id"]
        found.insert(0, file)
    if not found:
        raise NoRing(
            f"no recorded run: it has no segment of one; wanted are NAME_0{SUFFIX}, NAME_1{SUFFIX} ... in a "
            "folder, as control.record_path has them written, or one of them"
        )
    return found


def _head(file: Path) -> _Part | None:
    channel, data = next(_messages(file), (None, b""))
    if channel != RUN:
        return None
    try:
        head = json.loads(data)
        check(head, _Head)
    except (ValueError, RecursionError):
        return None
    return head["run"]["segment"]


def _lines(file: Path, is_first: bool) -> Iterator[str]:
    """is_first: what each segment begins with is told."""
    messages = _messages(file)
    head = json.loads(next(messages, (RUN, b"{}"))[1])
    if is_first:
        yield json.dumps({"run": head["run"]})
        if "begin" in head:
            yield json.dumps({"begin": head["begin"]})
    for channel, data in messages:
        text = data.decode()
        if "\n" in text:
            raise WrongShape("has a message of more than one line")
        if channel == TICK:
            yield f'{{"tick": {text}}}'
        elif channel == RUN:
            yield text
        elif channel == FRAME:
            frame = json.loads(text)
            check(frame, FrameMeta)
            yield json.dumps({"frame": [frame[name] for name in FrameMeta.__slots__]})


def _messages(file: Path) -> Iterator[tuple[str, bytes]]:
    """Channel and data of every whole message in the order of the file. Raises OSError."""
    try:
        for channel, _, message in walk(file, is_sorted=False):
            yield channel.topic, message.data
    except (CutShort, StorageError):
        return
