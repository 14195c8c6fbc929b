import tracemalloc

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from vla_edge_ros.memory.frame_memory import FrameMemory
from vla_edge_ros.memory.policies import POLICIES, make_policy
from vla_edge_ros.memory.slots import MemoryTooSmall
from vla_edge_ros.perception.frame import FrameMeta

N_SLOTS = 200


def meta(index: int) -> FrameMeta:
    return FrameMeta(index, stamp_ns=index * 1000, capture_ns=index, receipt_ns=index)


def fill(memory: FrameMemory, n: int, start: int = 1) -> None:
    for index in range(start, start + n):
        memory.make_room(index)
        memory.retain(meta(index), np.ones(4, np.float32), index)


class AnyUseOfMemory(RuleBasedStateMachine):
    """Prompts, passes that succeed and passes that do not, in any order, against plain bookkeeping."""

    @initialize(
        name=st.sampled_from(POLICIES),
        window=st.integers(1, 6),
        prompt_slots=st.sampled_from([0, 0, 60, 100]),
        keeps_frames=st.booleans(),
    )
    def begin(self, name, window, prompt_slots, keeps_frames):
        policy = make_policy(name, window)
        self.memory = FrameMemory(N_SLOTS, 7, policy, prompt_slots=prompt_slots, keeps_frames=keeps_frames)
        self.last_retained: int | None = None
        self.prompt: list[int] = []
        self.blocks: dict[int, list[int]] = {}
        self.pending: list[int] | None = None
        self.tick = 0

    @rule(n_tokens=st.integers(0, N_SLOTS - 40), stride=st.integers(1, 4))
    def another_prompt_and_stride(self, n_tokens, stride):
        self.memory.stride_ticks = stride
        self.last_retained = None
        self.prompt = self.memory.set_prompt(n_tokens).tolist()
        self.blocks, self.pending = {}, None
        self.check_capacity(n_tokens)

    @rule(values=st.lists(st.integers(0, 1), max_size=2), rest=st.integers(0, 31), is_written=st.booleans())
    def instruct(self, values, rest, is_written):
        tokens = np.concatenate([np.repeat(np.array(values, np.int32), 32), np.arange(rest, dtype=np.int32)])
        before = dict(self.blocks)

        new = self.memory.instruct(tokens, self.tick)

        for line in new.evicted:
            assert self.blocks.pop(line.frame.index) == line.slots.tolist()
        if not self.memory.keeps_frames:
            assert new.evicted == []
            self.blocks, self.pending, self.last_retained = {}, None, None
        else:
            room = self.memory.capacity_frames - (self.pending is not None)
            assert len(self.blocks) == min(len(before), room), "no more frames go than have to"
        self.prompt = new.context_slots.tolist() + new.slots.tolist()
        n_cached = len(new.context_slots)
        assert new.tokens.tolist() == tokens[n_cached:].tolist()
        assert len(self.prompt) == len(tokens) == self.memory.prompt_tokens
        assert n_cached == 0 or self.memory.prompt_slots, "nothing is cached that was not asked for"
        self.check_capacity(len(tokens))
        if is_written:
            self.memory.prompt_written()

    def check_capacity(self, n_tokens):
        for_prompts = max(n_tokens, self.memory.prompt_slots)
        assert self.memory.capacity_frames == (N_SLOTS - for_prompts - 8) // 32

    @rule(n_tokens=st.integers(N_SLOTS - 39, 2 * N_SLOTS))
    def a_prompt_that_is_too_long_changes_nothing(self, n_tokens):
        with pytest.raises(MemoryTooSmall):
            self.memory.set_prompt(n_tokens)

    @rule(n=st.integers(0, 9))
    def forget_for_other_reasons_than_room(self, n):
        newest, before = max(self.blocks, default=None), len(self.blocks)
        lines = self.memory.forget(n, self.tick, "for time")
        for line in lines:
            assert line.reason == "for time"
            assert self.blocks.pop(line.frame.index) == line.slots.tolist()
        assert len(lines) == min(n, max(0, before - 1)), "the newest frame stays"
        assert newest is None or newest in self.blocks

    @rule()
    def make_room(self):
        self.tick += 1
        for line in self.memory.make_room(self.tick):
            assert line.tick == self.tick
            assert self.blocks.pop(line.frame.index) == line.slots.tolist()
        block = self.memory.frame_slots.tolist()
        assert self.pending in (None, block), "a block that was not used serves the next pass"
        self.pending = block

    @precondition(lambda self: self.pending is not None)
    @rule(seed=st.integers(0, 5))
    def retain(self, seed):
        embedding = np.random.default_rng(seed).standard_normal(4).astype(np.float32)
        is_kept = self.memory.retain(meta(self.tick), embedding, self.tick)
        is_due = self.last_retained is None or self.tick - self.last_retained >= self.memory.stride_ticks
        assert is_kept == is_due
        if is_kept:
            self.blocks[self.tick], self.last_retained = self.pending, self.tick
            self.pending = None

    @precondition(lambda self: self.pending is None)
    @rule()
    def nothing_is_retained_without_room(self):
        with pytest.raises(RuntimeError, match="make_room"):
            self.memory.retain(meta(1), np.ones(4, np.float32), 1)

    @invariant()
    def every_slot_has_one_use(self):
        context = self.memory.context_slots()
        assert context.dtype == np.int32
        assert context.tolist() == self.prompt + [slot for block in self.blocks.values() for slot in block]
        used = context.tolist() + self.memory.action_slots.tolist() + (self.pending or [])
        assert len(used) == len(set(used))
        assert all(0 <= slot < N_SLOTS for slot in used)
        assert [frame.meta.index for frame in self.memory.frames] == list(self.blocks)
        assert len(self.blocks) <= self.memory.capacity_frames

    def teardown(self):
        """No slot was lost: as many frames as ever fit in."""
        self.memory.stride_ticks = 1
        self.tick += 1
        self.memory.policy = make_policy("fifo")
        fill(self.memory, self.memory.capacity_frames + 1, start=self.tick + 1)
        assert len(self.memory.frames) == self.memory.capacity_frames


