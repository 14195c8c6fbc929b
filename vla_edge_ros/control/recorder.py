"""Writes what the control loop did to disk, off the control thread and in bounded memory."""

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from vla_edge_ros import output
from vla_edge_ros.control.record import TickRecord
from vla_edge_ros.control.ring import SUFFIX, Ring
from vla_edge_ros.perception.frame import FrameMeta

RING_BYTES = 256_000_000

_LONGEST_WAIT_S = 0.4


class Recorder:
    """Writes items as they come: into a ring of segments where `path` ends in `.mcap`, else as JSON lines.

    The queue holds at most `capacity` items; what comes while it is full is dropped and counted in `dropped`.
    A disk that refuses is said once through `error`; recording then stops, what is not on disk counts as
    dropped, and the loop goes on.
    """

    def __init__(
        self,
        path: Path,
        run: dict,
        capacity: int = 4096,
        max_bytes: int = RING_BYTES,
        ros_offset_ns: Callable[[], int] | None = None,
    ) -> None:
        """max_bytes, ros_offset_ns: as in `Ring`. Raises UserError where `path` cannot be written."""
        is_ring = path.suffix == SUFFIX
        self._file = Ring(path, run, max_bytes, ros_offset_ns) if is_ring else JsonLines(path, run)
        # Its put waits for no lock: the control thread cannot be held up by this one, whatever that does.
        self._queue: SimpleQueue[TickRecord | FrameMeta | dict | None] = SimpleQueue()
        self._capacity = capacity
        self.dropped = 0
        self.error: str | None = None
        self._thread = threading.Thread(target=self._write, name="recorder", daemon=True)
        self._thread.start()

    def put(self, item: TickRecord | FrameMeta | dict) -> None:
        """Queue an item; never blocks. It must not change afterwards. A dict is written as it is."""
        if self._queue.qsize() >= self._capacity or self.error is not None:
            self.dropped += 1
            return
        self._queue.put(item)

    def close(self) -> None:
        """Write what is queued and close the file."""
        self._queue.put(None)
        self._thread.join()

    def _write(self) -> None:
        try:
            while self._write_next():
                self._file.flush()
            self._file.close()
        except Exception as error:  # of the disk, or of an item that is no JSON
            self.error = f"recording stopped: {error}"
            self.dropped += self._file.n_unsure
            with suppress(Empty):
                while self._queue.get_nowait() is not None:
                    self.dropped += 1
            self._file.abandon()

    def _write_next(self) -> bool:
        """Write an item, or none where none comes for a while; False at the end."""
        try:
            item = self._queue.get(timeout=_LONGEST_WAIT_S)
        except Empty:
            return True
        if item is None:
            return False
        if not self._file.write(item):
            self.dropped += 1
        return True


class JsonLines:
    """One line an item: {"run": ...}, then {"frame": ...} and {"tick": ...} as they come, {"end": ...}."""

    def __init__(self, path: Path, run: dict) -> None:
        """Raises UserError where `path` cannot be written."""
        output.write_text(path, json.dumps({"run": run}) + "\n")
        self._file = path.open("a", encoding="utf-8")
        self.n_unsure = 0

    def write(self, item: TickRecord | FrameMeta | dict) -> bool:
        self.n_unsure += 1
        self._file.write(json.dumps(_line(item)) + "\n")
        return True

    def flush(self) -> None:
        self._file.flush()
        self.n_unsure = 0

    def close(self) -> None:
        self._file.close()

    def abandon(self) -> None:
        with suppress(OSError):
            self._file.close()


def _line(item: TickRecord | FrameMeta | dict) -> dict:
    if isinstance(item, TickRecord):
        return {"tick": item.to_json()}
    if isinstance(item, FrameMeta):
        return {"frame": [item.index, item.stamp_ns, item.capture_ns, item.receipt_ns]}
    return item
