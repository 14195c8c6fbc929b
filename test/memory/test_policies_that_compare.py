"""Which frame each of the newer policies forgets, on cases small enough to do by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_edge_ros.memory.by_novelty import ALIKE
from vla_edge_ros.memory.frame_memory import FrameMemory
from vla_edge_ros.memory.policies import POLICIES, make_policy
from vla_edge_ros.memory.similarity import NOTHING, PairSimilarity
from vla_edge_ros.perception.frame import FrameMeta

MS = 1_000_000


class Memory(FrameMemory):
    """A memory of `capacity` frames; frame i (from 1) is captured at `times_ms[i - 1]`."""

    def __init__(self, policy, capacity, embeddings, times_ms=None, **keywords):
        super().__init__(capacity * 32 + 8, 7, make_policy(policy, **keywords))
        times_ms = range(len(embeddings)) if times_ms is None else times_ms
        for index, (embedding, at) in enumerate(zip(embeddings, times_ms, strict=True), start=1):
            self.make_room(index)
            self.retain(FrameMeta(index, 0, at * MS, 0), np.asarray(embedding, np.float32), index)

    @property
    def retained(self) -> list[int]:
        return [frame.meta.index for frame in self.frames]


def degrees(*angles) -> np.ndarray:
    return np.array([[np.cos(np.radians(a)), np.sin(np.radians(a))] for a in angles])


def test_sinks_recent_keeps_the_first_four_and_then_the_newest():
    assert Memory("sinks_recent", 6, np.eye(9)).retained == [1, 2, 3, 4, 8, 9]


def test_sinks_recent_never_takes_more_sinks_than_leave_room_for_the_newest():
    assert Memory("sinks_recent", 2, np.eye(5)).retained == [4, 5]
    assert Memory("sinks_recent", 3, np.eye(5)).retained == [1, 4, 5]


def test_uniform_stride_widens_the_smallest_gap():
    # Without frame 2 a gap of 30 ms is left, without 3 one of 25 ms, without 4 one of 45 ms: 3 goes.
    memory = Memory("uniform_stride", 5, np.eye(6), times_ms=[0, 20, 30, 45, 75, 100])
    assert memory.retained == [1, 2, 4, 5, 6]
    assert memory.journal[-1].reason == "leaves a gap of 25 ms, the smallest"


@given(st.integers(3, 12), st.integers(20, 200))
@settings(max_examples=30, deadline=None)
def test_uniform_stride_leaves_no_gap_of_more_than_four_mean_ones(capacity, n_frames):
    memory = Memory("uniform_stride", capacity, np.ones((n_frames, 1)))
    times = np.array(memory.retained)
    assert times[0] == 1 and times[-1] == n_frames
    assert np.diff(times).max() <= 4 * max(1.0, np.diff(times).mean())


def test_random_forgets_by_its_seed_and_never_the_newest():
    runs = [Memory("random", 4, np.eye(40), seed=seed) for seed in (3, 3, 4)]
    assert runs[0].retained == runs[1].retained != runs[2].retained
    assert all(line.tick - 1 != line.frame.index for run in runs for line in run.journal)
    assert runs[0].journal[0].reason == "by chance, seed 3"


def test_temporal_redundancy_forgets_the_past_frame_most_like_the_newest():
    # Frame 5 is the recent one (an eighth of five, at least one); 2 is 10 degrees from it, 4 is 70.
    assert Memory("temporal_redundancy", 5, degrees(180, 20, 95, 80, 10, 0)).retained == [1, 3, 4, 5, 6]


def test_temporal_redundancy_averages_over_an_eighth_of_the_frames():
    # 14 and 15 are recent. 1 is 0 and 90 degrees from them (mean cosine 0.5), 2 is 45 from both (0.707).
    angles = [0, 45, *[180] * 12, 90, 0]
    memory = Memory("temporal_redundancy", 16, degrees(*angles, 270))
    assert memory.journal[0].frame.index == 2
    assert memory.journal[0].reason == "cosine 0.7071 with the 2 newest on average"


def test_novelty_sees_a_scene_that_comes_back():
    # 1 and 4 show the same; neighbours in time all differ by 60 degrees or more. Both are as redundant, and
    # without 4 (its neighbours at 20 and 41) the gap is 21 ms, without 1 (it begins the memory) it is 10 ms.
    memory = Memory("novelty", 5, degrees(0, 60, 130, 0, 240, 300), times_ms=[0, 10, 20, 30, 41, 50])
    assert memory.retained == [2, 3, 4, 5, 6]


def test_novelty_thins_a_still_scene_out_evenly():
    memory = Memory("novelty", 8, np.ones((64, 3)))
    assert np.diff([1, *memory.retained]).max() <= 4 * 64 / 8


def test_novelty_keeps_the_one_frame_that_differs():
    embeddings = np.tile([1.0, 0.0], (60, 1))
    embeddings[9] = [0.0, 1.0]
    assert 10 in Memory("novelty", 8, embeddings).retained
    assert 10 not in Memory("fifo", 8, embeddings).retained


def test_novelty_takes_what_differs_less_than_noise_for_equal():
    # 2 and 3 are alike to 1.0, 5 and 6 to 0.9995: the same for a camera, and without 6 the gap is smaller.
    embeddings = degrees(0, 90, 90, 180, 270, 271.8, 45, 135)
    times_ms = [0, 100, 200, 300, 400, 410, 420, 600]
    memory = Memory("novelty", 7, embeddings, times_ms)
    assert 1 - np.cos(np.radians(1.8)) < ALIKE
    assert memory.journal[0].frame.index == 6


def test_novelty_does_not_forget_across_the_coverage_floor():
    # 1 and 2 are equal, but without either a gap of 2000 ms or more is left, and 4 means are 1760 ms. Of the
    # others 4 to 6 are the most alike (10 degrees), and 5 leaves the smallest gap.
    embeddings = degrees(0, 0, 90, 200, 210, 220, 290, 330)
    memory = Memory("novelty", 7, embeddings, times_ms=[0, 2000, 3000, 3050, 3060, 3070, 3080, 3090])
    assert memory.journal[0].frame.index == 5


def test_novelty_spares_the_newest_eighth():
    embeddings = np.eye(17)
    embeddings[15] = embeddings[14]
    memory = Memory("novelty", 16, embeddings)
    assert not {15, 16} & {line.frame.index for line in memory.journal}


@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(-3, 3), min_size=3, max_size=3)), max_size=40),
)
@settings(max_examples=80, deadline=None)
def test_similarities_of_all_pairs_stay_those_of_the_frames_that_are_there(capacity, operations):
    pairs, kept = PairSimilarity(capacity, 3), []
    for place, embedding in operations:
        if len(kept) == capacity:
            pairs.remove(place % capacity)
            kept.pop(place % capacity)
        pairs.append(np.array(embedding, np.float32))
        kept.append(np.array(embedding, float))
        rows = pairs.rows
        seen = pairs.cosines[rows[:, None], rows]
        norms = np.array([np.linalg.norm(vector) for vector in kept])
        units = [v / n if n else v for v, n in zip(kept, norms, strict=True)]
        wanted = np.array(units) @ np.array(units).T
        np.fill_diagonal(wanted, NOTHING)
        np.testing.assert_allclose(seen, wanted, atol=1e-6)
        free = np.setdiff1d(np.arange(capacity), rows)
        assert (pairs.cosines[free] == NOTHING).all() and (pairs.cosines[:, free] == NOTHING).all()
    pairs.clear()
    assert len(pairs.rows) == 0 and (pairs.cosines == NOTHING).all()


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_names_no_victim_while_there_is_room(name):
    memory = Memory(name, 5, np.eye(5), **({"window_frames": 9} if name == "sliding_window" else {}))
    assert not memory.journal


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_begins_anew_with_a_new_prompt(name):
    """What was there before a new prompt leaves no trace in what is forgotten after it."""
    embeddings = np.random.default_rng(1).standard_normal((30, 4))
    fresh = Memory(name, 6, embeddings, window_frames=4)
    used = Memory(name, 6, embeddings[::-1], window_frames=4)
    used.set_prompt(0)
    if name == "random":
        return
    for index, embedding in enumerate(embeddings, start=1):
        used.make_room(index)
        used.retain(FrameMeta(index, 0, (index - 1) * MS, 0), embedding.astype(np.float32), index)
    assert used.retained == fresh.retained
