"""Recordings as the model sees them, and needles to be remembered in them."""

from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from vla_edge_ros.evaluation.bags import BagRefused, open_bag
from vla_edge_ros.perception.decode import decode
from vla_edge_ros.perception.refusal import ImageRefused
from vla_edge_ros.perception.resize import Resizer

MAX_IMAGES = 4000
"""Images of one recording that are read; 100 MB."""

N_NEEDLES = 3
_NEEDLE_PIXELS = (18, 28)


class Footage(NamedTuple):
    """frames (n, 64, 128, 3) uint8; times_s (n,) seconds since the first, from the log, never decreasing."""

    frames: np.ndarray
    times_s: np.ndarray

    def every(self, n_frames: int, seed: int) -> "Footage":
        """At most `n_frames` of them at an even distance, the first drawn by `seed` within one distance."""
        stride = max(1, len(self.frames) // n_frames)
        first = int(np.random.default_rng((seed, 1)).integers(min(stride, len(self.frames))))
        chosen = slice(first, first + stride * n_frames, stride)
        return Footage(self.frames[chosen], self.times_s[chosen] - self.times_s[first])


def read_footage(path: Path, topic: str | None = None) -> Footage:
    """The first `MAX_IMAGES` usable images of a recording. Raises BagRefused where there is none."""
    frames, times_ns = [], []
    resizer = Resizer()
    with open_bag(path) as bag:
        name = bag.pick_image_topic(topic).name
        for image in bag.images(name):
            frame = np.empty((resizer.height, resizer.width, 3), np.uint8)
            try:
                resizer.resize(decode(image.message, name), frame)
            except ImageRefused:
                continue
            frames.append(frame)
            times_ns.append(image.log_ns)
            if len(frames) == MAX_IMAGES:
                break
    if not frames:
        raise BagRefused(f"{path}: none of the images on {name} can be used")
    times_s = np.maximum.accumulate(np.array(times_ns, np.int64) - times_ns[0]) / 1e9
    return Footage(np.array(frames), times_s)


def recordings_in(path: Path) -> list[Path]:
    """`path` itself, or, where it is a folder with folders of recordings in it, all recordings in it by name.

    A folder with files alone is one recording, which rosbag2 may have split.
    """
    if not path.is_dir() or not any(_holds_a_recording(entry) for entry in path.iterdir()):
        return [path]
    return sorted(entry for entry in path.iterdir() if _holds_a_recording(entry) or _is_recording_file(entry))


def _holds_a_recording(path: Path) -> bool:
    return path.is_dir() and any(_is_recording_file(entry) for entry in path.iterdir())


def _is_recording_file(path: Path) -> bool:
    name = path.name.removesuffix(".zstd")
    return path.is_file() and name.endswith((".mcap", ".db3", ".bag", ".mp4", ".avi", ".mkv"))


def with_needles(frames: np.ndarray, last: int, seed: int) -> tuple[np.ndarray, list[int]]:
    """Show `N_NEEDLES` cards, each in one frame alone: (frames with them, places of those frames).

    The frames are drawn from the first `last` ones, after the very first; each card has a colour, a size and
    a place of its own. Where there are fewer frames than needles, fewer are shown.
    """
    random = np.random.default_rng((seed, 2))
    n_needles = max(0, min(N_NEEDLES, last - 1))
    places = sorted((1 + random.choice(max(last - 1, 1), n_needles, replace=False)).tolist())
    shown = frames.copy()
    height, width = frames.shape[1:3]
    for place in places:
        side = int(random.integers(*_NEEDLE_PIXELS))
        left, top = (int(random.integers(0, room - side)) for room in (width, height))
        card, sign = random.integers(0, 256, (2, 3)).tolist()
        picture = np.ascontiguousarray(shown[place])
        cv2.rectangle(picture, (left, top), (left + side, top + side), card, cv2.FILLED)
        cv2.circle(picture, (left + side // 2, top + side // 2), side // 4, sign, cv2.FILLED)
        shown[place] = picture
    return shown, places