TestAnyUseOfMemory = AnyUseOfMemory.TestCase
TestAnyUseOfMemory.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def prompt(*values: int, n: int = 32) -> np.ndarray:
    return np.repeat(np.array(values, np.int32), n)


def test_an_earlier_prompt_has_nothing_to_be_written():
    memory = FrameMemory(N_SLOTS, 7, make_policy("fifo"), prompt_slots=64)
    first = memory.instruct(prompt(1), 0)
    memory.prompt_written()
    memory.instruct(prompt(2), 1)
    memory.prompt_written()
    again = memory.instruct(prompt(1), 2)
    assert again.is_cached and len(again.tokens) == 0
    assert again.context_slots.tolist() == first.slots.tolist() == memory.context_slots().tolist()


def test_nothing_is_taken_for_cached_once_memory_was_reset():
    memory = FrameMemory(N_SLOTS, 7, make_policy("fifo"), prompt_slots=64)
    memory.instruct(prompt(1), 0)
    memory.prompt_written()
    memory.set_prompt(0)
    assert not memory.instruct(prompt(1), 1).is_cached


def test_cached_prompts_take_no_room_from_frames_that_was_not_set_aside():
    memory = FrameMemory(N_SLOTS, 7, make_policy("fifo"), prompt_slots=96)
    for value in range(8):
        memory.instruct(prompt(value), value)
        memory.prompt_written()
        fill(memory, 5)
        assert len(memory.frames) == memory.capacity_frames == 3


def test_frames_that_are_kept_stand_behind_the_new_prompt_in_their_own_slots():
    memory = FrameMemory(N_SLOTS, 7, make_policy("fifo"), keeps_frames=True)
    memory.instruct(prompt(1, n=10), 0)
    fill(memory, 3)
    blocks = memory.context_slots()[10:].tolist()
    new = memory.instruct(prompt(2, n=20), 4)
    assert memory.context_slots().tolist() == new.slots.tolist() + blocks
    assert [frame.meta.index for frame in memory.frames] == [1, 2, 3]


