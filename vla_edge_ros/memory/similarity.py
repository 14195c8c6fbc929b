"""How alike each retained frame and its successor are."""

import numpy as np

NORM_GUARD = 1e-8
"""A vector shorter than this counts as zero, and its cosine with anything is 0."""


class NeighbourSimilarity:
    """Cosines of pooled embeddings of neighbouring frames, kept up to date as frames come and go.

    Frames are named by their place in time order (0 is the oldest). Adding or removing one costs one dot
    product and a shift of at most `capacity` floats, so cosines are at hand when a victim is chosen.
    """

    def __init__(self, capacity: int, embedding_size: int):
        self.embedding_size = embedding_size
        # In float64, so that equal pairs have equal cosines up to 1e-15 and the policies' tie rule holds.
        self._embeddings = np.zeros((capacity, embedding_size), np.float64)
        self._norms = np.zeros(capacity, np.float64)
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
        """Add the newest frame's embedding, (embedding_size,) float32. Raises ValueError if it is unfit."""
        if embedding.shape != (self.embedding_size,):
            raise ValueError(
                f"an embedding has shape {embedding.shape}; this memory takes ({self.embedding_size},)"
            )
        row = self._free_rows[-1]
        self._embeddings[row] = embedding
        norm = float(np.sqrt(np.dot(self._embeddings[row], self._embeddings[row])))
        if not np.isfinite(norm):
            raise ValueError(
                "an embedding holds a value that is not finite; the engine that made it is broken"
            )
        self._free_rows.pop()
        self._norms[row] = norm
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
        return float(np.dot(self._embeddings[a], self._embeddings[b]) / (self._norms[a] * self._norms[b]))
