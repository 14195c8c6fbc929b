"""What a policy knows of each retained frame, as a fixed array in time order."""

import numpy as np


class Column:
    """One value a retained frame, oldest first; appending and removing allocate nothing."""

    def __init__(self, capacity: int, dtype: type):
        self._values = np.zeros(capacity, dtype)
        self._n = 0

    @property
    def values(self) -> np.ndarray:
        """(n,) view."""
        return self._values[: self._n]

    def append(self, value: float) -> None:
        self._values[self._n] = value
        self._n += 1

    def remove(self, place: int) -> None:
        self._values[place : self._n - 1] = self._values[place + 1 : self._n]
        self._n -= 1

    def clear(self) -> None:
        self._n = 0
