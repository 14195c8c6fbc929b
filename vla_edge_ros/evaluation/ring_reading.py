"""What a ring of MCAP segments holds (`control/ring.py`), as the JSON lines that the recorder writes else."""

import errno
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypedDict

from vla_edge_ros.control.ring import FRAME, RUN, SUFFIX, TICK, segments_in
from vla_edge_ros.evaluation.json_shape import WrongShape, check
from vla_edge_ros.evaluation.recording import StorageError
from vla_edge_ros.evaluation.storage_mcap import MAGIC, CutShort, walk
from vla_edge_ros.perception.frame import FrameMeta

_N_LINES_AFTER = 1000
"""Some ten seconds: work that a tick began is seen to its end in the next ones."""


class _Part(TypedDict):
    run_id: str
    number: int


class _Run(TypedDict):
    segment: _Part


class _Head(TypedDict):
    run: _Run


@dataclass(slots=True)
class _Lines:
    """Of a segment: its first message, and the lines of those after it."""

    head: dict
    lines: list[str]
    n_bytes: int
    is_cut: bool


class _Cut(Exception):
    pass


class NoRing(ValueError):
    """`str()` of it is one line."""


def is_ring(path: Path) -> bool:
    """Whether `path` is a folder or an MCAP file. Raises OSError."""
    if path.is_file():
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    return path.is_dir()


def ring_text(path: Path, max_bytes: int, enough_bytes: int | None = None, tick: int | None = None) -> str:
    """The newest run in a folder of segments, or what one segment has of its run, from its oldest tick on.

    A segment without an end is read as far as it is whole.
    enough_bytes: older segments are left out where the newer ones would have more text with them; None: none.
    tick: what is newer than the last segment with a tick of this number is left out, but for a few messages;
        where none has it, what is newer than where it would be.
    The first line names what the folder has and the text has not: `left_out`, segments of earlier runs and
    these; `cut`, those whose end cannot be read, but for the newest, which is being written or was cut
    by a kill. Raises NoRing where there is no run, WrongShape, OSError.
    """
    files = _segments(path)
    newest = _of_newest_run(files)
    after: list[Path] = []
    if tick is not None and (place := _last_with(tick, newest)) is not None:
        newest, after = newest[: place + 1], newest[place + 1 : place + 2]
    parts: list[_Lines] = []
    n_bytes = 0
    for file in reversed(newest):
        try:
            part = _lines(file, max_bytes - n_bytes)
        except FileNotFoundError:  # the node goes on writing, and has deleted it since
            break
        if parts and enough_bytes is not None and n_bytes + part.n_bytes > enough_bytes:
            break
        n_bytes += part.n_bytes
        parts.insert(0, part)
    if not any(part.lines for part in parts):
        raise NoRing("no recorded run: nothing was recorded after its start")
    head = parts[0].head
    read = newest[-len(parts) :] + after
    parts += [_lines(file, max_bytes, _N_LINES_AFTER) for file in after]
    first = {
        "run": head["run"],
        "left_out": [file.name for file in files if file not in read],
        "cut": [file.name for file, part in zip(read[:-1], parts, strict=False) if part.is_cut],
    }
    lines = [json.dumps(first)]
    if "begin" in head:
        lines.append(json.dumps({"begin": head["begin"]}))
    for part in parts:
        lines += part.lines
    return "".join(f"{line}\n" for line in lines)


def _segments(path: Path) -> list[Path]:
    """Those of the folder's name, which may lie beside others, else all that there are. Raises OSError."""
    if not path.is_dir():
        return [path]
    found = segments_in(path, path.resolve().name.removesuffix(SUFFIX)) or segments_in(path)
    return [segment.path for segment in found]


