"""Camera messages for tests, and what they should decode to by other arithmetic than the product's."""

from types import SimpleNamespace

import cv2
import numpy as np

BYTES_PER_PIXEL = {
    "rgb8": 3,
    "bgr8": 3,
    "rgba8": 4,
    "bgra8": 4,
    "mono8": 1,
    "8UC1": 1,
    "mono16": 2,
    "yuv422": 2,
    "uyvy": 2,
    "yuv422_yuy2": 2,
    "yuyv": 2,
    "nv12": 1,
    "nv21": 1,
    "bayer_rggb8": 1,
    "bayer_bggr8": 1,
    "bayer_gbrg8": 1,
    "bayer_grbg8": 1,
}


def image(encoding, height, width, data, step=None, is_bigendian=0, stamp_ns=0):
    return SimpleNamespace(
        header=header(stamp_ns),
        height=height,
        width=width,
        encoding=encoding,
        is_bigendian=is_bigendian,
        step=width * BYTES_PER_PIXEL.get(encoding, 1) if step is None else step,
        data=data,
    )


def compressed(data, format_text="", stamp_ns=0):
    return SimpleNamespace(header=header(stamp_ns), format=format_text, data=data)


def header(stamp_ns):
    sec, nanosec = divmod(stamp_ns, 1_000_000_000)
    return SimpleNamespace(stamp=SimpleNamespace(sec=sec, nanosec=nanosec))


def rows_of(encoding, height):
    return height * 3 // 2 if encoding.startswith("nv") else height


def random_image(encoding, height, width, padding=0, seed=0):
    """A message of random samples; its padding is random too, so that any use of it shows."""
    rng = np.random.default_rng(seed)
    rows = rows_of(encoding, height)
    packed = rng.integers(0, 256, (rows, width * BYTES_PER_PIXEL[encoding]), dtype=np.uint8)
    padded = np.hstack([packed, rng.integers(0, 256, (rows, padding), dtype=np.uint8)])
    return image(encoding, height, width, padded.tobytes(), step=padded.shape[1])


def smooth_picture(height, width):
    """RGB with a gradient in each channel: survives JPEG nearly unchanged, and no two channels are alike."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([200 - y * 150 // height, 20 + x * 100 // width, 230 - x * 80 // width], -1).astype(
        np.uint8
    )


def jpeg(rgb, quality=95):
    return cv2.imencode(".jpg", rgb[..., ::-1], (cv2.IMWRITE_JPEG_QUALITY, quality))[1].tobytes()


def png(image_bgr):
    return cv2.imencode(".png", image_bgr)[1].tobytes()
