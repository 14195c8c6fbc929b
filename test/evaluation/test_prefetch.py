"""Reading ahead keeps the order, the memory bound and the errors of the source."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_edge_ros.evaluation.prefetch import Prefetch


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 50)), st.integers(1, 9), st.integers(0, 100))
def test_items_come_in_order_and_none_is_lost(sizes, max_items, budget_bytes):
    prefetch = Prefetch(((index, size) for index, size in enumerate(sizes)), max_items, budget_bytes)
    assert list(prefetch) == list(range(len(sizes)))
    prefetch.stop()


@pytest.mark.parametrize(("max_items", "budget_bytes"), [(100, 30), (3, 1000)])
def test_the_reader_stops_at_either_bound_until_items_are_taken(max_items, budget_bytes):
    drawn = []
    is_sixth_drawn = threading.Event()

    def source():
        for index in range(10):
            drawn.append(index)
            if index == 5:
                is_sixth_drawn.set()
            yield index, 10

    prefetch = Prefetch(source(), max_items, budget_bytes)
    prefetch.wait_until_full()
    # three are queued, the fourth is in the reader's hand
    assert drawn == [0, 1, 2, 3]
    assert prefetch.queued_bytes == 30
    items = iter(prefetch)
    assert (next(items), next(items)) == (0, 1)
    assert is_sixth_drawn.wait(5)
    assert prefetch.queued_bytes <= 30
    assert [*items] == list(range(2, 10))


def test_a_source_that_ends_before_the_bound_counts_as_full():
    prefetch = Prefetch(iter([("only", 1)]), 5, 5)
    prefetch.wait_until_full()
    assert list(prefetch) == ["only"]


def test_an_item_larger_than_the_budget_still_passes():
    assert list(Prefetch(iter([("large", 1000), ("small", 1)]), 9, budget_bytes=10)) == ["large", "small"]


def test_an_error_of_the_source_comes_after_the_items_before_it():
    def source():
        yield 1, 1
        raise ValueError("damaged")

    items = iter(Prefetch(source(), 9, 10))
    assert next(items) == 1
    with pytest.raises(ValueError, match="damaged"):
        next(items)


def test_stopping_ends_a_reader_that_waits_for_room_and_a_player_that_waits_for_items():
    full = Prefetch(((index, 10) for index in range(1000)), 9, budget_bytes=10)
    full.stop()
    assert list(full) == []

    is_released = threading.Event()

    def slow():
        is_released.wait(5)
        yield 1, 1

    waiting = Prefetch(slow(), 9, 10)
    got = []
    player = threading.Thread(target=lambda: got.extend(waiting))
    player.start()
    is_released.set()
    waiting.stop()
    player.join(5)
    assert not player.is_alive()
    assert got in ([], [1])
