"""ROS 1 bags of format 2.0, uncompressed or with bz2 or lz4 chunks."""

from collections.abc import Collection, Iterator
from pathlib import Path

from rosbags.rosbag1 import Reader

from vla_edge_ros.evaluation.recording import RawMessage, StorageError, StoredTopic, full_type_name

MAGIC = b"#ROSBAG V"


class Ros1Storage:
    """Satisfies `recording.Storage`. Messages come in the order of their log time."""

    truncated_after = None

    def __init__(self, path: Path) -> None:
        """Read the topics and their counts. Raises StorageError."""
        self._path = path
        counts: dict[tuple[str, str], int] = {}
        try:
            with Reader(path) as reader:
                for connection in reader.connections:
                    key = (connection.topic, full_type_name(connection.msgtype))
                    counts[key] = counts.get(key, 0) + connection.msgcount
        # The library lets whatever its parsing meets pass: struct.error, AssertionError, IndexError, ...
        except Exception as error:
            raise StorageError(
                f"the ROS 1 bag is cut short, damaged or without an index ({_reason(error)});"
                " `rosbag reindex` may repair it"
            ) from None
        self.topics = [StoredTopic(*key, count) for key, count in counts.items()]

    def messages(self, topics: Collection[str]) -> Iterator[RawMessage]:
        n_read = 0
        try:
            with Reader(self._path) as reader:
                wanted = [connection for connection in reader.connections if connection.topic in topics]
                for connection, log_ns, data in reader.messages(wanted) if wanted else ():
                    type_name = full_type_name(connection.msgtype)
                    yield RawMessage(connection.topic, type_name, "ros1", log_ns, data)
                    n_read += 1
        except Exception as error:
            raise StorageError(
                f"the ROS 1 bag is damaged after {n_read} messages ({_reason(error)})"
            ) from None


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
