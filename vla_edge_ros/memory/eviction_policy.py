"""Eviction policies: which retained frame is forgotten, and when. This is what they have in common.

A policy hears of every frame that enters memory or leaves it, and names one victim by its place in time
order, or None when it has none to name. It is asked again until it names none. A victim is never the newest
of several frames; only where a single frame is retained and its room is needed does that one go.
"""

from typing import NamedTuple, Protocol

import numpy as np

from vla_edge_ros.memory.signals import PassSignals
from vla_edge_ros.perception.frame import FrameMeta


class Victim(NamedTuple):
    place: int
    """In time order; 0 is the oldest retained frame."""
    reason: str


class EvictionPolicy(Protocol):
    """Between calls a policy may be sure that it has heard of exactly the retained frames.

    `choose_victim` changes nothing but a random state; at 127 frames none of the calls takes more than 100 us
    (`python -m vla_edge_ros.memory.benchmark`), and none allocates memory that stays.
    """

    name: str

    def prepare(self, capacity: int, embedding_size: int) -> None:
        """Allocate for at most `capacity` frames and forget all; called before anything else."""

    def observe(self, meta: FrameMeta, embedding: np.ndarray, signals: PassSignals | None) -> None:
        """A frame was retained and is the newest now. embedding: (embedding_size,), finite.

        signals: of the pass that brought the frame; None where the engine does not tell.
        """

    def forget(self, place: int) -> None:
        """The frame at `place` has been evicted; those behind it have moved up."""

    def clear(self) -> None:
        """All frames are gone."""

    def choose_victim(self, n_frames: int, is_full: bool) -> Victim | None:
        """The frame to forget before one more is inserted.

        n_frames: retained frames. is_full: there are fewer free slots than one frame block needs.
        """


class WhenFull:
    """For policies that forget where slots run out and not before: they choose one of several frames."""

    def choose_victim(self, n_frames: int, is_full: bool) -> Victim | None:
        if not is_full or not n_frames:
            return None
        if n_frames == 1:
            return Victim(0, "the only frame, no free block")
        return self._choose(n_frames)

    def _choose(self, n_frames: int) -> Victim:
        """One of `n_frames`, at least two; not the newest."""
        raise NotImplementedError


def guarded_frames(n_frames: int) -> int:
    """The newest frames that a policy with a recency guard spares: an eighth of them, at least the newest."""
    return max(1, n_frames // 8)
