"""Messages as bytes: the little-endian CDR that DDS sends and that rclpy publishes as it is.

OMG Common Data Representation as DDSI-RTPS 2.2 uses it (10.2, encapsulation CDR_LE): a value of n bytes
begins at a multiple of n after the encapsulation. Strings are padded behind here, so that what follows lies
on a multiple of 4.
"""

import struct
from array import array

ENCAPSULATION = b"\x00\x01\x00\x00"
"""What a message begins with; its place 0 is behind it."""

_PADDING = tuple(bytes(4 - n) for n in range(4))
_NANOSECONDS = 1_000_000_000
_SECONDS_NANOSECONDS = struct.Struct("<iI")
uint32 = struct.Struct("<I").pack
_SHORT = 256
_LENGTHS = tuple(uint32(n + 1) for n in range(_SHORT))
"""What short strings begin with: their length with the zero byte."""


def padded(data: bytes) -> bytes:
    """`data`, a zero byte and what is missing to a multiple of 4."""
    return data + _PADDING[len(data) & 3]


def string(text: str) -> bytes:
    data = text.encode()
    n_bytes = len(data)
    length = _LENGTHS[n_bytes] if n_bytes < _SHORT else uint32(n_bytes + 1)
    return length + data + _PADDING[n_bytes & 3]


def time(nanoseconds: int) -> bytes:
    """A Time or a Duration."""
    return _SECONDS_NANOSECONDS.pack(*divmod(nanoseconds, _NANOSECONDS))


def append_doubles(message: bytearray, values: array) -> None:
    """Append a sequence of float64; the message must end at a multiple of 4."""
    message += uint32(len(values))
    if values:
        message += bytes((len(ENCAPSULATION) - len(message)) % 8)
        message += values.tobytes()
