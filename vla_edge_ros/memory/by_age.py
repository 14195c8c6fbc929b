"""Policies that look at age and time alone."""

from typing import ClassVar

import numpy as np

from vla_edge_ros.memory.columns import Column
from vla_edge_ros.memory.eviction_policy import Victim, WhenFull
from vla_edge_ros.memory.signals import PassSignals
from vla_edge_ros.perception.frame import FrameMeta

NO_FREE_BLOCK = "oldest, no free block"

SINK_FRAMES = 4
"""As many frames as StreamingLLM keeps initial tokens."""


class _WithoutMemory:
    """The calls of a policy that keeps nothing of the frames."""

    def prepare(self, capacity: int, embedding_size: int) -> None:
        pass

    def observe(self, meta: FrameMeta, embedding: np.ndarray, signals: PassSignals | None) -> None:
        pass

    def forget(self, place: int) -> None:
        pass

    def clear(self) -> None:
        pass


class Fifo(_WithoutMemory):
    """While free slots are fewer than needed, the oldest frame goes."""

    name: ClassVar[str] = "fifo"

    def choose_victim(self, n_frames: int, is_full: bool) -> Victim | None:
        return Victim(0, NO_FREE_BLOCK) if is_full and n_frames else None


class SlidingWindow(_WithoutMemory):
    """The oldest frame goes while `window_frames` are retained, and, like fifo, where slots run out first."""

    name: ClassVar[str] = "sliding_window"

    def __init__(self, window_frames: int):
        if window_frames < 1:
            raise ValueError(f"memory.window_frames is {window_frames}; at least 1 frame is retained")
        self.window_frames = window_frames

    def choose_victim(self, n_frames: int, is_full: bool) -> Victim | None:
        if n_frames >= self.window_frames:
            return Victim(0, f"oldest, window of {self.window_frames} frames")
        return Victim(0, NO_FREE_BLOCK) if is_full and n_frames else None


class SinksRecent(_WithoutMemory, WhenFull):
    """The first `SINK_FRAMES` frames stay, and of the others the oldest goes.

    After StreamingLLM (Xiao et al., "Efficient Streaming Language Models with Attention Sinks", ICLR 2024,
    arXiv:2309.17453), with frames for its tokens. The prompt, pinned before every frame, is a sink as well.
    """

    name: ClassVar[str] = "sinks_recent"

    def _choose(self, n_frames: int) -> Victim:
        sinks = min(SINK_FRAMES, n_frames - 2)
        return Victim(sinks, f"oldest behind {sinks} sinks")


class Random(_WithoutMemory, WhenFull):
    """Any frame but the newest goes, with equal chances: what every other policy has to beat."""

    name: ClassVar[str] = "random"

    def __init__(self, seed: int):
        self._random = np.random.default_rng(seed)
        self._reason = f"by chance, seed {seed}"

    def _choose(self, n_frames: int) -> Victim:
        return Victim(int(self._random.integers(n_frames - 1)), self._reason)


class UniformStride(WhenFull):
    """The frame goes whose neighbours are nearest in time, so that gaps stay as even as they can be.

    Uniform sampling, the usual baseline for video, made online. The first and the newest frame stay; of equal
    gaps the oldest is widened.
    """

    name: ClassVar[str] = "uniform_stride"

    def prepare(self, capacity: int, embedding_size: int) -> None:
        self._times_ns = Column(capacity, np.int64)

    def observe(self, meta: FrameMeta, embedding: np.ndarray, signals: PassSignals | None) -> None:
        self._times_ns.append(meta.capture_ns)

    def forget(self, place: int) -> None:
        self._times_ns.remove(place)

    def clear(self) -> None:
        self._times_ns.clear()

    def _choose(self, n_frames: int) -> Victim:
        if n_frames == 2:
            return Victim(0, NO_FREE_BLOCK)
        times = self._times_ns.values
        gaps_ns = times[2:] - times[:-2]
        place = 1 + int(np.argmin(gaps_ns))
        return Victim(place, f"leaves a gap of {gaps_ns[place - 1] / 1e6:.0f} ms, the smallest")
