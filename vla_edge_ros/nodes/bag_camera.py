"""`bag_camera`: plays the images of a recording as a live camera.

Publishes (relative names, to be remapped):
    image             sensor_msgs/Image, where the recording has raw images or is a video file
    image/compressed  sensor_msgs/CompressedImage, where it has compressed images
    instruction       std_msgs/String, transient local, where it has a topic of strings called *instruction
Parameters: docs/parameters.md.
Exit codes: 0 at the end of the recording, on Ctrl-C and on SIGTERM; 2 for a recording or a parameter that
cannot be used; 3 where the recording was cut short and `allow_truncated` is false.
"""

import array
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import rclpy
from rclpy.duration import Duration
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSDurabilityPolicy, QoSProfile, QoSReliabilityPolicy
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import String

from vla_edge_ros.errors import UserError, one_line
from vla_edge_ros.evaluation.bags import TRUNCATED, BagImage, BagRefused, open_bag
from vla_edge_ros.evaluation.playback import LONGEST_PAUSE_NS, PlaybackSchedule
from vla_edge_ros.evaluation.prefetch import Prefetch
from vla_edge_ros.nodes.parameters import declare
from vla_edge_ros.parameters import BAG_CAMERA, ParameterRefused

_PREFETCH_ITEMS, _PREFETCH_BYTES = 64, 64_000_000
_NS_PER_S = 1_000_000_000
_LAP_END = object()


