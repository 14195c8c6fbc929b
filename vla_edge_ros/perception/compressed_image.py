"""sensor_msgs/CompressedImage to RGB: JPEG and PNG, told apart by their bytes.

The text in `format` decides nothing about the decoding, since drivers write anything there. It is quoted in
refusals, and asked in one case that bytes cannot settle: a 16-bit grey PNG is a picture or a depth map.
"""

import cv2
import numpy as np

from vla_edge_ros.perception.message import MAX_PIXELS, byte_view
from vla_edge_ros.perception.raw_image import DEPTH_ENCODINGS, to_8_bit
from vla_edge_ros.perception.refusal import ImageRefused, RefusalKind

_JPEG_START = b"\xff\xd8\xff"
_JPEG_END = b"\xff\xd9"
_PNG_START = b"\x89PNG\r\n\x1a\n"
_PNG_HEADER_END = 33
_PNG_CHUNK_FRAME = 12
"""Bytes of a chunk beside its data: length, kind, checksum."""
_DEPTH_HEADER_BYTES = 12
"""compressed_depth_image_transport puts its quantisation parameters before the PNG."""

# Frame headers SOF0..SOF15 without DHT (C4), JPG (C8) and DAC (CC), which lie between them.
_JPEG_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_BARE_MARKERS = frozenset(range(0xD0, 0xD9)) | {0x01}
_JPEG_SCAN_MARKER = 0xDA

_TO_RGB = {1: cv2.COLOR_GRAY2RGB, 3: cv2.COLOR_BGR2RGB, 4: cv2.COLOR_BGRA2RGB}


def decode_compressed(message, topic: str, out: np.ndarray | None = None) -> np.ndarray:
    """The picture in a sensor_msgs/CompressedImage as (height, width, 3) uint8 RGB, in `out` if that fits.

    JPEG of any kind that OpenCV reads; PNG of 1 to 16 bit, grey, colour, palette, with alpha (dropped) or
    without. 16 bit is scaled as for mono16. An EXIF orientation is ignored, as image_transport ignores it:
    the picture stays the sensor's, as its calibration is.

    A file cut short is refused. A JPEG that lost bytes in its middle and still has its end is not noticed:
    OpenCV fills what is missing with grey and does not say so.

    Raises ImageRefused.
    """
    data = byte_view(message.data).tobytes()
    about = f"{topic}: compressed image of {len(data)} bytes, format {message.format!r}"
    if not data:
        raise ImageRefused(RefusalKind.EMPTY, f"{about}: empty, wanted a JPEG or a PNG")
    if data.startswith(_JPEG_START):
        _check_jpeg(data, about)
        # IMREAD_COLOR makes BGR of grey and CMYK as well.
        image = _decode(data, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION, about)
    elif data.startswith(_PNG_START):
        _check_png(data, message.format, about)
        image = _decode(data, cv2.IMREAD_UNCHANGED, about)
    else:
        _refuse_unknown(data, message.format, about)
    if image.dtype == np.uint16:
        image = to_8_bit(image)
    return cv2.cvtColor(image, _TO_RGB[image.shape[2] if image.ndim == 3 else 1], dst=out)


def _decode(data: bytes, flags: int, about: str) -> np.ndarray:
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        raise ImageRefused(RefusalKind.UNDECODABLE, f"{about}: cannot be decoded ({error.err})") from None
    if image is None:
        raise ImageRefused(RefusalKind.UNDECODABLE, f"{about}: cannot be decoded, the file is damaged")
    return image


def _check_jpeg(data: bytes, about: str) -> None:
    """Walk the segments up to the first scan (ITU-T T.81, annex B): size, then the end marker."""
    position = 2
    while position + 4 <= len(data):
        if data[position] != 0xFF:
            raise ImageRefused(RefusalKind.UNDECODABLE, f"{about}: no JPEG marker at byte {position}")
        marker = data[position + 1]
        if marker == 0xFF:
            position += 1
            continue
        if marker in _JPEG_BARE_MARKERS:
            position += 2
            continue
        if marker in _JPEG_FRAME_MARKERS:
            height, width = (int.from_bytes(data[position + i : position + i + 2], "big") for i in (5, 7))
            _check_dimensions(height, width, about)
        position += 2 + int.from_bytes(data[position + 2 : position + 4], "big")
        if marker == _JPEG_SCAN_MARKER:
            # In a scan every FF of the data is followed by 00, so this is the end and no accident; cameras
            # may pad behind it.
            if data.rfind(_JPEG_END, position) < 0:
                break
            return
    raise ImageRefused(RefusalKind.TRUNCATED, f"{about}: the JPEG is cut short, wanted its end (ff d9)")


def _check_png(data: bytes, format_text: str, about: str) -> None:
    """Walk the chunks from IHDR, which has size and depth, to IEND (PNG specification, sections 5 and 11).

    A decoder that believes a damaged length allocates and clears that much before it looks further: gigabytes
    and seconds.
    """
    if data[12:16] != b"IHDR" or len(data) < _PNG_HEADER_END:
        raise ImageRefused(RefusalKind.TRUNCATED, f"{about}: the PNG does not begin with a whole IHDR")
    position, kind = len(_PNG_START), b""
    while kind != b"IEND":
        kind = data[position + 4 : position + 8]
        position += _PNG_CHUNK_FRAME + int.from_bytes(data[position : position + 4], "big")
        if position > len(data):
            raise ImageRefused(
                RefusalKind.TRUNCATED,
                f"{about}: the PNG is cut short or damaged, wanted whole chunks up to its end (IEND)",
            )
    width, height = (int.from_bytes(data[i : i + 4], "big") for i in (16, 20))
    _check_dimensions(height, width, about)
    bit_depth, colour_type = data[24], data[25]
    source_encoding = format_text.partition(";")[0].strip()
    if bit_depth == 16 and colour_type == 0 and source_encoding in DEPTH_ENCODINGS:
        raise ImageRefused(
            RefusalKind.DEPTH, f"{about}: a depth image ({source_encoding}), wanted a colour or grey one"
        )


def _check_dimensions(height: int, width: int, about: str) -> None:
    if height == 0 or width == 0:
        raise ImageRefused(RefusalKind.UNDECODABLE, f"{about}: its header says {width}x{height}")
    if height * width > MAX_PIXELS:
        raise ImageRefused(
            RefusalKind.DIMENSIONS,
            f"{about}: its header says {width}x{height}, wanted at most {MAX_PIXELS} pixels",
        )


def _refuse_unknown(data: bytes, format_text: str, about: str) -> None:
    if data.startswith(_PNG_START, _DEPTH_HEADER_BYTES) or "compressedDepth" in format_text:
        raise ImageRefused(
            RefusalKind.DEPTH,
            f"{about}: a compressed depth image, wanted a colour or grey one; remap `image` to its topic",
        )
    raise ImageRefused(
        RefusalKind.UNDECODABLE, f"{about}: begins with {data[:4].hex(' ')}, wanted a JPEG or a PNG"
    )