def _of_newest_run(files: list[Path]) -> list[Path]:
    """The segments of the run that was begun last, in their order. Raises NoRing, OSError."""
    found, run_id = [], None
    for file in reversed(files):
        head = _head(file)
        if head is None:  # of a node that was killed while it began it, damaged, or something else
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
    with suppress(_Cut, FileNotFoundError):
        channel, data = next(_messages(file), (None, b""))
        if channel != RUN:
            return None
        try:
            head = json.loads(data)
            check(head, _Head)
        except (ValueError, RecursionError):
            return None
        return head["run"]["segment"]
    return None


def _last_with(tick: int, files: list[Path]) -> int | None:
    """The place of the last of the segments with a tick of that number.

    Numbers begin anew with each activation, of which a run may have several, and a segment too. Where none
    has it, the place of the last one that begins before it, None where none does. Raises OSError.
    """
    begin_after: object = _UNKNOWN
    would_have = None
    for place in reversed(range(len(files))):
        begin, first = _start(files[place])
        # A segment starts with what had begun before it: where the next one's is that too, it has no restart.
        is_later = begin == begin_after and first is not None and first > tick
        begin_after = begin
        if not is_later and _has(tick, files[place]):
            return place
        if would_have is None and first is not None and first <= tick:
            would_have = place
    return would_have


_UNKNOWN = object()

_NO_TICK = (ValueError, RecursionError, KeyError, TypeError)
"""What looking into a message raises that is none of a run's."""


def _start(file: Path) -> tuple[object, int | None]:
    """What had begun before a segment, and the number of its first tick. Raises OSError."""
    begin = None
    with suppress(_Cut, FileNotFoundError, *_NO_TICK):
        for n, (channel, data) in enumerate(_messages(file)):
            if n == 0:
                begin = json.loads(data).get("begin")
            elif channel == TICK:
                return begin, _number(data)
    return begin, None


def _has(tick: int, file: Path) -> bool:
    """Whether the number is among those from an activation's first tick in it to its last. Raises OSError."""
    with suppress(*_NO_TICK):
        return any(_number(first) <= tick <= _number(last) for first, last in _rows(file))
    return False


def _rows(file: Path) -> Iterator[tuple[bytes, bytes]]:
    """First and last tick of each activation that has some in a segment, as far as it is whole."""
    first = last = None
    with suppress(_Cut, FileNotFoundError):  # its node deletes the oldest meanwhile
        for channel, data in _messages(file):
            if channel == TICK:
                first, last = first or data, data
            elif channel == RUN and first is not None:
                yield first, last
                first = None
    if first is not None:
        yield first, last


def _number(data: bytes) -> int:
    number = json.loads(data)["tick"]
    if type(number) is not int:
        raise TypeError
    return number


def _lines(file: Path, max_bytes: int, max_lines: int | None = None) -> _Lines:
    """Raises WrongShape, OSError."""
    messages = islice(_messages(file), max_lines)
    found = _Lines({}, [], 0, False)
    try:
        found.head = json.loads(next(messages)[1])
        for channel, data in messages:
            line = _line(channel, data)
            if line is None:
                continue
            found.n_bytes += len(line) + 1
            if found.n_bytes > max_bytes:
                raise OSError(errno.EFBIG, "Larger than what a run is read of at a time", str(file))
            found.lines.append(line)
    except _Cut:
        found.is_cut = True
    return found


def _line(channel: str, data: bytes) -> str | None:
    """As the recorder's; None of what is no part of it."""
    text = data.decode()
    if "\n" in text:
        raise WrongShape("has a message of more than one line")
    if channel == TICK:
        return f'{{"tick": {text}}}'
    if channel == RUN:
        return text
    if channel == FRAME:
        frame = json.loads(text)
        check(frame, FrameMeta)
        return json.dumps({"frame": [frame[name] for name in FrameMeta.__slots__]})
    return None


def _messages(file: Path) -> Iterator[tuple[str, bytes]]:
    """Channel and data of every whole message in the order of the file. Raises _Cut after it, OSError."""
    try:
        for channel, _, message in walk(file, is_sorted=False):
            yield channel.topic, message.data
    except (CutShort, StorageError):
        raise _Cut from None
