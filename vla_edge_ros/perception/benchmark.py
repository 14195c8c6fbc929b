"""How long the camera callback takes on this machine."""

from array import array
from contextlib import closing
from time import perf_counter_ns
from types import SimpleNamespace

import cv2
import numpy as np

from vla_edge_ros.figures import percentiles
from vla_edge_ros.perception.camera import CameraPipeline
from vla_edge_ros.perception.frame_buffer import FrameBuffer
from vla_edge_ros.perception.refusal import Refusal
from vla_edge_ros.perception.resize import Resizer
from vla_edge_ros.perception.stamps import StampWatch

HEIGHT, WIDTH = 480, 640
N_PICTURES = 8
JPEG_QUALITY = 95
WARM_UP_CALLS = 50
_PERIOD_NS = 16_666_667


def camera_callback_times(n: int) -> dict:
    """Time `n` callbacks (decode, resize, write) for each of rgb8, bgr8 and jpeg at 640x480.

    Returns {encoding: percentiles in ms} and, for jpeg, its mean size in `bytes`. The pictures are drawn
    shapes under sensor noise, the same in every run; noise is what costs a JPEG its time. Raises RuntimeError
    if a picture is not published.
    """
    pictures = _pictures(np.random.default_rng(0))
    jpegs = [_compressed(picture) for picture in pictures]
    times = {name: _measure([_raw(picture, name) for picture in pictures], n) for name in ("rgb8", "bgr8")}
    times["jpeg"] = _measure(jpegs, n) | {"bytes": round(np.mean([len(message.data) for message in jpegs]))}
    return times


def _measure(messages: list, n: int) -> dict:
    durations_ns = np.empty(n, np.int64)
    with closing(FrameBuffer.create()) as buffer:
        camera = CameraPipeline(buffer, Resizer(), StampWatch(), "benchmark")
        for call in range(-WARM_UP_CALLS, n):
            message = messages[call % len(messages)]
            now_ns = (call + WARM_UP_CALLS + 1) * _PERIOD_NS
            message.header.stamp.sec, message.header.stamp.nanosec = divmod(now_ns, 1_000_000_000)
            start_ns = perf_counter_ns()
            outcome = camera.on_image(message, now_ns, now_ns)
            elapsed_ns = perf_counter_ns() - start_ns
            if isinstance(outcome, Refusal) or not outcome.is_new:
                raise RuntimeError(f"the benchmark's own picture was not published: {outcome.reason}")
            if call >= 0:
                durations_ns[call] = elapsed_ns
    return percentiles(durations_ns / 1e6)


def _pictures(rng: np.random.Generator) -> list[np.ndarray]:
    pictures = []
    for _ in range(N_PICTURES):
        picture = np.full((HEIGHT, WIDTH, 3), 120, np.uint8)
        for _ in range(60):
            centre = tuple(int(c) for c in rng.integers((0, 0), (WIDTH, HEIGHT)))
            colour = tuple(int(c) for c in rng.integers(0, 256, 3))
            cv2.circle(picture, centre, int(rng.integers(5, 80)), colour, -1)
        noisy = picture + rng.normal(0, 4, picture.shape)
        pictures.append(np.clip(noisy, 0, 255).astype(np.uint8))
    return pictures


def _raw(picture: np.ndarray, encoding: str) -> SimpleNamespace:
    return SimpleNamespace(
        header=_header(),
        height=HEIGHT,
        width=WIDTH,
        encoding=encoding,
        is_bigendian=0,
        step=WIDTH * 3,
        data=array("B", picture.tobytes()),
    )


def _compressed(picture: np.ndarray) -> SimpleNamespace:
    _, encoded = cv2.imencode(".jpg", picture, (cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY))
    return SimpleNamespace(header=_header(), format="jpeg", data=array("B", encoded.tobytes()))


def _header() -> SimpleNamespace:
    return SimpleNamespace(stamp=SimpleNamespace(sec=0, nanosec=0))
