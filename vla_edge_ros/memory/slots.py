"""Places of one token in the KV cache, and which of them are free."""

import numpy as np

from vla_edge_ros.errors import UserError

FRAME_TOKENS = 32
"""Slots of one frame block: (128 / 16) x (64 / 16) patches."""

MAX_ACTION_TOKENS = 8
"""A pass decodes A <= 8 tokens; 8 slots are kept back whatever A is, so capacity does not depend on it."""


class MemoryTooSmall(UserError):
    """What was asked for cannot fit in the cache, whatever is evicted."""


class SlotPool:
    """Free slots of a cache of `n_slots`, as a stack: slots given back last are handed out first."""

    def __init__(self, n_slots: int):
        if n_slots < 1:
            raise MemoryTooSmall(f"a KV cache needs at least 1 slot, not {n_slots}")
        self.n_slots = n_slots
        self._stack = np.arange(n_slots - 1, -1, -1, dtype=np.int32)
        self._n_free = n_slots
        self._is_taken = np.zeros(n_slots, bool)

    @property
    def n_free(self) -> int:
        return self._n_free

    def take(self, out: np.ndarray) -> np.ndarray:
        """Fill `out` (n,) int32 with n slots that nobody holds, and return it.

        Raises MemoryTooSmall, with nothing taken, when fewer than n are free.
        """
        n = len(out)
        if n > self._n_free:
            raise MemoryTooSmall(f"{n} slots were asked for, and {self._n_free} of {self.n_slots} are free")
        out[:] = self._stack[self._n_free - n : self._n_free][::-1]
        self._n_free -= n
        self._is_taken[out] = True
        return out

    def give_back(self, slots: np.ndarray) -> None:
        """Free `slots` (n,). Raises ValueError, with nothing freed, for one that is free or named twice."""
        n = len(slots)
        if len(set(slots.tolist())) != n or not self._is_taken[slots].all():
            raise ValueError(f"slots {slots.tolist()} are not all taken, each named once")
        self._is_taken[slots] = False
        self._stack[self._n_free : self._n_free + n] = slots[::-1]
        self._n_free += n

    def reset(self) -> None:
        """Free every slot; they are handed out from 0 upwards again."""
        self._stack[:] = np.arange(self.n_slots - 1, -1, -1, dtype=np.int32)
        self._n_free = self.n_slots
        self._is_taken[:] = False