def test_a_longer_prompt_has_frames_evicted_by_the_policy_and_journalled():
    memory = FrameMemory(N_SLOTS, 7, make_policy("fifo"), keeps_frames=True)
    memory.instruct(prompt(1, n=10), 0)
    fill(memory, 5)
    new = memory.instruct(prompt(2, n=90), 6)
    assert [(line.tick, line.frame.index) for line in new.evicted] == [(6, 1), (6, 2)]
    assert list(memory.journal) == new.evicted


def test_prompt_slots_that_leave_no_frame_are_refused():
    with pytest.raises(MemoryTooSmall, match=r"memory.prompt_slots is 161"):
        FrameMemory(N_SLOTS, 7, make_policy("fifo"), prompt_slots=N_SLOTS - 39)


@pytest.mark.parametrize("prompt", [*range(0, 36), 63, 64, 65, 95, 96, 97, 159, 160])
def test_capacity_is_what_fits_beside_the_prompt_and_eight_action_slots(prompt):
    memory = FrameMemory(N_SLOTS, 3, make_policy("fifo"))
    slots = memory.set_prompt(prompt)
    assert len(slots) == prompt
    assert memory.capacity_frames == (N_SLOTS - prompt - 8) // 32
    fill(memory, memory.capacity_frames)
    assert not memory.journal
    fill(memory, 1, start=100)
    assert len(memory.journal) == 1


def test_the_reference_cache_holds_127_frames_beside_a_short_prompt():
    memory = FrameMemory(4096, 8, make_policy("fifo"))
    memory.set_prompt(24)
    assert memory.capacity_frames == 127


def test_the_prompt_keeps_its_slots_and_ranks_whatever_is_forgotten():
    memory = FrameMemory(N_SLOTS, 7, make_policy("semantic"))
    prompt = memory.set_prompt(33).tolist()
    fill(memory, 40)
    assert len(memory.journal) == 36
    assert memory.context_slots()[:33].tolist() == prompt


def test_slots_of_a_forgotten_frame_are_handed_out_again():
    memory = FrameMemory(40, 7, make_policy("fifo"))
    fill(memory, 1)
    first = memory.context_slots().tolist()
    (evicted,) = memory.make_room(2)
    assert evicted.slots.tolist() == first == memory.frame_slots.tolist()


def test_a_new_prompt_forgets_every_frame_and_keeps_the_journal():
    memory = FrameMemory(N_SLOTS, 7, make_policy("fifo"))
    fill(memory, 8)
    memory.set_prompt(5)
    assert memory.frames == []
    assert len(memory.context_slots()) == 5
    assert len(memory.journal) == 2
    with pytest.raises(RuntimeError, match="make_room"):
        memory.frame_slots  # noqa: B018


def test_a_journal_line_says_who_forgot_what_when_and_why():
    memory = FrameMemory(40, 7, make_policy("fifo"))
    fill(memory, 2, start=41)
    assert memory.journal[0].to_json() == {
        "tick": 42,
        "policy": "fifo",
        "frame": 41,
        "stamp_ns": 41_000,
        "reason": "oldest, no free block",
    }


def test_the_journal_is_bounded():
    memory = FrameMemory(40, 7, make_policy("fifo"))
    fill(memory, 1500)
    assert len(memory.journal) == 1024
    assert memory.journal[-1].frame.index == 1499


@pytest.mark.parametrize("n_slots", [1, 39])
def test_a_cache_below_one_frame_is_refused(n_slots):
    with pytest.raises(
        MemoryTooSmall, match=rf"need 40 slots, and the KV cache has {n_slots}: .* raise memory\.slots$"
    ):
        FrameMemory(n_slots, 7, make_policy("fifo"))


@pytest.mark.parametrize("action_tokens", [0, 9])
def test_action_tokens_outside_one_to_eight_are_refused(action_tokens):
    with pytest.raises(ValueError, match="1 to 8"):
        FrameMemory(N_SLOTS, action_tokens, make_policy("fifo"))


