"""Small recordings with known content, written the way users' tools write them."""

from pathlib import Path

import numpy as np
from mcap.writer import CompressionType
from mcap.writer import Writer as McapWriter
from rosbags import rosbag1, rosbag2
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin
from rosbags.typesys import Stores, get_typestore

from vla_edge_ros.evaluation.message_types import IMAGE, STRING, image_message, ros2_types

BASE_NS = 1_700_000_000_000_000_000
PERIOD_NS = 10_000_000
DELAY_NS = 2_000_000
TOPIC = "/cam/image_raw"

NO_COMPRESSION = CompressionMode.NONE


def pixels(index: int) -> np.ndarray:
    """(4, 6, 3) uint8, another one for each index."""
    return ((np.arange(72) * 3 + index * 7) % 256).astype(np.uint8).reshape(4, 6, 3)


def image(index: int, stamp_ns: int | None = None) -> object:
    stamp_ns = BASE_NS + index * PERIOD_NS if stamp_ns is None else stamp_ns
    return image_message(pixels(index), "rgb8", stamp_ns, "cam")


def log_ns(index: int) -> int:
    return BASE_NS + DELAY_NS + index * PERIOD_NS


def write_rosbag2(
    folder: Path,
    n_images: int = 12,
    plugin: StoragePlugin = StoragePlugin.MCAP,
    compression: CompressionMode = NO_COMPRESSION,
    topics: tuple[str, ...] = (TOPIC,),
    instructions: tuple[str, ...] = (),
) -> Path:
    """`n_images` images on each of `topics`, and one instruction before each of the first images."""
    types = ros2_types()
    writer = rosbag2.Writer(folder, version=9, storage_plugin=plugin)
    if compression != NO_COMPRESSION:
        writer.set_compression(compression, CompressionFormat.ZSTD)
    with writer:
        connections = [writer.add_connection(topic, IMAGE, typestore=types) for topic in topics]
        if instructions:
            said = writer.add_connection("/instruction", STRING, typestore=types)
        for index in range(n_images):
            if index < len(instructions):
                string = types.types[STRING](data=instructions[index])
                writer.write(said, log_ns(index) - 1, types.serialize_cdr(string, STRING))
            for connection in connections:
                writer.write(connection, log_ns(index), types.serialize_cdr(image(index), IMAGE))
    return folder


def write_rosbag1(path: Path, n_images: int = 12) -> Path:
    types = get_typestore(Stores.ROS1_NOETIC)
    image_type = types.types[IMAGE]
    with rosbag1.Writer(path) as writer:
        connection = writer.add_connection(TOPIC, IMAGE, typestore=types)
        for index in range(n_images):
            source = image(index)
            stamped = types.types["std_msgs/msg/Header"](seq=index, stamp=source.header.stamp, frame_id="cam")
            fields = ("height", "width", "encoding", "is_bigendian", "step", "data")
            message = image_type(header=stamped, **{name: getattr(source, name) for name in fields})
            writer.write(connection, log_ns(index), types.serialize_ros1(message, IMAGE))
    return path


def write_mcap(
    path: Path,
    payloads: list[bytes],
    compression: CompressionType = CompressionType.ZSTD,
    type_name: str = IMAGE,
    encoding: str = "cdr",
    chunk_bytes: int = 2000,
    **options: bool,
) -> Path:
    """A file of the MCAP project's own writer; `options` leave out its indexes, summary or chunks."""
    with path.open("wb") as file:
        writer = McapWriter(file, chunk_size=chunk_bytes, compression=compression, **options)
        writer.start(profile="", library="test")
        schema = writer.register_schema(type_name, "ros2msg", b"")
        channel = writer.register_channel(TOPIC, encoding, schema)
        for index, payload in enumerate(payloads):
            writer.add_message(channel, log_ns(index), payload, log_ns(index))
        writer.finish()
    return path


def image_payloads(n_images: int = 12) -> list[bytes]:
    return [bytes(ros2_types().serialize_cdr(image(index), IMAGE)) for index in range(n_images)]
