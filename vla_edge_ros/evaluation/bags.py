"""Recordings as users have them: rosbag2 (sqlite3, mcap), ROS 1 bags and video files, through one door."""

from collections.abc import Collection, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import zstandard

from vla_edge_ros.errors import UserError, printable, reason_of
from vla_edge_ros.evaluation.message_types import COMPRESSED_IMAGE, IMAGE, STRING, deserialise
from vla_edge_ros.evaluation.recording import ZSTD_MAGIC, RawMessage, Storage, StorageError
from vla_edge_ros.evaluation.recording_files import open_storage, recording_files
from vla_edge_ros.perception.message import header_stamp_ns

TRUNCATED = 3
"""Exit code of a command that read a recording as far as it goes."""

_LISTED_TOPICS = 12


class BagRefused(UserError):
    """A recording cannot be used."""


class TopicInfo(NamedTuple):
    """A topic of a recording; `is_compressed` where its messages are CompressedImage."""

    name: str
    type: str
    count: int
    is_compressed: bool


class BagImage(NamedTuple):
    """One image of a recording.

    log_ns: when the recorder received it.
    stamp_ns: its header's stamp, exactly as the camera sent it (0 where it sent none).
    message: the fields of sensor_msgs Image or CompressedImage; `data` is a uint8 array.
    """

    log_ns: int
    stamp_ns: int
    message: object


class BagString(NamedTuple):
    log_ns: int
    text: str


class BagMessage(NamedTuple):
    """A message of any type of ROS's common packages, with its fields."""

    log_ns: int
    message: object


