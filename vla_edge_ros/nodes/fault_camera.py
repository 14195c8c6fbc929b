"""A camera whose faults can be switched on while it runs."""

import threading
import time

import numpy as np
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import Image

from vla_edge_ros.nodes.images import rgb8_image

RATE_HZ = 60.0
WIDTH, HEIGHT = 640, 480
N_PICTURES = 8
_NS_PER_S = 1_000_000_000


class FaultCamera:
    """Publishes 640x480 rgb8 noise on `image` from a thread of its own, at absolute times.

    rate_hz: pictures a second. delay_ns: how old a picture is when it is sent. times_sent: how often each is
    sent under its stamp. is_frozen: the pixels stay the same. is_swapped: of every two pictures the newer one
    is sent first, and `held_back_ns` has the stamps of the others. is_silent: none is sent.
    """

    def __init__(self, node: Node) -> None:
        self.rate_hz = RATE_HZ
        self.delay_ns = 0
        self.times_sent = 1
        self.is_frozen = self.is_swapped = self.is_silent = False
        self.held_back_ns: set[int] = set()
        self._node = node
        self._publisher = self._new_publisher()
        self._publishing = threading.Lock()
        self._pictures = [_noise(index) for index in range(N_PICTURES)]
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fault_camera", daemon=True)
        self._thread.start()

    def unplug(self) -> None:
        with self._publishing:
            self._node.destroy_publisher(self._publisher)
            self._publisher = None

    def plug(self) -> None:
        with self._publishing:
            self._publisher = self._new_publisher()

    def close(self) -> None:
        self._is_closing.set()
        self._thread.join()

    def _new_publisher(self):
        return self._node.create_publisher(Image, "image", qos_profile_sensor_data)

    def _run(self) -> None:
        due_s, shown, held_back = time.monotonic(), 0, None
        while not self._is_closing.wait(max(0.0, due_s - time.monotonic())):
            period_s = 1 / self.rate_hz
            due_s = max(due_s + period_s, time.monotonic() - period_s)
            shown += not self.is_frozen
            taken = self._pictures[shown % N_PICTURES], self._node.get_clock().now().nanoseconds
            if self.is_swapped and held_back is None:
                held_back = taken
                continue
            self._send(*taken)
            if held_back is not None:
                # Later, or a reader that keeps one message would never see the newer picture.
                self._is_closing.wait(period_s / 4)
                self.held_back_ns.add(held_back[1])
                self._send(*held_back)
                held_back = None

    def _send(self, picture: Image, taken_ns: int) -> None:
        picture.header.stamp.sec, picture.header.stamp.nanosec = divmod(taken_ns - self.delay_ns, _NS_PER_S)
        with self._publishing:
            if self._publisher is None or self.is_silent:
                return
            for _ in range(self.times_sent):
                self._publisher.publish(picture)


def _noise(seed: int) -> Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    return rgb8_image(pixels)
