"""How alike retained frames are: each and its successor, or all pairs."""

import math

import numpy as np

from vla_edge_ros.memory.columns import Column

NORM_GUARD = 1e-8
"""A vector shorter than this counts as zero, and its cosine with anything is 0."""

NOTHING = -2.0
"""Below every cosine: what stands where there is no pair."""


class NeighbourSimilarity:
    """Cosines of pooled embeddings of neighbouring frames, kept up to date as frames come and go.

    Frames are named by their place in time order (0 is the oldest). Adding or removing one costs one dot
    product and a shift of at most `capacity` floats, so cosines are at hand when a victim is chosen.
    """

    def __init__(self, capacity: int, embedding_size: int):
        # In float64, so that equal pairs have equal cosines up to 1e-15 and the policies' tie rule holds.
        self._embeddings = np.zeros((capacity, embedding_size), np.float64)
        self._norms = [0.0] * capacity
        self._cosines = np.zeros(capacity, np.float64)
        self._rows: list[int] = []
        self._free_rows = list(range(capacity - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def cosines(self) -> np.ndarray:
        """(n - 1,) float64 view: entry i is the cosine of frames i and i + 1."""
        return self._cosines[: max(len(self._rows) - 1, 0)]

    def append(self, embedding: np.ndarray) -> None:
        """Add the newest frame's embedding, (embedding_size,) float32 of finite values."""
        row = self._free_rows.pop()
        kept = self._embeddings[row]
        kept[:] = embedding
        self._norms[row] = math.sqrt(np.dot(kept, kept))
        self._rows.append(row)
        if len(self._rows) > 1:
            self._cosines[len(self._rows) - 2] = self._cosine(len(self._rows) - 2)

    def remove(self, place: int) -> None:
        """Forget the frame at `place`; those before and after it become neighbours."""
        n = len(self._rows)
        self._free_rows.append(self._rows.pop(place))
        left = max(place - 1, 0)
        if left < n - 2:
            self._cosines[left : n - 2] = self._cosines[left + 1 : n - 1]
        if 0 < place < n - 1:
            self._cosines[place - 1] = self._cosine(place - 1)

    def clear(self) -> None:
        while self._rows:
            self._free_rows.append(self._rows.pop())

    def _cosine(self, place: int) -> float:
        a, b = self._rows[place], self._rows[place + 1]
        if self._norms[a] < NORM_GUARD or self._norms[b] < NORM_GUARD:
            return 0.0
        return float(np.dot(self._embeddings[a], self._embeddings[b])) / (self._norms[a] * self._norms[b])


class PairSimilarity:
    """Cosines of the embeddings of all pairs of retained frames, kept up to date as frames come and go.

    Adding a frame costs one product of (capacity, embedding_size) with its embedding; removing one, two
    strokes of `capacity` values. Rows never move: `rows` says which row a frame has, oldest first.
    """

    def __init__(self, capacity: int, embedding_size: int):
        self._units = np.zeros((capacity, embedding_size), np.float32)
        self._cosines = np.full((capacity, capacity), NOTHING, np.float32)
        self._new = np.zeros(capacity, np.float32)
        self._is_free = np.ones(capacity, bool)
        self._free_rows = list(range(capacity - 1, -1, -1))
        self._rows = Column(capacity, np.intp)

    @property
    def rows(self) -> np.ndarray:
        """(n,) view: the row of each retained frame, oldest first."""
        return self._rows.values

    @property
    def cosines(self) -> np.ndarray:
        """(capacity, capacity) float32, by row; `NOTHING` on the diagonal and where a row is free."""
        return self._cosines

    def append(self, embedding: np.ndarray) -> None:
        """Add the newest frame's embedding, (embedding_size,) of finite values."""
        row = self._free_rows.pop()
        unit = self._units[row]
        norm = float(np.sqrt(np.dot(embedding, embedding)))
        np.multiply(embedding, 1.0 / norm if norm >= NORM_GUARD else 0.0, out=unit, casting="unsafe")
        # Not a matrix product: BLAS would wake threads of its own beside the control thread.
        np.einsum("ij,j->i", self._units, unit, out=self._new)
        self._is_free[row] = False
        self._new[self._is_free] = NOTHING
        self._new[row] = NOTHING
        self._cosines[row] = self._new
        self._cosines[:, row] = self._new
        self._rows.append(row)

    def remove(self, place: int) -> None:
        row = int(self.rows[place])
        self._rows.remove(place)
        self._free(row)

    def clear(self) -> None:
        for row in self.rows.tolist():
            self._free(row)
        self._rows.clear()

    def _free(self, row: int) -> None:
        self._is_free[row] = True
        self._units[row] = 0.0
        self._cosines[row] = NOTHING
        self._cosines[:, row] = NOTHING
        self._free_rows.append(row)
