"""What every kind of recording file gives, before its messages are deserialised."""

from collections.abc import Collection, Iterator
from typing import NamedTuple, Protocol

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

_COMPRESSIONS = {
    ZSTD_MAGIC: "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
}


class StorageError(Exception):
    """A recording file cannot be read; the message is the reason, without the name of the file."""


class StoredTopic(NamedTuple):
    """A topic as the file names it; `type` has the form package/msg/Name."""

    name: str
    type: str
    count: int


class RawMessage(NamedTuple):
    """One stored message.

    encoding: "cdr" or "ros1" for a serialised `payload`, "decoded" where it is a message already.
    """

    topic: str
    type: str
    encoding: str
    log_ns: int
    payload: object


class Storage(Protocol):
    """One recording file.

    topics: every topic, those without a message too.
    truncated_after: the number of messages that could be read where the file ends early or is damaged,
        else None. Damage in the middle of a file is known once `messages` has met it.
    """

    topics: list[StoredTopic]
    truncated_after: int | None

    def messages(self, topics: Collection[str]) -> Iterator[RawMessage]:
        """Messages of `topics` in the order in which they were logged. Raises StorageError."""


def compression_name(head: bytes) -> str | None:
    """The compression that bytes begin with, or None; a CDR message begins with a zero byte."""
    for magic, name in _COMPRESSIONS.items():
        if head.startswith(magic):
            return name
    return None


def full_type_name(name: str) -> str:
    """`sensor_msgs/Image` and `sensor_msgs/msg/Image` are the same type: the second form."""
    package, _, rest = name.partition("/")
    return f"{package}/msg/{rest}" if rest and "/" not in rest else name
