"""`semantic`, the reference's policy: similarity of neighbours in time."""

from typing import ClassVar

import numpy as np

from vla_edge_ros.memory.eviction_policy import Victim, WhenFull
from vla_edge_ros.memory.signals import PassSignals
from vla_edge_ros.memory.similarity import NeighbourSimilarity
from vla_edge_ros.perception.frame import FrameMeta

TIE = 1e-9
"""Rounding in float64 is far below this, and float32 embeddings tell nothing apart that is nearer."""


class Semantic(WhenFull):
    """While free slots are fewer than needed, the older frame of the most alike neighbours goes.

    Alike is the cosine of their embeddings; of equal pairs the first counts, also where only rounding parts
    them (`TIE`).
    """

    name: ClassVar[str] = "semantic"

    def prepare(self, capacity: int, embedding_size: int) -> None:
        self._similarity = NeighbourSimilarity(capacity, embedding_size)

    @property
    def cosines(self) -> np.ndarray:
        """(n - 1,) float64: entry i is the cosine of the embeddings of retained frames i and i + 1."""
        return self._similarity.cosines

    def observe(self, meta: FrameMeta, embedding: np.ndarray, signals: PassSignals | None) -> None:
        self._similarity.append(embedding)

    def forget(self, place: int) -> None:
        self._similarity.remove(place)

    def clear(self) -> None:
        self._similarity.clear()

    def _choose(self, n_frames: int) -> Victim:
        cosines = self._similarity.cosines
        place = int((cosines >= cosines.max() - TIE).argmax())
        return Victim(place, f"cosine {cosines[place]:.4f} with its successor")
