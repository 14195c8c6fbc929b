"""`~/memory_strip`: what the robot remembers, as one picture."""

from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from sensor_msgs.msg import Image

from vla_edge_ros.memory.album import Album
from vla_edge_ros.memory.frame_memory import FrameMemory
from vla_edge_ros.memory.slots import FRAME_TOKENS
from vla_edge_ros.nodes.images import rgb8_image
from vla_edge_ros.perception.frame_log import FrameLog

PERIOD_S = 1.0


class MemoryStrip:
    """Publishes a mosaic of the retained frames, oldest first, 16 a row, once a second while someone listens.

    It runs on the executor's thread; of memory it reads the list of frames alone, in one step. Pictures are
    taken up whether anyone listens or not, so that who comes late sees them all.
    """

    def __init__(self, node: Node, memory: FrameMemory, thumbnails: FrameLog) -> None:
        self._node = node
        self._memory = memory
        self._album = Album(memory.n_slots // FRAME_TOKENS, thumbnails)
        self._publisher = node.create_publisher(Image, "~/memory_strip", 1)
        # On ROS time it would look rarely under a slow /clock, and never without one: pictures would be lost.
        self._timer = node.create_timer(PERIOD_S, self._look, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def destroy(self) -> None:
        self._node.destroy_timer(self._timer)
        self._node.destroy_publisher(self._publisher)

    def _look(self) -> None:
        frames = self._memory.frames.copy()
        self._album.update(frames)
        if self._publisher.get_subscription_count():
            stamp_ns = frames[-1].meta.stamp_ns if frames else 0
            self._publisher.publish(rgb8_image(self._album.mosaic(), stamp_ns))
