"""What the robot remembers: a pinned prompt and whole frames, in the fixed slots of a KV cache."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from vla_edge_ros.memory.eviction_policy import EvictionPolicy
from vla_edge_ros.memory.signals import PassSignals
from vla_edge_ros.memory.slots import FRAME_TOKENS, MAX_ACTION_TOKENS, MemoryTooSmall, SlotPool
from vla_edge_ros.perception.frame import FrameMeta

JOURNAL_LENGTH = 1024
"""Evictions that `FrameMemory.journal` keeps; older ones have been handed out by `make_room`."""


@dataclass(frozen=True, slots=True)
class RetainedFrame:
    """A frame whose block is in the cache; `tick` is the tick whose pass put it there."""

    meta: FrameMeta
    tick: int


@dataclass(frozen=True, slots=True)
class Evicted:
    """One line of the eviction journal; `slots` (32,) int32 are what the engine is told to forget."""

    tick: int
    policy: str
    frame: FrameMeta
    reason: str
    slots: np.ndarray = field(repr=False, compare=False)

    def to_json(self) -> dict:
        return {
            "tick": self.tick,
            "policy": self.policy,
            "frame": self.frame.index,
            "stamp_ns": self.frame.stamp_ns,
            "reason": self.reason,
        }


class FrameMemory:
    """Slots, retained frames and their eviction; the engine holds the arrays and obeys these lists.

    A pass goes: `make_room`, tell the engine of the evicted slots, run it on `context_slots()`, `frame_slots`
    and `action_slots`, and `retain` the frame if it succeeded. If it did not, or if the frame lies between
    strides, nothing is retained and the same block serves the next pass.

    n_slots: places of one token in the KV cache.
    action_tokens: A, from 1 to 8.
    stride_ticks: a frame is retained where its pass began so many ticks after that of the last retained one;
        those between are attended to by their own action tokens and freed with them.
    embedding_size: length of a frame's embedding; where it is None, the first retained frame fixes it.
    Raises MemoryTooSmall when not even one frame fits without a prompt.
    """

    def __init__(
        self,
        n_slots: int,
        action_tokens: int,
        policy: EvictionPolicy,
        embedding_size: int | None = None,
        stride_ticks: int = 1,
    ):
        if not 1 <= action_tokens <= MAX_ACTION_TOKENS:
            raise ValueError(
                f"action_tokens is {action_tokens}; a pass decodes 1 to {MAX_ACTION_TOKENS} tokens"
            )
        if stride_ticks < 1:
            raise ValueError(f"memory.stride_ticks is {stride_ticks}; at least 1 tick lies between frames")
        self.policy = policy
        self.stride_ticks = stride_ticks
        self.n_slots = n_slots
        self.capacity_frames = 0
        self.journal: deque[Evicted] = deque(maxlen=JOURNAL_LENGTH)
        self.frames: list[RetainedFrame] = []
        self._pool = SlotPool(n_slots)
        self._context = np.zeros(n_slots, np.int32)
        self._prompt_tokens = 0
        self._block = np.zeros(FRAME_TOKENS, np.int32)
        self._has_block = False
        self._reserved = np.zeros(MAX_ACTION_TOKENS, np.int32)
        self._action_tokens = action_tokens
        self._pass_tick = 0
        self._last_retained_tick: int | None = None
        self._embedding_size: int | None = None
        if embedding_size is not None:
            self._prepare(embedding_size)
        self.set_prompt(0)

    def set_prompt(self, n_tokens: int) -> np.ndarray:
        """Forget everything and pin a prompt of P = `n_tokens`; returns its slots, (P,) int32 in rank order.

        Capacity becomes floor((n_slots - P - 8) / 32) frames. Raises MemoryTooSmall, with nothing forgotten,
        when that is below one frame.
        """
        self.capacity_frames = self._capacity(n_tokens)
        self.frames.clear()
        if self._embedding_size is not None:
            self.policy.clear()
        self._has_block = False
        self._last_retained_tick = None
        self._prompt_tokens = n_tokens
        self._pool.reset()
        self._pool.take(self._reserved)
        return self._pool.take(self._context[:n_tokens])

    def make_room(self, tick: int) -> list[Evicted]:
        """Evict by policy until one more frame fits, and set its block aside as `frame_slots`."""
        self._pass_tick = tick
        evicted = []
        while victim := self.policy.choose_victim(len(self.frames), self._is_full):
            evicted.append(self._evict(victim.place, tick, victim.reason))
        self.journal.extend(evicted)
        if not self._has_block:
            self._pool.take(self._block)
            self._has_block = True
        return evicted

    def forget(self, n_frames: int, tick: int, reason: str) -> list[Evicted]:
        """Evict `n_frames` of several by policy, full or not; the newest frame stays."""
        evicted = []
        while len(evicted) < n_frames and len(self.frames) > 1:
            victim = self.policy.choose_victim(len(self.frames), True)
            evicted.append(self._evict(victim.place, tick, reason))
        self.journal.extend(evicted)
        return evicted

    @property
    def context_tokens(self) -> int:
        """How many tokens the next pass attends to, before room is made for its frame."""
        return self._prompt_tokens + FRAME_TOKENS * len(self.frames)

    def context_slots(self) -> np.ndarray:
        """(n,) int32, a view in rank order: the prompt's slots, then the retained frames', oldest first."""
        return self._context[: self._n_context]

    @property
    def frame_slots(self) -> np.ndarray:
        """(32,) int32: where the next pass puts its frame. Raises RuntimeError before `make_room`."""
        self._require_block()
        return self._block

    @property
    def action_slots(self) -> np.ndarray:
        """(A,) int32: where a pass puts its action-start token and its first A - 1 action tokens."""
        return self._reserved[: self._action_tokens]

    def retain(
        self, meta: FrameMeta, embedding: np.ndarray, tick: int, signals: PassSignals | None = None
    ) -> bool:
        """Keep the frame that a pass has written to `frame_slots`, as the newest one, if a stride is over.

        embedding: (embedding_size,) float32. signals: what the pass paid attention to among the frames that
        were there before, from an engine that tells; the policy hears those of passes that are kept. Returns
        whether the frame was kept; the first one after a prompt always is. Raises RuntimeError before
        `make_room`, ValueError for an embedding of another size or with values that are not finite; nothing
        is retained then.
        """
        self._require_block()
        last = self._last_retained_tick
        if last is not None and self._pass_tick - last < self.stride_ticks:
            return False
        if self._embedding_size is None:
            self._prepare(embedding.size)
        self._check(embedding)
        self.policy.observe(meta, embedding, signals)
        self._context[self._n_context : self._n_context + FRAME_TOKENS] = self._block
        self.frames.append(RetainedFrame(meta, tick))
        self._last_retained_tick = self._pass_tick
        self._has_block = False
        return True

    @property
    def _n_context(self) -> int:
        return self._prompt_tokens + FRAME_TOKENS * len(self.frames)

    @property
    def _is_full(self) -> bool:
        return not self._has_block and self._pool.n_free < FRAME_TOKENS

    def _capacity(self, prompt_tokens: int) -> int:
        if prompt_tokens < 0:
            raise ValueError(f"a prompt has {prompt_tokens} tokens; it has 0 or more")
        capacity = (self.n_slots - prompt_tokens - MAX_ACTION_TOKENS) // FRAME_TOKENS
        if capacity >= 1:
            return capacity
        needed = prompt_tokens + FRAME_TOKENS + MAX_ACTION_TOKENS
        raise MemoryTooSmall(
            f"a prompt of {prompt_tokens} tokens, one frame ({FRAME_TOKENS}) and the action tokens "
            f"({MAX_ACTION_TOKENS}) need {needed} slots, and the KV cache has {self.n_slots}: "
            "shorten the instruction or raise memory.slots"
        )

    def _evict(self, place: int, tick: int, reason: str) -> Evicted:
        frame = self.frames.pop(place)
        start = self._prompt_tokens + FRAME_TOKENS * place
        slots = self._context[start : start + FRAME_TOKENS].copy()
        end = self._n_context + FRAME_TOKENS
        self._context[start : end - FRAME_TOKENS] = self._context[start + FRAME_TOKENS : end]
        self._pool.give_back(slots)
        self.policy.forget(place)
        return Evicted(tick, self.policy.name, frame.meta, reason, slots)

    def _prepare(self, embedding_size: int) -> None:
        self._embedding_size = embedding_size
        self.policy.prepare(self._capacity(0), embedding_size)

    def _check(self, embedding: np.ndarray) -> None:
        if embedding.shape != (self._embedding_size,):
            raise ValueError(
                f"an embedding has shape {embedding.shape}; this memory takes ({self._embedding_size},)"
            )
        if not np.isfinite(embedding).all():
            raise ValueError(
                "an embedding holds a value that is not finite; the engine that made it is broken"
            )

    def _require_block(self) -> None:
        if not self._has_block:
            raise RuntimeError("no frame block is set aside: call make_room before every pass")
