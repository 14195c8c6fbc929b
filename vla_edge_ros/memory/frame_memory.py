"""What the robot remembers: a pinned prompt and whole frames, in the fixed slots of a KV cache."""

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from vla_edge_ros.memory.eviction_policy import EvictionPolicy
from vla_edge_ros.memory.host_ring import HostRing
from vla_edge_ros.memory.prompt_tree import PromptTree
from vla_edge_ros.memory.signals import PassSignals
from vla_edge_ros.memory.slots import FRAME_TOKENS, MAX_ACTION_TOKENS, MemoryTooSmall, SlotPool
from vla_edge_ros.perception.frame import FrameMeta

JOURNAL_LENGTH = 1024
"""Evictions that `FrameMemory.journal` keeps; older ones have been handed out by `make_room`."""


@dataclass(frozen=True, slots=True)
class RetainedFrame:
    """A frame whose block is in the cache; `tick` is that of the pass that put it there, or of its recall."""

    meta: FrameMeta
    tick: int


@dataclass(frozen=True, slots=True)
class Evicted:
    """One line of the eviction journal; `slots` (32,) int32 are what the engine is told to forget.

    ring_place: where the engine's host ring is to keep the block first; None: nowhere, or it has it already.
    """

    tick: int
    policy: str
    frame: FrameMeta
    reason: str
    slots: np.ndarray = field(repr=False, compare=False)
    ring_place: int | None = None

    def to_json(self) -> dict:
        return {
            "tick": self.tick,
            "policy": self.policy,
            "frame": self.frame.index,
            "stamp_ns": self.frame.stamp_ns,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class NewPrompt:
    """What another instruction makes the engine do: forget `evicted`, and write `tokens` to `slots`.

    context_slots: (n,) int32, the prompt's first n tokens, in rank order, which the cache holds already.
    tokens, slots: (P - n,) int32, the others.
    evicted: the frames that it had no room for; those that a prompt makes void are not among them.
    """

    context_slots: np.ndarray
    tokens: np.ndarray
    slots: np.ndarray
    evicted: list[Evicted]

    @property
    def is_cached(self) -> bool:
        """Whether the cache holds it whole; an engine is told of an empty prompt as of one to be written."""
        return len(self.tokens) == 0 < len(self.context_slots)


@dataclass(frozen=True, slots=True)
class Recalled:
    """A block that comes back: the engine copies `ring_place` of its ring to `slots` (32,) int32."""

    ring_place: int
    slots: np.ndarray
    evicted: Evicted


class FrameMemory:
    """Slots, retained frames and their eviction; the engine holds the arrays and obeys these lists.

    A pass goes: `make_room`, tell the engine of the evicted slots, run it on `context_slots()`, `frame_slots`
    and `action_slots`, and `retain` the frame if it succeeded. If it did not, or if the frame lies between
    strides, nothing is retained and the same block serves the next pass.

    With a host ring, `recall` after `make_room` may bring a forgotten frame back as a guest. It stands at its
    place in time; the eviction policy does not hear of it, and guests go before all others where the ladder
    or an instruction needs room.

    Another instruction goes: `instruct`, tell the engine of the evicted slots, have it write what is missing,
    and `prompt_written` when it has.

    n_slots: places of one token in the KV cache.
    action_tokens: A, from 1 to 8.
    stride_ticks: a frame is retained where its pass began so many ticks after that of the last retained one;
        those between are attended to by their own action tokens and freed with them.
    embedding_size: length of a frame's embedding; where it is None, the first retained frame fixes it.
    prompt_slots: set aside for prompts: those that are not in force any more stay there until others need the
        room. 0: a prompt takes what it needs, and each is written anew.
    keeps_frames: whether frames outlive a change of instruction. Their keys and values were computed under
        the prompt before, in all layers but the first.
    ring_blocks, recall_similarity: of the engine's host ring, as in `HostRing`; 0 blocks: what is forgotten
        never comes back.
    Raises MemoryTooSmall when not even one frame fits beside `prompt_slots`.
    """

    def __init__(
        self,
        n_slots: int,
        action_tokens: int,
        policy: EvictionPolicy,
        embedding_size: int | None = None,
        stride_ticks: int = 1,
        prompt_slots: int = 0,
        keeps_frames: bool = False,
        ring_blocks: int = 0,
        recall_similarity: float = 0.95,
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
        self.prompt_slots = prompt_slots
        self.keeps_frames = keeps_frames
        self.prompt_tokens = 0
        self.capacity_frames = 0
        self.journal: deque[Evicted] = deque(maxlen=JOURNAL_LENGTH)
        self.frames: list[RetainedFrame] = []
        self._pool = SlotPool(n_slots)
        self._tree = PromptTree(self._pool)
        self._context = np.zeros(n_slots, np.int32)
        self._block = np.zeros(FRAME_TOKENS, np.int32)
        self._has_block = False
        self._reserved = np.zeros(MAX_ACTION_TOKENS, np.int32)
        self._action_tokens = action_tokens
        self._pass_tick = 0
        self._last_retained_tick: int | None = None
        self._embedding_size: int | None = None
        self._ring: HostRing | None = None
        self._ring_blocks = ring_blocks
        self._recall_similarity = recall_similarity
        if embedding_size is not None:
            self._prepare(embedding_size)
        self.set_prompt(0)

    def set_prompt(self, n_tokens: int) -> np.ndarray:
        """Forget everything, as where the engine's cache is empty, and pin a prompt of P = `n_tokens`.

        Returns its slots, (P,) int32 in rank order. No later prompt is told to begin like this one. Raises
        MemoryTooSmall, with nothing forgotten, as `instruct` does.
        """
        self._capacity(n_tokens)
        self._forget_frames()
        self._tree.forget()
        self._pool.reset()
        self._pool.take(self._reserved)
        return self.instruct(np.zeros(n_tokens, np.int32), 0).slots

    def instruct(self, tokens: np.ndarray, tick: int) -> NewPrompt:
        """Pin another prompt, `tokens` (P,) int32, and forget the frames or those that have no room any more.

        Capacity becomes floor((n_slots - max(P, prompt_slots) - 8) / 32) frames. Raises MemoryTooSmall, with
        nothing forgotten, when that is below one frame.
        """
        self.capacity_frames = self._capacity(len(tokens))
        if not self.keeps_frames:
            self._forget_frames()
        evicted = []
        while len(self.frames) + self._has_block > self.capacity_frames:
            evicted.append(self._evict_any(tick))
        self.journal.extend(evicted)
        frame_slots = self._context[self.prompt_tokens : self._n_context].copy()
        if not self.prompt_slots:
            self._tree.forget()
        slots, n_cached = self._tree.pin(tokens, max(len(tokens), self.prompt_slots))
        self.prompt_tokens = len(tokens)
        self._context[: self._n_context] = np.concatenate([slots, frame_slots])
        return NewPrompt(slots[:n_cached], tokens[n_cached:], slots[n_cached:], evicted)

    def prompt_written(self) -> None:
        """The engine has written the prompt in force; what begins like it may use its slots from now on."""
        self._tree.written()

    def make_room(self, tick: int) -> list[Evicted]:
        """Evict by policy until one more frame fits, and set its block aside as `frame_slots`."""
        self._pass_tick = tick
        evicted = []
        for index in self._ring.outstayed(tick) if self._ring is not None else ():
            evicted.append(self._evict(self._place_of(index), tick, "the scene no longer resembles it"))
        while victim := self.policy.choose_victim(self._n_residents, self._is_full):
            evicted.append(self._evict(self._resident(victim.place), tick, victim.reason))
        self.journal.extend(evicted)
        if not self._has_block:
            self._pool.take(self._block)
            self._has_block = True
        return evicted

    def forget(self, n_frames: int, tick: int, reason: str) -> list[Evicted]:
        """Evict `n_frames` of several by policy, full or not; the newest frame stays."""
        evicted = []
        while len(evicted) < n_frames and len(self.frames) > 1:
            evicted.append(self._evict_any(tick, reason))
        self.journal.extend(evicted)
        return evicted

    def recall(self, tick: int) -> Recalled | None:
        """Bring a frame back that the scene resembles again, in exchange for one that the policy names.

        The pass attends to as many tokens as without it. Guests have at most a quarter of the memory. To be
        called after `make_room`; what it evicts, the engine forgets before it copies.
        """
        ring = self._ring
        if ring is None or self._n_residents < 2 or ring.n_guests >= self.capacity_frames // 4:
            return None
        found = ring.resembled(tick)
        if found is None:
            return None
        victim = self.policy.choose_victim(self._n_residents, True)
        reason = f"for frame {found.meta.index}, which the scene resembles again (cosine {found.cosine:.4f})"
        # Before the eviction: what goes must not take the place of what comes.
        ring.welcome(found.place, tick)
        evicted = self._evict(self._resident(victim.place), tick, reason)
        self.journal.append(evicted)
        slots = self._pool.take(np.zeros(FRAME_TOKENS, np.int32))
        place = bisect_left(self.frames, found.meta.index, key=lambda frame: frame.meta.index)
        start, end = self.prompt_tokens + FRAME_TOKENS * place, self._n_context
        self._context[start + FRAME_TOKENS : end + FRAME_TOKENS] = self._context[start:end].copy()
        self._context[start : start + FRAME_TOKENS] = slots
        self.frames.insert(place, RetainedFrame(found.meta, tick))
        return Recalled(found.place, slots, evicted)

    @property
    def context_tokens(self) -> int:
        """How many tokens the next pass attends to, before room is made for its frame."""
        return self._n_context

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
        whether the frame was kept; the first one of a new memory always is. Raises RuntimeError before
        `make_room`, ValueError for an embedding of another size or with values that are not finite; nothing
        is retained then.
        """
        self._require_block()
        if self._embedding_size is None:
            self._prepare(embedding.size)
        self._check(embedding)
        if self._ring is not None:
            self._ring.look(embedding)
        last = self._last_retained_tick
        if last is not None and self._pass_tick - last < self.stride_ticks:
            return False
        self.policy.observe(meta, embedding, self._of_residents(signals))
        if self._ring is not None:
            self._ring.observe(meta.index)
        self._context[self._n_context : self._n_context + FRAME_TOKENS] = self._block
        self.frames.append(RetainedFrame(meta, tick))
        self._last_retained_tick = self._pass_tick
        self._has_block = False
        return True

    @property
    def _n_context(self) -> int:
        return self.prompt_tokens + FRAME_TOKENS * len(self.frames)

    @property
    def _is_full(self) -> bool:
        return not self._has_block and len(self.frames) >= self.capacity_frames

    def _forget_frames(self) -> None:
        self._pool.give_back(self._context[self.prompt_tokens : self._n_context])
        if self._has_block:
            self._pool.give_back(self._block)
            self._has_block = False
        self.frames.clear()
        if self._embedding_size is not None:
            self.policy.clear()
        if self._ring is not None:
            self._ring.clear()
        self._last_retained_tick = None

    def _capacity(self, prompt_tokens: int) -> int:
        if prompt_tokens < 0:
            raise ValueError(f"a prompt has {prompt_tokens} tokens; it has 0 or more")
        for_prompts = max(prompt_tokens, self.prompt_slots)
        capacity = (self.n_slots - for_prompts - MAX_ACTION_TOKENS) // FRAME_TOKENS
        if capacity >= 1:
            return capacity
        if self.prompt_slots > prompt_tokens:
            raise MemoryTooSmall(
                f"memory.prompt_slots is {self.prompt_slots}, one frame needs {FRAME_TOKENS} and the action "
                f"tokens {MAX_ACTION_TOKENS}, and the KV cache has {self.n_slots}: lower it or raise "
                "memory.slots"
            )
        needed = prompt_tokens + FRAME_TOKENS + MAX_ACTION_TOKENS
        raise MemoryTooSmall(
            f"a prompt of {prompt_tokens} tokens, one frame ({FRAME_TOKENS}) and the action tokens "
            f"({MAX_ACTION_TOKENS}) need {needed} slots, and the KV cache has {self.n_slots}: "
            "shorten the instruction or raise memory.slots"
        )

    @property
    def _n_residents(self) -> int:
        """Retained frames that are no guests: those that the policy knows."""
        return len(self.frames) - (self._ring.n_guests if self._ring is not None else 0)

    def _is_guest(self, frame: RetainedFrame) -> bool:
        return self._ring is not None and self._ring.is_guest(frame.meta.index)

    def _resident(self, policy_place: int) -> int:
        """The place among all frames of what the policy calls `policy_place`."""
        if self._n_residents == len(self.frames):
            return policy_place
        return [i for i, frame in enumerate(self.frames) if not self._is_guest(frame)][policy_place]

    def _place_of(self, index: int) -> int:
        return next(place for place, frame in enumerate(self.frames) if frame.meta.index == index)

    def _of_residents(self, signals: PassSignals | None) -> PassSignals | None:
        if signals is None or self._n_residents == len(self.frames):
            return signals
        kept = [not self._is_guest(frame) for frame in self.frames]
        by_frame, by_action = signals.frame_attention[kept], signals.action_attention[kept]
        return PassSignals(by_frame, by_action, signals.value_norm)

    def _evict_any(self, tick: int, reason: str | None = None) -> Evicted:
        """Evict a guest, or else whom the policy names; `reason` is in place of its own."""
        guest = next((place for place, frame in enumerate(self.frames) if self._is_guest(frame)), None)
        if guest is not None:
            return self._evict(guest, tick, reason or "a guest, no free block")
        victim = self.policy.choose_victim(len(self.frames), True)
        return self._evict(victim.place, tick, reason or victim.reason)

    def _evict(self, place: int, tick: int, reason: str) -> Evicted:
        is_guest = self._is_guest(self.frames[place])
        n_guests_before = 0
        if self._n_residents < len(self.frames):
            n_guests_before = sum(self._is_guest(frame) for frame in self.frames[:place])
        frame = self.frames.pop(place)
        start = self.prompt_tokens + FRAME_TOKENS * place
        slots = self._context[start : start + FRAME_TOKENS].copy()
        end = self._n_context + FRAME_TOKENS
        self._context[start : end - FRAME_TOKENS] = self._context[start + FRAME_TOKENS : end]
        self._pool.give_back(slots)
        if is_guest:
            self._ring.farewell(frame.meta.index, tick)
            return Evicted(tick, "recall", frame.meta, reason, slots)
        self.policy.forget(place - n_guests_before)
        ring_place = self._ring.forget(frame.meta, tick) if self._ring is not None else None
        return Evicted(tick, self.policy.name, frame.meta, reason, slots, ring_place)

    def _prepare(self, embedding_size: int) -> None:
        self._embedding_size = embedding_size
        capacity = self._capacity(0)
        self.policy.prepare(capacity, embedding_size)
        if self._ring_blocks:
            self._ring = HostRing(self._ring_blocks, capacity, embedding_size, self._recall_similarity)

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
