"""rosbag2's sqlite3 files, of every schema version: tables `topics` and `messages`."""

import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from vla_edge_ros.evaluation.recording import RawMessage, StorageError, StoredTopic, full_type_name

MAGIC = b"SQLite format 3\0"


class SqliteStorage:
    """Satisfies `recording.Storage`. Messages come in the order of their log time."""

    truncated_after = None

    def __init__(self, path: Path) -> None:
        """Read the topics and their counts. Raises StorageError."""
        self._path = path
        self._refuse_if_cut()
        try:
            with closing(self._connect()) as connection:
                tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
                if not {"topics", "messages"} <= tables:
                    raise StorageError("a sqlite3 file without rosbag2's tables topics and messages")
                counts = dict(connection.execute("SELECT topic_id, count(*) FROM messages GROUP BY topic_id"))
                rows = connection.execute("SELECT id, name, type, serialization_format FROM topics")
                self._topics = {
                    topic_id: (str(name), full_type_name(str(type_name)), encoding)
                    for topic_id, name, type_name, encoding in rows
                }
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise StorageError(f"the sqlite3 file is damaged ({error})") from None
        self.topics = [
            StoredTopic(name, type_name, counts.get(topic_id, 0))
            for topic_id, (name, type_name, _) in self._topics.items()
        ]

    def messages(self, topics: Collection[str]) -> Iterator[RawMessage]:
        ids = [topic_id for topic_id, (name, _, _) in self._topics.items() if name in topics]
        query = (
            "SELECT topic_id, CAST(timestamp AS INTEGER), data FROM messages"
            f" WHERE topic_id IN ({','.join('?' * len(ids))}) ORDER BY timestamp, id"
        )
        n_read = 0
        try:
            with closing(self._connect()) as connection:
                for topic_id, log_ns, data in connection.execute(query, ids):
                    yield RawMessage(*self._topics[topic_id], log_ns, data)
                    n_read += 1
        except sqlite3.Error as error:
            raise StorageError(f"the sqlite3 file is damaged after {n_read} messages ({error})") from None

    def _connect(self) -> sqlite3.Connection:
        # A killed recorder leaves messages in the write-ahead log, which `immutable` would leave out; where
        # there is no such log, `immutable` lets a read-only folder be read.
        how = "mode=ro" if self._has_write_ahead_log() else "immutable=1"
        return sqlite3.connect(f"file:{quote(str(self._path.absolute()))}?{how}", uri=True)

    def _has_write_ahead_log(self) -> bool:
        log = self._path.with_name(self._path.name + "-wal")
        return log.is_file() and log.stat().st_size > 0

    def _refuse_if_cut(self) -> None:
        """Compare the file's size with the one that its header states (https://sqlite.org/fileformat.html)."""
        with self._path.open("rb") as file:
            header = file.read(100)
        size_bytes = self._path.stat().st_size
        page_bytes = int.from_bytes(header[16:18], "big")
        page_bytes = 65536 if page_bytes == 1 else page_bytes
        wanted_bytes = page_bytes * int.from_bytes(header[28:32], "big")
        states_its_size = header[24:28] == header[92:96]
        is_cut = len(header) < 100 or (states_its_size and size_bytes < wanted_bytes)
        if is_cut and not self._has_write_ahead_log():
            raise StorageError(
                f"the sqlite3 file is cut short: {size_bytes} of {wanted_bytes} bytes are there;"
                " copy it again, or recover it with `sqlite3 FILE .recover`"
            )
