"""MCAP files, read from front to back: chunked or not, with or without an index, whole or cut short.

Memory stays at one chunk. A library's index-driven reader would be faster where one small topic is wanted
out of many, but it loads a whole file that has no index, and it cannot read a cut one.
"""

import struct
import zlib
from collections.abc import Collection, Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import lz4.frame
import zstandard
from mcap.data_stream import ReadDataStream
from mcap.exceptions import McapError
from mcap.opcode import Opcode
from mcap.reader import SeekingReader
from mcap.records import Channel, Chunk, Message, Schema
from mcap.stream_reader import StreamReader

from vla_edge_ros.evaluation.recording import RawMessage, StorageError, StoredTopic, full_type_name

MAGIC = b"\x89MCAP0\r\n"

_RECORD_HEADER = struct.Struct("<BQ")
_DAMAGE = (
    McapError,
    zstandard.ZstdError,
    struct.error,
    ValueError,
    KeyError,
    RuntimeError,  # from lz4
    OverflowError,
    MemoryError,
)
"""What the parsers raise on bytes that are not what they should be."""


class CutShort(Exception):
    """The file ends before its last record does, or holds a record that cannot be read."""


class McapStorage:
    """Satisfies `recording.Storage`."""

    def __init__(self, path: Path) -> None:
        """Read the topics and their counts: from the summary, or from the whole file where it has none."""
        self._path = path
        self.truncated_after: int | None = None
        topics = _topics_of_summary(path)
        self.topics = self._scan() if topics is None else topics

    def messages(self, topics: Collection[str]) -> Iterator[RawMessage]:
        n_read = 0
        try:
            for channel, schema_name, message in walk(self._path):
                n_read += 1
                if channel.topic in topics:
                    type_name = full_type_name(schema_name)
                    encoding = channel.message_encoding
                    yield RawMessage(channel.topic, type_name, encoding, message.log_time, message.data)
        except CutShort:
            self.truncated_after = n_read

    def _scan(self) -> list[StoredTopic]:
        counts: dict[tuple[str, str], int] = {}
        try:
            for channel, schema_name, _ in walk(self._path):
                key = (channel.topic, full_type_name(schema_name))
                counts[key] = counts.get(key, 0) + 1
        except CutShort:
            self.truncated_after = sum(counts.values())
        return [StoredTopic(*key, count) for key, count in counts.items()]


def _topics_of_summary(path: Path) -> list[StoredTopic] | None:
    """Topics and counts from the summary at the end of the file, or None where it does not give them."""
    try:
        with path.open("rb") as file:
            summary = SeekingReader(file, record_size_limit=path.stat().st_size).get_summary()
        if summary is None or summary.statistics is None:
            return None
        counts: dict[tuple[str, str], int] = {}
        for channel in summary.channels.values():
            schema = summary.schemas.get(channel.schema_id)
            key = (channel.topic, full_type_name(schema.name if schema else ""))
            n_messages = summary.statistics.channel_message_counts.get(channel.id, 0)
            counts[key] = counts.get(key, 0) + n_messages
    except (*_DAMAGE, OSError):
        return None
    if sum(counts.values()) != summary.statistics.message_count:
        return None
    return [StoredTopic(*key, count) for key, count in counts.items()]


def walk(path: Path, is_sorted: bool = True) -> Iterator[tuple[Channel, str, Message]]:
    """Every whole message of a file with its channel and the name of its schema.

    Messages come in file order, those of a chunk in log order where they are to be sorted. Raises CutShort
    after the last message that can be read, where it is not the last of the file.
    """
    schemas: dict[int, str] = {0: ""}
    channels: dict[int, Channel] = {}

    def sort_out(records: Iterator[Schema | Channel | Message]) -> Iterator[tuple[Channel, str, Message]]:
        messages = []
        for record in records:
            if isinstance(record, Schema):
                schemas[record.id] = record.name
            elif isinstance(record, Channel):
                channels[record.id] = record
            elif isinstance(record, Message):
                messages.append(record)
        if is_sorted:
            messages.sort(key=lambda message: message.log_time)
        for message in messages:
            channel = channels[message.channel_id]
            yield channel, schemas[channel.schema_id], message

    with path.open("rb") as file:
        size_bytes = path.stat().st_size
        whole_until = len(MAGIC)
        try:
            reader = StreamReader(file, emit_chunks=True, record_size_limit=size_bytes)
            for record in reader.records:
                if isinstance(record, Chunk):
                    yield from sort_out(_records(_whole_content(record)))
                else:
                    yield from sort_out(iter([record]))
                whole_until = file.tell()
        except _DAMAGE:
            with suppress(*_DAMAGE):
                yield from sort_out(_records(_start_of_cut_chunk(file, whole_until, size_bytes)))
            raise CutShort from None


def _whole_content(chunk: Chunk) -> bytes:
    content = _decompress(chunk)
    if len(content) != chunk.uncompressed_size:
        raise ValueError("a chunk has another size than it states")
    if chunk.uncompressed_crc and zlib.crc32(content) != chunk.uncompressed_crc:
        raise ValueError("a chunk has another checksum than it states")
    return content


def _start_of_cut_chunk(file: BinaryIO, offset: int, size_bytes: int) -> bytes:
    """What can be decompressed of a chunk that begins at `offset` and that the end of the file cuts."""
    file.seek(offset)
    opcode, length = _RECORD_HEADER.unpack(file.read(_RECORD_HEADER.size))
    if opcode != Opcode.CHUNK or offset + _RECORD_HEADER.size + length <= size_bytes:
        return b""
    return _decompress(Chunk.read(ReadDataStream(BytesIO(file.read()))))


def _decompress(chunk: Chunk) -> bytes:
    """The content of a chunk, or as much of it as its bytes give."""
    if chunk.compression == "":
        return chunk.data
    if chunk.compression == "zstd":
        return zstandard.ZstdDecompressor().decompressobj().decompress(chunk.data)
    if chunk.compression == "lz4":
        return lz4.frame.LZ4FrameDecompressor().decompress(chunk.data)
    raise StorageError(f"unknown mcap chunk compression {chunk.compression!r}; wanted zstd, lz4 or none")


def _records(content: bytes) -> Iterator[Schema | Channel | Message]:
    """The whole records of a chunk's content; one that is cut ends it."""
    offset = 0
    while offset + _RECORD_HEADER.size <= len(content):
        opcode, length = _RECORD_HEADER.unpack_from(content, offset)
        offset += _RECORD_HEADER.size
        if offset + length > len(content):
            return
        stream = ReadDataStream(BytesIO(content[offset : offset + length]))
        if opcode == Opcode.MESSAGE:
            yield Message.read(stream, length)
        elif opcode == Opcode.CHANNEL:
            yield Channel.read(stream)
        elif opcode == Opcode.SCHEMA:
            yield Schema.read(stream)
        offset += length
