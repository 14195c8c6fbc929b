"""Prompts that stay in the cache, so that an earlier instruction need not be filled in again.

After RadixAttention (Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs",
NeurIPS 2024, arXiv:2312.07104): a tree in which prompts that begin alike share the slots of their beginning.
The one in force is pinned; of the others the leaf that was in force least recently goes first. Its edges are
pieces of `FRAME_TOKENS` tokens, as engines write them: a prompt put together from the cache has the bits of
one that is filled in whole. A token sees those before it alone and keys are cached before RoPE, so a shared
beginning is exact whatever follows it.
"""

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from vla_edge_ros.memory.slots import FRAME_TOKENS, SlotPool


@dataclass(slots=True, eq=False)
class _Piece:
    """Up to 32 tokens behind those of its ancestors; a shorter piece ends its prompt.

    pinned_in: the latest pinning that this was part of.
    """

    tokens: tuple[int, ...]
    slots: np.ndarray
    pinned_in: int = 0
    is_written: bool = False
    children: dict[tuple[int, ...], "_Piece"] = field(default_factory=dict)


class PromptTree:
    """Takes slots for prompts from `pool` and gives them back when a prompt is forgotten.

    n_slots: how many it holds now.
    """

    def __init__(self, pool: SlotPool):
        self.n_slots = 0
        self._pool = pool
        self._root = _Piece((), np.zeros(0, np.int32))
        self._n_pinnings = 0
        self._pinned: list[_Piece] = []

    def pin(self, tokens: np.ndarray, most_slots: int) -> tuple[np.ndarray, int]:
        """Have `tokens` (P,) int32 be the prompt in force; the tree holds at most `most_slots` >= P then.

        Returns its slots, (P,) int32 in rank order, and how many of the first hold their tokens already.
        Others' prompts are forgotten as far as room demands. Raises MemoryTooSmall, with the prompt half
        pinned, where the pool has too few slots.
        """
        self._drop_unwritten()
        pieces = [
            tuple(tokens[first : first + FRAME_TOKENS].tolist())
            for first in range(0, len(tokens), FRAME_TOKENS)
        ]
        self._n_pinnings += 1
        self._pinned = self._path(pieces)
        for piece in self._pinned:
            piece.pinned_in = self._n_pinnings
        n_cached = sum(len(piece.slots) for piece in self._pinned)
        while self.n_slots + len(tokens) - n_cached > most_slots:
            self._forget_least_recent()
        for missing in pieces[len(self._pinned) :]:
            parent = self._pinned[-1] if self._pinned else self._root
            piece = _Piece(missing, self._pool.take(np.zeros(len(missing), np.int32)), self._n_pinnings)
            self.n_slots += len(missing)
            parent.children[missing] = piece
            self._pinned.append(piece)
        return np.concatenate([self._root.slots, *(piece.slots for piece in self._pinned)]), n_cached

    def written(self) -> None:
        """The engine has written what `pin` found missing; from now on it may be found."""
        for piece in self._pinned:
            piece.is_written = True

    def forget(self) -> None:
        """Give every slot back, those of the prompt in force too."""
        self._give_back(self._root)
        self._root.children.clear()
        self._pinned = []

    def _path(self, pieces: list[tuple[int, ...]]) -> list[_Piece]:
        """The longest beginning of a prompt that the tree holds."""
        path, piece = [], self._root
        for tokens in pieces:
            if (piece := piece.children.get(tokens)) is None:
                break
            path.append(piece)
        return path

    def _drop_unwritten(self) -> None:
        """A prompt that gave way to another one before it was filled in leaves nothing that may be read."""
        for parent, piece in pairwise([self._root, *self._pinned]):
            if not piece.is_written:
                self._remove(parent, piece)
                break

    def _forget_least_recent(self) -> None:
        """Forget the leaf that was in force least recently, which is not in force while there is another."""
        leaves, pieces = [], [self._root]
        while pieces:
            parent = pieces.pop()
            pieces.extend(parent.children.values())
            leaves.extend((parent, piece) for piece in parent.children.values() if not piece.children)
        self._remove(*min(leaves, key=lambda leaf: leaf[1].pinned_in))

    def _remove(self, parent: _Piece, piece: _Piece) -> None:
        del parent.children[piece.tokens]
        self._give_back(piece)

    def _give_back(self, piece: _Piece) -> None:
        for child in piece.children.values():
            self._give_back(child)
        self._pool.give_back(piece.slots)
        self.n_slots -= len(piece.slots)
