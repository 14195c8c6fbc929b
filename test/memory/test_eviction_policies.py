import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vla_edge_ros.memory.frame_memory import FrameMemory
from vla_edge_ros.memory.policies import POLICIES, make_policy
from vla_edge_ros.perception.frame import FrameMeta

CAPACITY = 5
N_SLOTS = CAPACITY * 32 + 8


def remember(policy, embeddings, n_slots=N_SLOTS) -> FrameMemory:
    """A memory after one successful tick for each embedding; frame and tick i are number i, from 1."""
    memory = FrameMemory(n_slots, 7, policy)
    for index, embedding in enumerate(embeddings, start=1):
        memory.make_room(index)
        memory.retain(FrameMeta(index, index * 10, index, index), np.asarray(embedding, np.float32), index)
    return memory


def retained(memory) -> list[int]:
    return [frame.meta.index for frame in memory.frames]


def evictions(memory) -> list[tuple[int, int]]:
    return [(line.tick, line.frame.index) for line in memory.journal]


def angles(*degrees) -> list[list[float]]:
    return [[np.cos(np.radians(d)), np.sin(np.radians(d))] for d in degrees]


def test_fifo_forgets_the_oldest_when_no_block_is_free():
    memory = remember(make_policy("fifo"), np.eye(8))
    assert retained(memory) == [4, 5, 6, 7, 8]
    assert evictions(memory) == [(6, 1), (7, 2), (8, 3)]


def test_sliding_window_keeps_its_width_below_capacity():
    memory = remember(make_policy("sliding_window", 3), np.eye(8))
    assert retained(memory) == [6, 7, 8]
    assert evictions(memory)[0] == (4, 1)


def test_sliding_window_wider_than_the_cache_forgets_like_fifo():
    assert retained(remember(make_policy("sliding_window", 99), np.eye(8))) == [4, 5, 6, 7, 8]


@given(st.integers(1, 30))
@settings(max_examples=30, deadline=None)
def test_fifo_equals_a_sliding_window_of_the_capacity(n_frames):
    frames = np.eye(n_frames)
    fifo = remember(make_policy("fifo"), frames)
    window = remember(make_policy("sliding_window", CAPACITY), frames)
    assert evictions(fifo) == evictions(window)
    assert retained(fifo) == retained(window)


def test_semantic_forgets_the_older_of_the_most_alike_neighbours():
    # Neighbouring angles differ by 40, 5, 60 and 30 degrees: frames 2 and 3 are the most alike.
    memory = remember(make_policy("semantic"), angles(0, 40, 45, 105, 135, 200))
    assert retained(memory) == [1, 3, 4, 5, 6]
    assert memory.journal[-1].reason == f"cosine {np.cos(np.radians(5)):.4f} with its successor"


def test_semantic_takes_the_first_of_equal_pairs():
    memory = remember(make_policy("semantic"), [[1, 0], [1, 0], [0, 1], [0, 1], [1, 0], [0, 1]])
    assert retained(memory) == [2, 3, 4, 5, 6]


def test_semantic_compares_new_neighbours_after_an_eviction():
    # Frame 2 goes first (5 degrees from 3). Then 1 and 3 are 40 degrees apart and 3 and 4 are 42; with the
    # forgotten frame's 45 degrees in place of 40, frame 3 would go.
    memory = remember(make_policy("semantic"), angles(0, 45, 40, 82, 142, 212, 292))
    assert evictions(memory) == [(6, 2), (7, 1)]


def test_a_zero_embedding_is_like_nothing():
    memory = remember(make_policy("semantic"), [[0, 0], [0, 0], [1, 0.1], [1, 0], [0, 1]])
    np.testing.assert_array_equal(memory.policy.cosines[:2], [0, 0])
    memory.make_room(6)
    assert retained(memory) == [1, 2, 4, 5]


@example([[0, 0, 0], [0, 1, 2], [0, 1, 2], [1, 0, 0], [1, 0, 0], [0, 0, 0]])
@given(st.lists(st.lists(st.integers(-3, 3), min_size=3, max_size=3), min_size=1, max_size=25))
@settings(max_examples=60, deadline=None)
def test_semantic_agrees_with_a_search_over_all_neighbours(embeddings):
    memory = remember(make_policy("semantic"), embeddings)
    kept: list[int] = []
    for index in range(1, len(embeddings) + 1):
        if len(kept) == CAPACITY:
            pairs = [np.float64([embeddings[i - 1], embeddings[j - 1]]) for i, j in itertools.pairwise(kept)]
            norms = [np.linalg.norm(a) * np.linalg.norm(b) for a, b in pairs]
            alike = [a @ b / n if n > 0 else 0.0 for (a, b), n in zip(pairs, norms, strict=True)]
            # Equal cosines may differ by rounding between the two ways of computing them.
            place = next(place for place, cosine in enumerate(alike) if cosine >= max(alike) - 1e-9)
            kept.pop(place)
        kept.append(index)
    assert retained(memory) == kept


@pytest.mark.parametrize("name", POLICIES)
def test_the_newest_frame_is_never_forgotten_while_there_is_an_older_one(name):
    memory = FrameMemory(2 * 32 + 8, 7, make_policy(name, 2))
    for index in range(1, 10):
        evicted = memory.make_room(index)
        assert index - 1 not in [line.frame.index for line in evicted]
        memory.retain(FrameMeta(index, 0, 0, 0), np.ones(4, np.float32), index)


@pytest.mark.parametrize("name", POLICIES)
def test_a_cache_of_one_frame_replaces_it(name):
    memory = remember(make_policy(name, 1), np.ones((3, 4)), n_slots=40)
    assert retained(memory) == [3]
    assert evictions(memory) == [(2, 1), (3, 2)]


def test_an_unknown_policy_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'lru'; known policies are fifo, sliding_window, semantic"):
        make_policy("lru")


def test_a_window_below_one_frame_is_refused():
    with pytest.raises(ValueError, match="window_frames is 0"):
        make_policy("sliding_window", 0)