@pytest.mark.parametrize("embedding", [np.full(4, np.nan), np.array([1, np.inf, 0, 0]), np.ones(5)])
def test_an_unfit_embedding_is_refused_and_nothing_is_retained(embedding):
    memory = FrameMemory(N_SLOTS, 7, make_policy("semantic"), embedding_size=4)
    fill(memory, 2)
    memory.make_room(3)
    with pytest.raises(ValueError, match="embedding"):
        memory.retain(meta(3), embedding.astype(np.float32), 3)
    assert len(memory.frames) == 2
    assert len(memory.context_slots()) == 64
    memory.retain(meta(3), np.ones(4, np.float32), 3)


def test_a_tick_at_full_memory_allocates_no_array_that_grows_with_it():
    memory = FrameMemory(4096, 7, make_policy("semantic"), embedding_size=1536)
    embedding = np.ones(1536, np.float32)
    for tick in range(1, 140):
        memory.make_room(tick)
        memory.retain(meta(tick), embedding, tick)
    tracemalloc.start()
    memory.make_room(140)
    memory.context_slots()
    memory.retain(meta(140), embedding, 140)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8192, "the slot list alone is 16 KB, an embedding 6 KB"


# Strides


def ticks_retained(memory: FrameMemory, ticks) -> list[int]:
    """Run passes on `ticks` and return those whose frames were kept."""
    kept = []
    for tick in ticks:
        memory.make_room(tick)
        if memory.retain(meta(tick + 1), np.ones(4, np.float32), tick):
            kept.append(tick)
    return kept


def test_one_frame_a_stride_is_retained():
    memory = FrameMemory(N_SLOTS, 7, make_policy("fifo"), stride_ticks=3)
    assert ticks_retained(memory, range(10)) == [0, 3, 6, 9]
    assert [frame.tick for frame in memory.frames] == [0, 3, 6, 9]


def test_a_stride_counts_from_the_last_retained_frame_where_ticks_are_missed():
    memory = FrameMemory(N_SLOTS, 7, make_policy("fifo"), stride_ticks=3)
    assert ticks_retained(memory, [0, 1, 2, 5, 6, 7, 8, 20, 21]) == [0, 5, 8, 20]


def test_a_pass_that_ends_in_a_later_tick_counts_by_the_tick_that_began_it():
    memory = FrameMemory(N_SLOTS, 7, make_policy("fifo"))
    memory.make_room(4)
    assert memory.retain(meta(1), np.ones(4, np.float32), tick=5)
    memory.make_room(5)
    assert memory.retain(meta(2), np.ones(4, np.float32), tick=5)


def test_the_first_frame_after_a_new_prompt_is_retained():
    memory = FrameMemory(N_SLOTS, 7, make_policy("fifo"), stride_ticks=100)
    assert ticks_retained(memory, range(50)) == [0]
    memory.set_prompt(3)
    assert ticks_retained(memory, range(50, 60)) == [50]


def test_frames_between_strides_share_one_block_and_evict_once():
    """Six blocks fit. The frames at hand take one of them, so five strides are remembered beside it."""
    memory = FrameMemory(N_SLOTS + 8, 7, make_policy("fifo"), stride_ticks=4)
    blocks, evicted = [], []
    for tick in range(24):
        evicted += [(tick, line.frame.index - 1) for line in memory.make_room(tick)]
        blocks.append(memory.frame_slots.tolist())
        memory.retain(meta(tick + 1), np.ones(4, np.float32), tick)
    assert all(blocks[first + 1] == blocks[first + 4] for first in range(0, 20, 4))
    assert blocks[0] != blocks[1]
    assert memory.capacity_frames == 6
    assert evicted == [(21, 0)]
    assert [frame.tick for frame in memory.frames] == [4, 8, 12, 16, 20]


def test_a_stride_below_one_tick_is_refused():
    with pytest.raises(ValueError, match="stride_ticks is 0"):
        FrameMemory(N_SLOTS, 7, make_policy("fifo"), stride_ticks=0)
