"""Slots of the KV cache, the frames that they hold, and which frame is forgotten."""

from vla_edge_ros.memory.frame_memory import Evicted, FrameMemory, RetainedFrame
from vla_edge_ros.memory.policies import POLICIES, make_policy
from vla_edge_ros.memory.slots import FRAME_TOKENS, MAX_ACTION_TOKENS, MemoryTooSmall, SlotPool

__all__ = [
    "FRAME_TOKENS",
    "MAX_ACTION_TOKENS",
    "POLICIES",
    "Evicted",
    "FrameMemory",
    "MemoryTooSmall",
    "RetainedFrame",
    "SlotPool",
    "make_policy",
]
