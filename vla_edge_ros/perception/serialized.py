"""sensor_msgs/Image and CompressedImage from the bytes that the middleware delivers.

rclpy can hand over a message as bytes. It then copies the pixels once and not twice, with the interpreter
lock held. Nothing is copied here. The reader of rosbags copies, and the node needs nothing else of that
library.

OMG Common Data Representation as DDSI-RTPS 2.2 uses it (10.2): four bytes of encapsulation, then values of n
bytes at multiples of n.
"""

import struct
from dataclasses import dataclass

from vla_edge_ros.perception.refusal import ImageRefused, RefusalKind

_BIG_ENDIAN, _LITTLE_ENDIAN = b"\x00\x00", b"\x00\x01"
_ENCAPSULATION_BYTES = 4


@dataclass(frozen=True, slots=True)
class Stamp:
    sec: int
    nanosec: int


@dataclass(frozen=True, slots=True)
class Header:
    stamp: Stamp
    frame_id: str


@dataclass(frozen=True, slots=True)
class RawImage:
    """The fields of sensor_msgs/Image; `data` is a view of the message's bytes."""

    header: Header
    height: int
    width: int
    encoding: str
    is_bigendian: int
    step: int
    data: memoryview


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """The fields of sensor_msgs/CompressedImage; `data` is a view of the message's bytes."""

    header: Header
    format: str
    data: memoryview


def read_image(message: bytes, topic: str) -> RawImage:
    """Raises ImageRefused."""
    return _read(message, topic, "sensor_msgs/Image", _image)


def read_compressed_image(message: bytes, topic: str) -> EncodedImage:
    """Raises ImageRefused."""
    return _read(message, topic, "sensor_msgs/CompressedImage", _compressed_image)


def _read(message: bytes, topic: str, kind: str, make):
    try:
        return make(_Reader(message))
    except (struct.error, ValueError) as error:
        raise ImageRefused(
            RefusalKind.TRUNCATED,
            f"{topic}: {len(message)} bytes are no {kind}: {error}; look at what publishes the topic",
        ) from None


def _image(reader: "_Reader") -> RawImage:
    header = reader.header()
    height, width = reader.uint32(), reader.uint32()
    encoding, is_bigendian = reader.string(), reader.uint8()
    return RawImage(header, height, width, encoding, is_bigendian, reader.uint32(), reader.sequence())


def _compressed_image(reader: "_Reader") -> EncodedImage:
    return EncodedImage(reader.header(), reader.string(), reader.sequence())


class _Reader:
    """Reads values in their order. Raises struct.error or ValueError where the message ends before."""

    def __init__(self, message: bytes) -> None:
        order = {_BIG_ENDIAN: ">", _LITTLE_ENDIAN: "<"}.get(message[:2])
        if order is None:
            raise ValueError(f"encapsulation {message[:2].hex() or 'missing'}, wanted 0000 or 0001")
        self._message = memoryview(message)
        self._at = _ENCAPSULATION_BYTES
        self._uint32 = struct.Struct(f"{order}I")
        self._stamp = struct.Struct(f"{order}iI")

    def uint8(self) -> int:
        return self._take(1)[0]

    def uint32(self) -> int:
        self._at = -(-self._at // 4) * 4
        return self._uint32.unpack(self._take(4))[0]

    def string(self) -> str:
        return bytes(self._take(self.uint32())).rstrip(b"\0").decode(errors="replace")

    def sequence(self) -> memoryview:
        return self._take(self.uint32())

    def header(self) -> Header:
        return Header(Stamp(*self._stamp.unpack(self._take(8))), self.string())

    def _take(self, n_bytes: int) -> memoryview:
        taken = self._message[self._at : self._at + n_bytes]
        if len(taken) < n_bytes:
            raise ValueError(f"wanted {n_bytes} bytes at {self._at}, found {len(taken)}")
        self._at += n_bytes
        return taken
