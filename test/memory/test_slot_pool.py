import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_edge_ros.memory.slots import MemoryTooSmall, SlotPool


def take(pool: SlotPool, n: int) -> np.ndarray:
    return pool.take(np.zeros(n, np.int32))


@given(st.integers(1, 64), st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=40))
@settings(max_examples=100, deadline=None)
def test_slots_are_neither_lost_nor_held_twice(n_slots, operations):
    pool = SlotPool(n_slots)
    held: list[np.ndarray] = []
    for is_take, n in operations:
        if is_take and n <= pool.n_free:
            held.append(take(pool, n))
        elif not is_take and held:
            pool.give_back(held.pop(n % len(held)))
        taken = [slot for slots in held for slot in slots.tolist()]
        assert len(taken) == len(set(taken))
        assert all(0 <= slot < n_slots for slot in taken)
        assert pool.n_free == n_slots - len(taken)


def test_taking_more_than_is_free_takes_nothing():
    pool = SlotPool(10)
    take(pool, 7)
    with pytest.raises(MemoryTooSmall, match="4 slots were asked for, and 3 of 10 are free"):
        take(pool, 4)
    assert sorted(take(pool, 3).tolist()) == [7, 8, 9]


@pytest.mark.parametrize("slots", [[0, 0], [0, 9], [9]], ids=["twice", "one is free", "free"])
def test_giving_back_what_is_not_held_is_refused_and_frees_nothing(slots):
    pool = SlotPool(10)
    take(pool, 3)
    with pytest.raises(ValueError, match="not all taken"):
        pool.give_back(np.array(slots, np.int32))
    assert pool.n_free == 7


def test_slots_given_back_last_are_handed_out_first():
    pool = SlotPool(100)
    first, _ = take(pool, 32).copy(), take(pool, 32)
    pool.give_back(first)
    assert take(pool, 32).tolist() == first.tolist()


def test_reset_frees_everything():
    pool = SlotPool(5)
    take(pool, 5)
    pool.reset()
    assert take(pool, 5).tolist() == [0, 1, 2, 3, 4]
