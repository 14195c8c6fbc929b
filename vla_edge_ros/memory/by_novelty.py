"""Policies that compare a frame with more than its neighbour."""

from typing import ClassVar

import numpy as np

from vla_edge_ros.memory.columns import Column
from vla_edge_ros.memory.eviction_policy import Victim, WhenFull, guarded_frames
from vla_edge_ros.memory.signals import PassSignals
from vla_edge_ros.memory.similarity import PairSimilarity
from vla_edge_ros.perception.frame import FrameMeta

ALIKE = 0.01
"""Cosines that differ by less count as equal: noise of a camera moves them by as much."""

COVERAGE_FACTOR = 4.0
"""The widest gap that forgetting may leave, in mean distances of retained frames."""


class TemporalRedundancy(WhenFull):
    """Of the past frames the one goes that the recent frames resemble most, on average.

    The TaR score of InfiniPot-V (Kim et al., "Memory-Constrained KV Cache Compression for Streaming Video
    Understanding", NeurIPS 2025, arXiv:2506.15745) for whole frames: there it is taken patch by patch, from
    keys. With the embedding `key_summary` the cosine is the mean of its patches' cosines. The recent frames,
    an eighth, are never forgotten; of equal frames the oldest goes.
    """

    name: ClassVar[str] = "temporal_redundancy"

    def prepare(self, capacity: int, embedding_size: int) -> None:
        self._pairs = PairSimilarity(capacity, embedding_size)

    def observe(self, meta: FrameMeta, embedding: np.ndarray, signals: PassSignals | None) -> None:
        self._pairs.append(embedding)

    def forget(self, place: int) -> None:
        self._pairs.remove(place)

    def clear(self) -> None:
        self._pairs.clear()

    def _choose(self, n_frames: int) -> Victim:
        rows, recent = self._pairs.rows, guarded_frames(n_frames)
        redundancy = self._pairs.cosines[rows[:-recent, None], rows[-recent:]].mean(axis=1)
        place = int(redundancy.argmax())
        return Victim(place, f"cosine {redundancy[place]:.4f} with the {recent} newest on average")


class Novelty(WhenFull):
    """The frame goes that memory would miss least: one that some other retained frame resembles most.

    - Similarity is taken to all retained frames, so that a scene that comes back is seen to come back.
    - An eighth of the frames, the newest, are guarded.
    - Coverage floor: no frame goes whose absence leaves a gap of more than `COVERAGE_FACTOR` mean distances
      between retained frames, the time before the first of them included; where only such frames are left,
      the one that leaves the smallest gap goes.
    - Of frames that are equally redundant (`ALIKE`) the one goes that leaves the smallest gap, so that a
      still scene is thinned out evenly.

    Made for an embedding that sees motion and does not see exposure: `patch_signature`.
    """

    name: ClassVar[str] = "novelty"

    def prepare(self, capacity: int, embedding_size: int) -> None:
        self._pairs = PairSimilarity(capacity, embedding_size)
        self._times_ns = Column(capacity, np.int64)
        self._start_ns = 0

    def observe(self, meta: FrameMeta, embedding: np.ndarray, signals: PassSignals | None) -> None:
        if not len(self._times_ns.values):
            self._start_ns = meta.capture_ns
        self._pairs.append(embedding)
        self._times_ns.append(meta.capture_ns)

    def forget(self, place: int) -> None:
        self._pairs.remove(place)
        self._times_ns.remove(place)

    def clear(self) -> None:
        self._pairs.clear()
        self._times_ns.clear()

    def _choose(self, n_frames: int) -> Victim:
        n_candidates = n_frames - guarded_frames(n_frames)
        times_ns = self._times_ns.values
        gaps_ns = times_ns[1 : n_candidates + 1].copy()
        gaps_ns[0] -= self._start_ns
        gaps_ns[1:] -= times_ns[: n_candidates - 1]
        widest_ns = COVERAGE_FACTOR * (times_ns[-1] - self._start_ns) / n_frames
        redundancy = self._pairs.cosines.max(axis=1)[self._pairs.rows[:n_candidates]]
        redundancy[gaps_ns > widest_ns] = -np.inf
        most = redundancy.max()
        if most == -np.inf:
            place = int(gaps_ns.argmin())
            return Victim(place, f"leaves a gap of {gaps_ns[place] / 1e6:.0f} ms, the smallest")
        gaps_ns[redundancy < most - ALIKE] = np.iinfo(np.int64).max
        place = int(gaps_ns.argmin())
        return Victim(place, f"cosine {redundancy[place]:.4f} with another frame")
