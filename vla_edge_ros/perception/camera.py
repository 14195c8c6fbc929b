"""From a camera's callback to the frame buffer, whatever the message holds."""

import zlib
from collections.abc import Callable, Sequence

import cv2
import numpy as np

from vla_edge_ros.errors import one_line
from vla_edge_ros.perception.decode import decode
from vla_edge_ros.perception.frame import FrameMeta
from vla_edge_ros.perception.frame_buffer import FrameBuffer
from vla_edge_ros.perception.frame_log import FrameLog
from vla_edge_ros.perception.message import header_stamp_ns
from vla_edge_ros.perception.refusal import ImageRefused, Refusal, RefusalKind
from vla_edge_ros.perception.resize import Resizer
from vla_edge_ros.perception.stamps import StampVerdict, StampWatch


class CameraPipeline:
    """Decodes, resizes, judges and publishes the frames of one camera.

    received: messages so far = published + withheld + all of `refused`.
    withheld: whole frames that were not new (a repeated stamp, a frozen picture).
    refused: messages by kind of refusal. last_refusal: the newest one, or None.
    logs: where each frame is put down before it is published.
    read: what makes a message of what `on_image` is given, such as `read_image`; None for messages.
    is_frozen: whether the newest whole frame was one of a frozen camera.

    OpenCV is set to one thread for the process: a picture of this size gains nothing from more, and they
    would take the cores that the tick thread and the engine run on.
    """

    def __init__(
        self,
        buffer: FrameBuffer,
        resizer: Resizer,
        watch: StampWatch,
        topic: str,
        logs: Sequence[FrameLog] = (),
        read: Callable[[bytes, str], object] | None = None,
    ):
        cv2.setNumThreads(1)
        self.topic = topic
        self.watch = watch
        self.received = self.published = self.withheld = 0
        self.refused = dict.fromkeys(RefusalKind, 0)
        self.last_refusal: Refusal | None = None
        self.is_frozen = False
        self._buffer = buffer
        self._logs = logs
        self._read = read
        self._resizer = resizer
        self._frame = np.empty((resizer.height, resizer.width, 3), np.uint8)
        self._decoded: np.ndarray | None = None

    def on_image(self, message, receipt_ns: int, ros_now_ns: int) -> StampVerdict | Refusal:
        """Take one sensor_msgs/Image or CompressedImage, received at these readings of both clocks.

        Never raises. `reason` of what it returns is a line for the log, empty where all is well.
        """
        self.received += 1
        try:
            if self._read is not None:
                message = self._read(message, self.topic)
            rgb = decode(message, self.topic, out=self._decoded)
            if rgb.flags.owndata:
                self._decoded = rgb
            self._resizer.resize(rgb, self._frame)
            stamp_ns = header_stamp_ns(message)
            verdict = self.watch.observe(stamp_ns, receipt_ns, ros_now_ns, zlib.crc32(self._frame))
            self.is_frozen = verdict.is_frozen
            if verdict.is_new:
                self._publish(stamp_ns, verdict.capture_ns, receipt_ns)
            else:
                self.withheld += 1
            return verdict
        except ImageRefused as refused:
            return self._refuse(refused.kind, refused.reason)
        except Exception as error:  # the callback outlives any message
            return self._refuse(RefusalKind.FAULT, f"{self.topic}: {type(error).__name__}: {error}")

    def place(self, message, meta: FrameMeta) -> None:
        """Publish an image that was judged before, under `meta`; raises ImageRefused."""
        rgb = decode(message, self.topic)
        self._resizer.resize(rgb, self._frame)
        self.received += 1
        self._publish(meta.stamp_ns, meta.capture_ns, meta.receipt_ns)

    def _publish(self, stamp_ns: int, capture_ns: int, receipt_ns: int) -> None:
        for log in self._logs:
            log.put(self._buffer.next_index, self._frame)
        self._buffer.write(self._frame, stamp_ns, capture_ns, receipt_ns)
        self.published += 1

    def _refuse(self, kind: RefusalKind, reason: str) -> Refusal:
        self.refused[kind] += 1
        self.last_refusal = Refusal(kind, one_line(reason))
        return self.last_refusal
