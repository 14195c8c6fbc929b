import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from vla_edge_ros.memory.prompt_tree import PromptTree
from vla_edge_ros.memory.slots import FRAME_TOKENS, MemoryTooSmall, SlotPool

N_SLOTS = 400


def tokens(*values: int, n: int = FRAME_TOKENS) -> np.ndarray:
    """A piece of `n` equal tokens for each value."""
    return np.repeat(np.array(values, np.int32), n)


def pieces_of(prompt: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(prompt[first : first + 32].tolist()) for first in range(0, len(prompt), 32)]


class AnyUseOfTheTree(RuleBasedStateMachine):
    """Prompts that begin alike or not, written or not, against plain bookkeeping."""

    def __init__(self):
        super().__init__()
        self.pool = SlotPool(N_SLOTS)
        self.tree = PromptTree(self.pool)
        self.held: dict[tuple, list[int]] = {}
        self.used: dict[tuple, int] = {}
        self.written: set[tuple] = set()
        self.now = 0
        self.pinned: list[tuple] = []

    # A piece is named by the whole beginning of its prompt up to its end.
    prompts = st.lists(st.integers(0, 1), max_size=4).flatmap(
        lambda values: st.integers(1, 3).map(
            lambda rest: np.concatenate([tokens(*values), tokens(values[-1] if values else 0, n=rest)])
        )
    )

    @rule(prompt=prompts | st.just(tokens()), spare=st.integers(0, 150))
    def pin(self, prompt, spare):
        self.now += 1
        for name in [name for name in self.held if name not in self.written]:
            del self.held[name]
        pieces = pieces_of(prompt)
        names = [tuple(pieces[: n + 1]) for n in range(len(pieces))]
        cached = [name for name in names if name in self.held]
        assert cached == names[: len(cached)]

        slots, n_cached = self.tree.pin(prompt, len(prompt) + spare)

        assert n_cached == sum(len(name[-1]) for name in cached), "the longest beginning that was written"
        self.used |= dict.fromkeys(names, self.now)
        n_missing = len(prompt) - n_cached
        while sum(map(len, self.held.values())) + n_missing > len(prompt) + spare:
            loose = [name for name in self.held if name not in names and not self.has_children(name)]
            del self.held[min(loose, key=self.used.get)]
        self.written &= set(self.held)
        at = 0
        for name in names:
            block = slots[at : at + len(name[-1])].tolist()
            assert self.held.setdefault(name, block) == block, "what is cached stays where it is"
            at += len(block)
        assert at == len(slots) == len(prompt)
        self.pinned = names

    @precondition(lambda self: self.pinned)
    @rule()
    def write(self):
        self.tree.written()
        self.written |= set(self.pinned)

    @rule()
    def forget(self):
        self.tree.forget()
        self.held, self.written, self.pinned = {}, set(), []

    def has_children(self, name):
        return any(len(other) == len(name) + 1 and other[:-1] == name for other in self.held)

    @invariant()
    def every_slot_has_one_owner_and_none_is_lost(self):
        slots = [slot for block in self.held.values() for slot in block]
        assert len(slots) == len(set(slots)) == self.tree.n_slots
        assert self.pool.n_free == N_SLOTS - len(slots)

    def teardown(self):
        self.tree.forget()
        assert self.pool.n_free == N_SLOTS


TestAnyUseOfTheTree = AnyUseOfTheTree.TestCase
TestAnyUseOfTheTree.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


def test_prompts_that_begin_alike_share_the_slots_of_their_beginning():
    tree = PromptTree(SlotPool(N_SLOTS))
    first, _ = tree.pin(tokens(1, 2, 3), 300)
    tree.written()
    second, n_cached = tree.pin(tokens(1, 2, 4), 300)
    assert n_cached == 64
    assert first[:64].tolist() == second[:64].tolist()
    assert not set(first[64:].tolist()) & set(second[64:].tolist())


def test_the_prompt_that_was_in_force_least_recently_goes_first_and_never_the_one_in_force():
    tree = PromptTree(SlotPool(N_SLOTS))
    for value in (1, 2, 1, 3):
        tree.pin(tokens(value), 96)
        tree.written()
    tree.pin(tokens(4), 96)
    tree.written()
    assert [tree.pin(tokens(value), 96)[1] for value in (1, 3, 4)] == [32, 32, 32]
    assert tree.pin(tokens(5, 6, 7), 96)[1] == 0
    assert tree.n_slots == 96, "all others gave way"


def test_a_prompt_that_gave_way_before_it_was_written_is_never_taken_for_cached():
    tree = PromptTree(SlotPool(N_SLOTS))
    tree.pin(tokens(1), 200)
    tree.written()
    tree.pin(tokens(1, 2), 200)
    tree.pin(tokens(3), 200)
    assert tree.pin(tokens(1, 2), 200)[1] == 32


def test_a_piece_that_is_not_whole_is_shared_by_its_own_prompt_alone():
    tree = PromptTree(SlotPool(N_SLOTS))
    tree.pin(tokens(1, 2)[:40], 300)
    tree.written()
    assert tree.pin(tokens(1, 2)[:41], 300)[1] == 32
    assert tree.pin(tokens(1, 2)[:40], 300)[1] == 40


def test_a_pool_without_room_says_so():
    with pytest.raises(MemoryTooSmall):
        PromptTree(SlotPool(40)).pin(tokens(1, 2), 64)