class Bag:
    """An open recording. `images`, `strings`, `messages` and `play` each read anew from its beginning.

    unreadable_messages: how many messages of the topics asked for could not be deserialised, in the reading
        that met the most.
    """

    def __init__(self, path: Path, storages: list[Storage], resources: ExitStack) -> None:
        self.path = path
        self.unreadable_messages = 0
        self._storages = storages
        self._resources = resources

    def __enter__(self) -> "Bag":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove what was decompressed; safe to call twice."""
        self._resources.close()

    @property
    def truncated_after(self) -> int | None:
        """How many messages of all topics can be read, where the recording is cut or damaged; else None.

        A cut file is known when it is opened, damage in the middle of one after reading up to it.
        """
        if all(storage.truncated_after is None for storage in self._storages):
            return None
        return sum(
            sum(topic.count for topic in storage.topics)
            if storage.truncated_after is None
            else storage.truncated_after
            for storage in self._storages
        )

    @property
    def losses(self) -> list[str]:
        """What was not read, so far: a line for each kind."""
        lines = []
        if self.unreadable_messages:
            lines.append(f"{self.path}: left out {self.unreadable_messages} messages that cannot be read")
        if self.truncated_after is not None:
            lines.append(f"{self.path}: truncated after {self.truncated_after} messages")
        return [printable(line) for line in lines]

    def topics(self) -> list[TopicInfo]:
        """All topics, by name; the parts of a split recording taken together."""
        counts: dict[tuple[str, str], int] = {}
        for storage in self._storages:
            for topic in storage.topics:
                key = (topic.name, topic.type)
                counts[key] = counts.get(key, 0) + topic.count
        return [
            TopicInfo(name, type_name, count, type_name == COMPRESSED_IMAGE)
            for (name, type_name), count in sorted(counts.items())
        ]

    def image_topics(self) -> list[TopicInfo]:
        return [topic for topic in self.topics() if topic.type in (IMAGE, COMPRESSED_IMAGE)]

    def pick_image_topic(self, name: str | None = None) -> TopicInfo:
        """The image topic called `name`, or the only one that has messages.

        Raises BagRefused where there is none or there are several, and lists what is there.
        """
        images = self.image_topics()
        if name:
            named = [topic for topic in self.topics() if topic.name.strip("/") == name.strip("/")]
            candidates = [topic for topic in named if topic in images]
            if named and not candidates:
                raise BagRefused(
                    f"{self.path}: {name} is no image topic but {named[0].type}; {self.there_are()}"
                )
            if not named:
                raise BagRefused(f"{self.path}: there is no topic {name}; {self.there_are()}")
        else:
            candidates = images
            if not images:
                raise BagRefused(f"{self.path}: there is no image topic; {self.there_are()}")
        with_messages = [topic for topic in candidates if topic.count]
        if not with_messages:
            raise BagRefused(f"{self.path}: there is no message on {_listed(candidates)}")
        if len(with_messages) > 1:
            raise BagRefused(
                f"{self.path}: name one of several image topics: {_listed(with_messages)} (option --topic)"
            )
        return with_messages[0]

    def instruction_topic(self) -> str | None:
        """The first topic of strings whose name ends in `instruction`, or None."""
        for topic in self.topics():
            if topic.type == STRING and topic.name.endswith("instruction") and topic.count:
                return topic.name
        return None

    def images(self, topic: str) -> Iterator[BagImage]:
        """The images of `topic` in log order, one in memory at a time. Raises BagRefused on damage."""
        return (item for _, item in self.play([topic]) if isinstance(item, BagImage))

    def strings(self, topic: str) -> Iterator[BagString]:
        """The std_msgs String messages of `topic` in log order."""
        return (item for _, item in self.play([topic]) if isinstance(item, BagString))

    def play(self, topics: Collection[str]) -> Iterator[tuple[str, BagImage | BagString]]:
        """Images and strings of several topics in one pass, each with the name of its topic.

        A message that cannot be read is counted and left out; BagRefused is raised on damage that ends a file
        for good, and where not one message could be read.
        """
        for raw, message in self._read(topics, (IMAGE, COMPRESSED_IMAGE, STRING)):
            if raw.type == STRING:
                yield raw.topic, BagString(raw.log_ns, message.data)
            else:
                yield raw.topic, BagImage(raw.log_ns, header_stamp_ns(message), message)

    def messages(self, topic: TopicInfo) -> Iterator[BagMessage]:
        """The messages of `topic`, which is one of `topics()`, in log order. Raises as `play` does."""
        return (BagMessage(raw.log_ns, message) for raw, message in self._read([topic.name], (topic.type,)))

    def _read(self, topics: Collection[str], types: Collection[str]) -> Iterator[tuple[RawMessage, object]]:
        n_read = n_unreadable = 0
        reason = ""
        try:
            for storage in self._storages:
                for raw in storage.messages(topics):
                    if raw.type not in types:
                        continue
                    try:
                        message = deserialise(_decompressed(raw.payload), raw.encoding, raw.type)
                    except (ValueError, zstandard.ZstdError) as error:
                        reason = reason or str(error)
                        n_unreadable += 1
                        self.unreadable_messages = max(self.unreadable_messages, n_unreadable)
                        continue
                    n_read += 1
                    yield raw, message
        except (StorageError, OSError) as error:
            raise BagRefused(f"{self.path}: {error}") from None
        if n_unreadable and not n_read:
            raise BagRefused(f"{self.path}: none of {n_unreadable} messages can be read: {reason}")

    def there_are(self) -> str:
        """Which topics it has, for the end of an error's line."""
        topics = self.topics()
        return f"its topics are {_listed(topics)}" if topics else "it has no topics at all"


def open_bag(path: str | Path) -> Bag:
    """Open a recording: a rosbag2 folder, a single .db3, .mcap or ROS 1 .bag file, or a video file.

    Folders need no metadata.yaml; files may be compressed as a whole (.zstd) or message by message. A cut
    mcap file opens and says so in `truncated_after`. Raises BagRefused with one line on anything else.
    """
    path = Path(path)
    with ExitStack() as resources:
        file = path
        storages = []
        try:
            for file in recording_files(path):
                storages.append(open_storage(file, resources))
        except StorageError as error:
            raise BagRefused(f"{file}: {error}") from None
        except OSError as error:
            raise BagRefused(f"{file}: {reason_of(error)}") from None
        bag = Bag(path, storages, resources.pop_all())
    if bag.truncated_after == 0:
        bag.close()
        raise BagRefused(f"{path}: cut short before its first message")
    return bag


def _decompressed(payload: object) -> object:
    """Undo rosbag2's message compression, told by its magic: a CDR message begins with a zero byte."""
    if isinstance(payload, bytes) and payload.startswith(ZSTD_MAGIC):
        return zstandard.ZstdDecompressor().decompressobj().decompress(payload)
    return payload


def _listed(topics: list[TopicInfo]) -> str:
    listed = [f"{topic.name} ({topic.type}, {topic.count})" for topic in topics[:_LISTED_TOPICS]]
    if len(topics) > _LISTED_TOPICS:
        listed.append(f"and {len(topics) - _LISTED_TOPICS} more")
    return ", ".join(listed)
