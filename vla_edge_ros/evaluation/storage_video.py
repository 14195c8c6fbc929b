"""Video files that OpenCV can open, as a recording with the one topic `video`."""

import math
import os
from collections.abc import Collection, Iterator
from pathlib import Path

import cv2

from vla_edge_ros.evaluation.message_types import IMAGE, image_message
from vla_edge_ros.evaluation.recording import RawMessage, StorageError, StoredTopic

TOPIC = "video"

# FFmpeg would print its own lines about a damaged file beside ours.
os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")


def looks_like_video(head: bytes) -> bool:
    """Whether the first 16 bytes are those of mp4 or mov, avi, or matroska (mkv, webm)."""
    return (
        head[4:8] == b"ftyp" or (head[:4] == b"RIFF" and head[8:11] == b"AVI") or head[:4] == b"\x1aE\xdf\xa3"
    )


class VideoStorage:
    """Satisfies `recording.Storage`: bgr8 images of the stated, constant frame rate.

    Frame i has the stamp and log time (i + 1) / rate, since a stamp of zero means that there is none.
    """

    truncated_after = None

    def __init__(self, path: Path) -> None:
        """Open the video and read one frame. Raises StorageError."""
        self._path = path
        video = self._open()
        rate_hz = video.get(cv2.CAP_PROP_FPS)
        self._period_ns = round(1e9 / rate_hz) if math.isfinite(rate_hz) and 0.1 <= rate_hz <= 1000 else 0
        n_frames = max(0, int(video.get(cv2.CAP_PROP_FRAME_COUNT)))
        has_frame, _ = video.read()
        video.release()
        if not has_frame or not self._period_ns:
            raise StorageError(f"OpenCV finds no frames or no frame rate in the video ({rate_hz} Hz)")
        self.topics = [StoredTopic(TOPIC, IMAGE, max(1, n_frames))]

    def messages(self, topics: Collection[str]) -> Iterator[RawMessage]:
        if TOPIC not in topics:
            return
        video = self._open()
        stamp_ns = 0
        while True:
            has_frame, bgr = video.read()
            if not has_frame:
                break
            stamp_ns += self._period_ns
            yield RawMessage(TOPIC, IMAGE, "decoded", stamp_ns, image_message(bgr, "bgr8", stamp_ns, "video"))
        video.release()

    def _open(self) -> cv2.VideoCapture:
        video = cv2.VideoCapture(str(self._path))
        if not video.isOpened():
            raise StorageError("OpenCV cannot open the video; it is cut short or of a codec not known")
        return video
