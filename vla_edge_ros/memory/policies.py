"""Eviction policies: which retained frame is forgotten, and when.

A policy sees the retained frames in time order and answers with the place of one victim, or None when it has
none to name. It is asked again until it names none. A victim is never the newest of several frames; only
where a single frame is retained and its room is needed does that one go.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import numpy as np


class Victim(NamedTuple):
    place: int
    """In time order; 0 is the oldest retained frame."""
    reason: str


class EvictionPolicy(Protocol):
    name: str

    def choose_victim(self, n_frames: int, cosines: np.ndarray, is_full: bool) -> Victim | None:
        """The frame to forget before one more is inserted.

        n_frames: retained frames. cosines: (n_frames - 1,), entry i that of frames i and i + 1.
        is_full: there are fewer free slots than one frame block needs.
        """


@dataclass(frozen=True, slots=True)
class Fifo:
    """While free slots are fewer than needed, the oldest frame goes."""

    name: ClassVar[str] = "fifo"

    def choose_victim(self, n_frames: int, cosines: np.ndarray, is_full: bool) -> Victim | None:
        return Victim(0, "oldest, no free block") if is_full and n_frames else None


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """The oldest frame goes while `window_frames` are retained, and, like fifo, where slots run out first."""

    window_frames: int
    name: ClassVar[str] = "sliding_window"

    def __post_init__(self):
        if self.window_frames < 1:
            raise ValueError(f"memory.window_frames is {self.window_frames}; at least 1 frame is retained")

    def choose_victim(self, n_frames: int, cosines: np.ndarray, is_full: bool) -> Victim | None:
        if n_frames >= self.window_frames:
            return Victim(0, f"oldest, window of {self.window_frames} frames")
        return Victim(0, "oldest, no free block") if is_full and n_frames else None


TIE = 1e-9
"""Rounding in float64 is far below this, and float32 embeddings tell nothing apart that is nearer."""


@dataclass(frozen=True, slots=True)
class Semantic:
    """While free slots are fewer than needed, the older frame of the most alike neighbours goes.

    Alike is the cosine of pooled embeddings; of equal pairs the first counts, also where only rounding parts
    them (`TIE`).
    """

    name: ClassVar[str] = "semantic"

    def choose_victim(self, n_frames: int, cosines: np.ndarray, is_full: bool) -> Victim | None:
        if not is_full or not n_frames:
            return None
        if n_frames == 1:
            return Victim(0, "the only frame, no free block")
        place = int(np.argmax(cosines >= cosines.max() - TIE))
        return Victim(place, f"cosine {cosines[place]:.4f} with its successor")


POLICIES = ("fifo", "sliding_window", "semantic")


def make_policy(name: str, window_frames: int = 1) -> EvictionPolicy:
    """The eviction policy called `name`; `window_frames` is used by sliding_window alone.

    Raises ValueError for an unknown name, with the known ones, and for a window below one frame.
    """
    if name == "fifo":
        return Fifo()
    if name == "sliding_window":
        return SlidingWindow(window_frames)
    if name == "semantic":
        return Semantic()
    raise ValueError(f"memory.policy is {name!r}; known policies are {', '.join(POLICIES)}")
