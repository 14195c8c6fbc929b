"""Writes the messages of a node into one mcap file, off the threads that send them."""

import queue
import tempfile
import threading
from pathlib import Path

from rclpy.serialization import serialize_message
from rosbags.rosbag2 import StoragePlugin, Writer, WriterError

from vla_edge_ros import output
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.message_types import ros2_types

_MOST_WAITING = 4096


class BagRecorder:
    """`put` never blocks: what finds the queue full, or the disk, is dropped and counted in `dropped`.

    types: ROS's name of each topic's type. The file is complete after `close`, and replaces `path` then.
    failure: why there is no file after `close`; None where there is one.
    Raises UserError where `path` cannot be written.
    """

    def __init__(self, path: Path, types: dict[str, str]) -> None:
        output.prepare(path)
        self.dropped = 0
        self.failure: UserError | None = None
        self._path = path
        # Beside the file that it becomes, so that it can be moved there as a whole.
        self._folder = tempfile.TemporaryDirectory(prefix=".recording-", dir=path.parent)
        self._writer = Writer(Path(self._folder.name) / "bag", version=8, storage_plugin=StoragePlugin.MCAP)
        self._writer.open()
        store = ros2_types()
        self._connections = {
            topic: self._writer.add_connection(topic, name, typestore=store) for topic, name in types.items()
        }
        self._queue: queue.Queue = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._write, name="bag_recorder", daemon=True)
        self._thread.start()

    def put(self, topic: str, log_ns: int, message: object) -> None:
        """Have `message` written as received at `log_ns`, ROS time; it must not change afterwards."""
        try:
            self._queue.put_nowait((topic, log_ns, message))
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Write what is waiting, and put the file in its place."""
        self._queue.put(None)
        self._thread.join()
        with self._folder:
            try:
                self._writer.close()
                (file,) = Path(self._folder.name).rglob("*.mcap")
                if self.failure is None:
                    file.replace(self._path)
            except (OSError, ValueError, WriterError) as error:
                self._fail(error)

    def _write(self) -> None:
        while (item := self._queue.get()) is not None:
            topic, log_ns, message = item
            if self.failure is not None:
                self.dropped += 1
                continue
            try:
                self._writer.write(self._connections[topic], log_ns, serialize_message(message))
            except Exception as error:  # of the disk, or of a message that is none of its topic's
                self.dropped += 1
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.failure = self.failure or UserError(f"{self._path}: the recording failed: {error}")