class BagCamera(Node):
    """Publishes from a plain thread that sleeps to absolute times on the steady clock."""

    def __init__(self) -> None:
        """Declare the parameters and open the recording. Raises ParameterRefused and BagRefused."""
        super().__init__("bag_camera")
        options = SimpleNamespace(**declare(self, BAG_CAMERA))
        self._options = options
        if not options.bag:
            raise ParameterRefused("bag: it is empty; name a recording with --ros-args -p bag:=PATH")
        self._bag = open_bag(options.bag)
        self._topic = self._bag.pick_image_topic(options.topic or None)
        self._instruction_topic = self._bag.instruction_topic() if options.plays_instructions else None
        reliability = {
            "best_effort": QoSReliabilityPolicy.BEST_EFFORT,
            "reliable": QoSReliabilityPolicy.RELIABLE,
        }[options.qos_reliability]
        qos = QoSProfile(depth=options.depth, reliability=reliability)
        self._images = (
            self.create_publisher(CompressedImage, "image/compressed", qos)
            if self._topic.is_compressed
            else self.create_publisher(Image, "image", qos)
        )
        latched = QoSProfile(depth=1, durability=QoSDurabilityPolicy.TRANSIENT_LOCAL)
        self._instructions = self.create_publisher(String, "instruction", latched)
        self.n_published = 0
        self.failure: Exception | None = None
        self._worst_lateness_ns = 0
        self._stop = threading.Event()
        self._prefetch = Prefetch(self._messages(), _PREFETCH_ITEMS, _PREFETCH_BYTES)
        self._player = threading.Thread(target=self._play, name="bag_camera")

    @property
    def is_playing(self) -> bool:
        return self._player.is_alive()

    @property
    def exit_code(self) -> int:
        if self.failure is not None:
            return 2
        if self._bag.truncated_after is not None and not self._options.allow_truncated:
            return TRUNCATED
        return 0

    def start(self) -> None:
        self._player.start()

    def destroy_node(self) -> None:
        self._stop.set()
        self._prefetch.stop()
        if self._player.ident is not None:
            self._player.join()
        self._bag.close()
        super().destroy_node()

    def _messages(self) -> Iterator[tuple[object, int]]:
        """What is played, lap after lap, as ROS messages with their log times; in the prefetch thread."""
        topics = [self._topic.name] + ([self._instruction_topic] if self._instruction_topic else [])
        while True:
            for _, item in self._bag.play(topics):
                if isinstance(item, BagImage):
                    message = self._ros_image(item)
                    yield (item, message), len(message.data)
                else:
                    yield (item, String(data=item.text)), len(item.text)
            yield _LAP_END, 0
            if not self._options.loop:
                return

    def _ros_image(self, item: BagImage) -> Image | CompressedImage:
        source = item.message
        # An array.array is taken as it is; any other sequence is checked byte by byte.
        data = array.array("B")
        data.frombytes(memoryview(source.data))
        if self._topic.is_compressed:
            message = CompressedImage(format=source.format, data=data)
        else:
            message = Image(
                height=source.height,
                width=source.width,
                encoding=source.encoding,
                is_bigendian=source.is_bigendian,
                step=source.step,
                data=data,
            )
        message.header.frame_id = self._options.frame_id or source.header.frame_id
        message.header.stamp.sec = source.header.stamp.sec
        message.header.stamp.nanosec = source.header.stamp.nanosec
        return message

    def _play(self) -> None:
        try:
            self._prefetch.wait_until_full()
            self._wait_for_subscriber()
            self._stop.wait(self._options.start_delay_ms / 1e3)
            self._play_laps()
            if not self._stop.is_set():
                self._images.wait_for_all_acked(Duration(seconds=1))
        except BagRefused as error:
            self.failure = error
        except Exception as error:
            # A context that was shut down from outside makes every publish raise.
            if self.context.ok():
                self.failure = error
        finally:
            self._report()

    def _wait_for_subscriber(self) -> None:
        give_up_ns = time.monotonic_ns() + round(self._options.wait_for_subscriber_s * 1e9)
        while time.monotonic_ns() < give_up_ns and not self._images.get_subscription_count():
            if self._stop.wait(0.02):
                return
        if self._options.wait_for_subscriber_s and not self._images.get_subscription_count():
            self.get_logger().warning(
                f"no subscriber of {self._images.topic_name} after {self._options.wait_for_subscriber_s} s:"
                " playing all the same"
            )

    def _play_laps(self) -> None:
        schedule: PlaybackSchedule | None = None
        early_instructions: list[String] = []
        first_log_ns = last_log_ns = n_images = 0
        for entry in self._prefetch:
            if entry is _LAP_END:
                if schedule is None:
                    raise BagRefused(f"{self._bag.path}: none of its images can be read")
                schedule = schedule.next_lap(first_log_ns, last_log_ns, n_images)
                self._announce(schedule)
                n_images = 0
                continue
            item, message = entry
            is_image = isinstance(item, BagImage)
            if schedule is None and not is_image:
                early_instructions.append(message)
                continue
            if schedule is None:
                start_ns, base_ns = time.monotonic_ns(), self.get_clock().now().nanoseconds
                rate = self._options.rate
                schedule = PlaybackSchedule.from_first_image(
                    item.log_ns, item.stamp_ns, start_ns, base_ns, rate
                )
                self._announce(schedule)
                for instruction in early_instructions:
                    self._instructions.publish(instruction)
            if is_image:
                first_log_ns = first_log_ns if n_images else item.log_ns
                last_log_ns = item.log_ns
                n_images += 1
            if not self._sleep_until(schedule.due_ns(item.log_ns)):
                return
            if is_image:
                self._publish_image(message, item, schedule)
            else:
                self._instructions.publish(message)

    def _announce(self, schedule: PlaybackSchedule) -> None:
        """Say how stamps are changed, by which a recorded run finds its images in the recording again."""
        self.get_logger().info(schedule.stamps_line())

    def _publish_image(
        self, message: Image | CompressedImage, item: BagImage, schedule: PlaybackSchedule
    ) -> None:
        if self._options.restamp:
            stamp = message.header.stamp
            stamp.sec, stamp.nanosec = divmod(schedule.restamped_ns(item.stamp_ns), _NS_PER_S)
        self._images.publish(message)
        self.n_published += 1
        lateness_ns = time.monotonic_ns() - schedule.due_ns(item.log_ns)
        self._worst_lateness_ns = max(self._worst_lateness_ns, lateness_ns)

    def _sleep_until(self, due_ns: int) -> bool:
        """False where the node was asked to stop meanwhile."""
        remaining_ns = due_ns - time.monotonic_ns()
        if remaining_ns > LONGEST_PAUSE_NS / self._options.rate:
            raise BagRefused(
                f"{self._bag.path}: nothing was recorded for {remaining_ns / 3.6e12:.1f} h after "
                f"{self.n_published} images: was a clock wrong?"
            )
        return not self._stop.wait(max(0, remaining_ns) / 1e9)

    def _report(self) -> None:
        log = self.get_logger()
        log.info(
            f"published {self.n_published} images of {self._topic.name}, late by at most"
            f" {self._worst_lateness_ns / 1e6:.1f} ms"
        )
        for line in self._bag.losses:
            log.warning(line)


def main(argv: list[str] | None = None) -> int:
    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        signal.signal(number, signal.default_int_handler)
    node = None
    try:
        # rclpy's own handlers shut its context down under the publishing thread.
        rclpy.init(args=argv, signal_handler_options=SignalHandlerOptions.NO)
    except RuntimeError as error:
        print(f"ROS 2 does not start: {one_line(str(error))}", file=sys.stderr)
        return 2
    try:
        node = BagCamera()
        executor = SingleThreadedExecutor()
        executor.add_node(node)
        node.start()
        while node.is_playing:
            executor.spin_once(timeout_sec=0.1)
        if node.failure is not None:
            print(node.failure, file=sys.stderr)
        return node.exit_code
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except (KeyboardInterrupt, ExternalShutdownException):
        return 0
    finally:
        for number in signals:
            signal.signal(number, signal.SIG_IGN)
        if node is not None:
            node.destroy_node()
        rclpy.try_shutdown()


if __name__ == "__main__":
    sys.exit(main())
