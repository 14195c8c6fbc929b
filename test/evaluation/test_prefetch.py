"""Reading ahead keeps the order, the memory bound and the errors of the source."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_edge_ros.evaluation.prefetch import Prefetch


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 50)), st.integers(0, 100))
def test_items_come_in_order_and_none_is_lost(sizes, budget_bytes):
    prefetch = Prefetch(((index, size) for index, size in enumerate(sizes)), budget_bytes)
    assert list(prefetch) == list(range(len(sizes)))
    prefetch.stop()


def test_the_reader_stops_at_the_budget_until_items_are_taken():
    drawn = []
    is_fourth_drawn, may_end = threading.Event(), threading.Event()

    def source():
        for index in range(10):
            drawn.append(index)
            if index == 3:
                is_fourth_drawn.set()
            if index == 5:
                may_end.set()
            yield index, 10

    prefetch = Prefetch(source(), budget_bytes=30)
    assert is_fourth_drawn.wait(5)
    # three are queued, the fourth is in the reader's hand
    assert drawn == [0, 1, 2, 3]
    items = iter(prefetch)
    assert (next(items), next(items)) == (0, 1)
    assert may_end.wait(5)
    assert prefetch.queued_bytes <= 30
    assert [*items] == list(range(2, 10))


def test_an_item_larger_than_the_budget_still_passes():
    assert list(Prefetch(iter([("large", 1000), ("small", 1)]), budget_bytes=10)) == ["large", "small"]


def test_an_error_of_the_source_comes_after_the_items_before_it():
    def source():
        yield 1, 1
        raise ValueError("damaged")

    items = iter(Prefetch(source(), 10))
    assert next(items) == 1
    with pytest.raises(ValueError, match="damaged"):
        next(items)


def test_stopping_ends_a_reader_that_waits_for_room_and_a_player_that_waits_for_items():
    full = Prefetch(((index, 10) for index in range(1000)), budget_bytes=10)
    full.stop()
    assert list(full) == []

    is_released = threading.Event()

    def slow():
        is_released.wait(5)
        yield 1, 1

    waiting = Prefetch(slow(), 10)
    got = []
    player = threading.Thread(target=lambda: got.extend(waiting))
    player.start()
    is_released.set()
    waiting.stop()
    player.join(5)
    assert not player.is_alive()
    assert got in ([], [1])
