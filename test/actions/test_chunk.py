import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_edge_ros.actions.chunk import ChunkQueue

MS = 1_000_000
DT = 33 * MS


def queue_of(ttl_ms=1000, min_lead_ms=10, anchors_at_capture=False):
    return ChunkQueue(DT, ttl_ms * MS, min_lead_ms * MS, anchors_at_capture)


def chunk(n, value=0.0):
    return [[value + i] * 2 for i in range(n)]


def test_steps_are_due_one_period_apart_from_the_effect_time():
    queue = queue_of()
    accepted = queue.accept(chunk(3), capture_ns=955 * MS, effect_ns=1000 * MS)
    assert (accepted.steps_left, accepted.steps_dropped) == (3, 0)
    assert queue.due_ns == [1033 * MS, 1066 * MS, 1099 * MS]


def test_the_step_of_a_tick_is_found_by_rounding_down():
    queue = queue_of()
    queue.accept(chunk(3), 955 * MS, 1000 * MS)
    found = [queue.step_at(ms * MS) for ms in (1000, 1032, 1033, 1098)]
    assert [step[0] for step in found] == [0, 0, 1, 2]
    assert queue.step_at(1099 * MS) is None


def test_steps_too_old_are_dropped_and_counted():
    queue = queue_of(ttl_ms=200)
    # From capture to the last step that is young enough: 45 + 4 * 33 = 177 ms, the next is due after 210.
    accepted = queue.accept(chunk(8), 955 * MS, 1000 * MS)
    assert (accepted.steps_left, accepted.steps_dropped, queue.steps_dropped) == (4, 4, 4)
    assert [queue.step_at((1000 + 33 * tick) * MS) is None for tick in range(6)] == [False] * 4 + [True] * 2


def test_a_step_due_exactly_at_the_end_of_its_life_is_kept():
    queue = queue_of(ttl_ms=78)
    assert queue.accept(chunk(2), 955 * MS, 1000 * MS).steps_left == 1
    assert queue.accept(chunk(2), 955 * MS - 1, 1000 * MS).steps_left == 0


def test_a_chunk_with_nothing_left_leaves_the_one_before_it():
    queue = queue_of(ttl_ms=200)
    queue.accept(chunk(4, 10), 955 * MS, 1000 * MS)
    accepted = queue.accept(chunk(8, 20), 800 * MS, 1033 * MS)
    assert (accepted.steps_left, accepted.steps_dropped) == (0, 8)
    assert queue.step_at(1033 * MS)[0] == 11


def test_a_new_chunk_replaces_the_old_one_without_counting_it_as_dropped():
    queue = queue_of()
    queue.accept(chunk(8, 10), 955 * MS, 1000 * MS)
    queue.accept(chunk(8, 20), 988 * MS, 1033 * MS)
    assert queue.step_at(1033 * MS)[0] == 20
    assert queue.steps_dropped == 0


def test_three_of_eight_done_then_dropped_leaves_five_dropped_and_only_the_new_chunk():
    queue = queue_of()
    queue.accept(np.ones((8, 2)), 955 * MS, 1000 * MS)
    assert [queue.step_at((1000 + 33 * tick) * MS)[0] for tick in range(3)] == [1, 1, 1]
    assert queue.drop(1099 * MS) == 5
    assert queue.steps_dropped == 5
    assert queue.step_at(1099 * MS) is None
    queue.accept(np.full((8, 2), 2.0), 1087 * MS, 1132 * MS)
    assert queue.step_at(1132 * MS)[0] == 2
    assert queue.steps_dropped == 5


def test_ticks_that_were_skipped_are_steps_that_are_over():
    queue = queue_of()
    queue.accept(chunk(8), 955 * MS, 1000 * MS)
    assert queue.step_at(1000 * MS)[0] == 0
    assert queue.step_at(1132 * MS)[0] == 4
    assert queue.drop(1165 * MS) == 3


def test_dropping_an_empty_queue_counts_nothing():
    queue = queue_of()
    assert queue.drop(1000 * MS) == 0
    queue.accept(chunk(1), 955 * MS, 1000 * MS)
    queue.step_at(1000 * MS)
    assert queue.drop(1033 * MS) == 0


def test_the_capture_anchors_a_chunk_that_follows_on_another():
    queue = queue_of(anchors_at_capture=True)
    queue.accept(chunk(8), 955 * MS, 1000 * MS)
    assert queue.due_ns[0] == 1033 * MS
    accepted = queue.accept(chunk(8, 10), 988 * MS, 1033 * MS)
    # Due at 1021, which is past, then at 1054.
    assert (accepted.steps_left, accepted.steps_dropped) == (7, 1)
    assert queue.due_ns[0] == 1054 * MS
    assert queue.step_at(1033 * MS)[0] == 11


def test_a_step_due_within_the_lead_is_dropped_and_the_next_is_sent_in_its_place():
    queue = queue_of(anchors_at_capture=True, min_lead_ms=10)
    queue.accept(chunk(8), 955 * MS, 1000 * MS)
    # 1033 - 970 = 63: step 1 is due in 3 ms, so that step 2, due in 36, is the first.
    queue.accept(chunk(8, 10), 970 * MS, 1033 * MS)
    assert queue.due_ns[0] == 1069 * MS
    assert queue.step_at(1033 * MS)[0] == 12


def test_the_effect_time_anchors_single_steps_and_chunks_after_a_gap():
    queue = queue_of(anchors_at_capture=True)
    queue.accept(chunk(2), 955 * MS, 1000 * MS)
    queue.accept(chunk(1), 988 * MS, 1033 * MS)
    assert queue.due_ns[0] == 1066 * MS
    queue.accept(chunk(2), 1055 * MS, 1100 * MS)
    assert queue.due_ns[0] == 1133 * MS
    queue.drop(1133 * MS)
    queue.accept(chunk(2), 1088 * MS, 1133 * MS)
    assert queue.due_ns[0] == 1166 * MS


def test_a_capture_in_the_future_does_not_prolong_a_life():
    queue = queue_of(ttl_ms=100)
    assert queue.accept(chunk(8), capture_ns=5000 * MS, effect_ns=1000 * MS).steps_left == 3
    assert queue.expiry_ns == 1100 * MS


@settings(max_examples=300, deadline=None)
@given(
    n=st.integers(1, 8),
    age_ms=st.integers(0, 300),
    ttl_ms=st.integers(34, 300),
    min_lead_ms=st.integers(0, 60),
    at_capture=st.booleans(),
)
def test_no_step_outlives_its_time_to_live_or_comes_too_soon(n, age_ms, ttl_ms, min_lead_ms, at_capture):
    queue = queue_of(ttl_ms, min_lead_ms, at_capture)
    queue.accept(chunk(8), 990 * MS, 1000 * MS)
    before = queue.steps_dropped
    capture_ns, effect_ns = (1033 - age_ms) * MS, 1033 * MS
    accepted = queue.accept(chunk(n, 10), capture_ns, effect_ns)
    assert accepted.steps_left + accepted.steps_dropped == n
    assert queue.steps_dropped - before == accepted.steps_dropped
    if accepted.steps_left:
        assert len(queue.due_ns) == len(queue.steps) == accepted.steps_left
        assert all(due_ns >= effect_ns + min_lead_ms * MS for due_ns in queue.due_ns)
        assert all(due_ns <= capture_ns + ttl_ms * MS for due_ns in queue.due_ns)
        for now_ms in range(1033, 1400, 7):
            step = queue.step_at(now_ms * MS)
            assert step is None or now_ms * MS <= capture_ns + ttl_ms * MS
