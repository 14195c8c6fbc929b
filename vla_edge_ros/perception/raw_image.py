"""sensor_msgs/Image to RGB."""

from dataclasses import dataclass

import cv2
import numpy as np

from vla_edge_ros.perception.cv_bridge_adapter import rgb_by_cv_bridge
from vla_edge_ros.perception.message import MAX_PIXELS, byte_view
from vla_edge_ros.perception.refusal import ImageRefused, RefusalKind

DEPTH_ENCODINGS = frozenset({"16UC1", "16SC1", "32SC1", "32FC1", "64FC1"})


@dataclass(frozen=True, slots=True)
class Encoding:
    """How an encoding lies in memory and what makes RGB of it.

    bytes_per_pixel: of a row of `data`.
    code: for cv2.cvtColor; None where the bytes are RGB already.
    has_chroma_plane: rows of chroma, half as many as the image has, follow the image's rows.
    """

    bytes_per_pixel: int
    code: int | None
    has_even_width: bool = False
    has_chroma_plane: bool = False


# OpenCV names a Bayer code after the second row's second and third pixel: BG is what ROS calls rggb.
ENCODINGS = {
    "rgb8": Encoding(3, None),
    "bgr8": Encoding(3, cv2.COLOR_BGR2RGB),
    "rgba8": Encoding(4, cv2.COLOR_RGBA2RGB),
    "bgra8": Encoding(4, cv2.COLOR_BGRA2RGB),
    "mono8": Encoding(1, cv2.COLOR_GRAY2RGB),
    "8UC1": Encoding(1, cv2.COLOR_GRAY2RGB),
    "mono16": Encoding(2, cv2.COLOR_GRAY2RGB),
    "yuv422": Encoding(2, cv2.COLOR_YUV2RGB_UYVY, has_even_width=True),
    "uyvy": Encoding(2, cv2.COLOR_YUV2RGB_UYVY, has_even_width=True),
    "yuv422_yuy2": Encoding(2, cv2.COLOR_YUV2RGB_YUY2, has_even_width=True),
    "yuyv": Encoding(2, cv2.COLOR_YUV2RGB_YUY2, has_even_width=True),
    "nv12": Encoding(1, cv2.COLOR_YUV2RGB_NV12, has_even_width=True, has_chroma_plane=True),
    "nv21": Encoding(1, cv2.COLOR_YUV2RGB_NV21, has_even_width=True, has_chroma_plane=True),
    "bayer_rggb8": Encoding(1, cv2.COLOR_BayerBG2RGB),
    "bayer_bggr8": Encoding(1, cv2.COLOR_BayerRG2RGB),
    "bayer_gbrg8": Encoding(1, cv2.COLOR_BayerGR2RGB),
    "bayer_grbg8": Encoding(1, cv2.COLOR_BayerGB2RGB),
}


def decode_image(message, topic: str, out: np.ndarray | None = None) -> np.ndarray:
    """The picture in a sensor_msgs/Image as (height, width, 3) uint8 RGB.

    For rgb8 the result is a read-only view of `message.data`; otherwise it is `out`, if that has the right
    shape (it saves an allocation a frame), or a new array.

    mono16 becomes 8 bit as cv_bridge does it: round(value * 255 / 65535), so a 12-bit sensor that does not
    use the full range comes out dark. YUV is BT.601 of limited range, Bayer is demosaiced bilinearly, alpha
    is dropped. 8UC1 is taken as mono8; 8UC3 is refused, as cv_bridge does, since it does not say which
    channel is red.

    Raises ImageRefused.
    """
    encoding = _known_encoding(message.encoding, topic)
    height, width, step = message.height, message.width, message.step
    about = f"{topic}: {message.encoding} {width}x{height}, step {step}"
    data = byte_view(message.data)
    _check_geometry(encoding, height, width, step, data.size, about)

    if step == width * encoding.bytes_per_pixel and (rgb := rgb_by_cv_bridge(message)) is not None:
        return rgb
    if message.encoding == "mono16":
        order = ">u2" if message.is_bigendian else "<u2"
        grey = np.ndarray((height, width), order, data, strides=(step, 2)).astype(np.uint16)
        return cv2.cvtColor(to_8_bit(grey), encoding.code, dst=out)
    rows = height * 3 // 2 if encoding.has_chroma_plane else height
    depth = encoding.bytes_per_pixel
    if depth == 1:
        pixels = np.ndarray((rows, width), np.uint8, data, strides=(step, 1))
    else:
        pixels = np.ndarray((rows, width, depth), np.uint8, data, strides=(step, depth, 1))
    if encoding.code is None:
        pixels.flags.writeable = False
        return pixels
    return cv2.cvtColor(pixels, encoding.code, dst=out)


def to_8_bit(image: np.ndarray) -> np.ndarray:
    """uint16 of any shape to uint8: round(value * 255 / 65535), which is (value + 128) // 257."""
    return cv2.convertScaleAbs(image, alpha=255 / 65535)


def _known_encoding(name: str, topic: str) -> Encoding:
    if name in DEPTH_ENCODINGS:
        raise ImageRefused(
            RefusalKind.DEPTH,
            f"{topic}: {name} is a depth image, wanted a colour or grey one; remap `image` to its topic",
        )
    if name == "8UC3":
        raise ImageRefused(
            RefusalKind.ENCODING,
            f"{topic}: encoding 8UC3 does not say which channel is red, wanted rgb8 or bgr8: "
            "name the encoding where the image is published",
        )
    if name not in ENCODINGS:
        raise ImageRefused(
            RefusalKind.ENCODING, f"{topic}: unknown encoding {name!r}, wanted one of {', '.join(ENCODINGS)}"
        )
    return ENCODINGS[name]


def _check_geometry(encoding: Encoding, height: int, width: int, step: int, found: int, about: str) -> None:
    if height == 0 or width == 0 or found == 0:
        raise ImageRefused(RefusalKind.EMPTY, f"{about}: an empty image of {found} bytes, wanted a picture")
    if height * width > MAX_PIXELS:
        raise ImageRefused(RefusalKind.DIMENSIONS, f"{about}: wanted at most {MAX_PIXELS} pixels")
    if (encoding.has_even_width and width % 2) or (encoding.has_chroma_plane and height % 2):
        raise ImageRefused(
            RefusalKind.DIMENSIONS, f"{about}: two pixels share one colour there, so the size must be even"
        )
    least = width * encoding.bytes_per_pixel
    if step < least:
        raise ImageRefused(
            RefusalKind.STEP,
            f"{about}: wanted at least {least} bytes a row ({width} pixels of {encoding.bytes_per_pixel}); "
            "the publisher names a wrong encoding, width or step",
        )
    wanted = step * (height * 3 // 2 if encoding.has_chroma_plane else height)
    if found != wanted:
        raise ImageRefused(RefusalKind.SIZE, f"{about}: {found} bytes of data, wanted {wanted}")
