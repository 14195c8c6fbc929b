import numpy as np
import pytest
import torch

from training.contexts import contexts_of, draw_memory
from training.data import Steps, UnfitData, load_data
from training.hints import N_HINTS
from training.labels import action_rows
from training.rollouts import (
    FIRST_SEED,
    LATENCIES,
    LINGER_S,
    Sequence,
    load,
    roll_out,
    save,
    shard_plan,
)
from vla_edge_ros.actions.tokens import detokenise
from vla_edge_ros.parameters import validate_all
from vla_edge_ros.simulation.commanded import CONTROL_HZ
from vla_edge_ros.simulation.environment import Environment, Observation, arm_policy
from vla_edge_ros.simulation.model_actor import DEPLOYMENT

PARAMETERS = validate_all(DEPLOYMENT)
VOCABULARY = 513


def sequence(n: int = 5, n_prompt: int = 7, **changes) -> Sequence:
    rng = np.random.default_rng(n)
    fields = {
        "task": "reach",
        "prompt": np.arange(n_prompt, dtype=np.int32),
        "ticks": np.arange(1, n + 1, dtype=np.int32),
        "frames": rng.integers(0, 256, (n, 64, 128, 3)).astype(np.uint8),
        "actions": rng.uniform(-0.02, 0.02, (n, 8)).astype(np.float32),
        "hints": rng.random((n, N_HINTS), np.float32),
    }
    return Sequence(**fields | changes)


def test_labels_decode_to_the_actions_within_half_a_bin():
    statistics = arm_policy().statistics
    rng = np.random.default_rng(0)
    actions = rng.uniform(statistics.low, statistics.high, (500, 8))
    tokens = VOCABULARY - 256 + action_rows(actions, statistics)
    decoded = statistics.unnormalise(detokenise(tokens, VOCABULARY))
    half_a_bin = (statistics.high - statistics.low) / 255 / 2
    assert (np.abs(decoded - actions) <= half_a_bin + 1e-12).all()


def test_rest_is_an_action_that_can_be_said_exactly_and_extremes_are_the_last_bins():
    statistics = arm_policy().statistics
    rest = np.array([0.0] * 7 + [1.0])
    decoded = detokenise(VOCABULARY - 256 + action_rows(rest, statistics), VOCABULARY)
    assert np.array_equal(decoded[:7], np.zeros(7))
    rows = action_rows(np.array([[1.0] * 8, [-1.0] * 8]), statistics)
    assert rows[0].tolist() == [0] * 8
    assert rows[1].tolist() == [255] * 8


def test_a_shard_comes_back_as_it_was(tmp_path):
    written = [sequence(5, 7), sequence(3, 9, task="track")]
    save(tmp_path / "a.npz", written)
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]
    for before, after in zip(written, load(tmp_path / "a.npz"), strict=True):
        assert after.task == before.task
        for name in ("prompt", "ticks", "frames", "actions", "hints"):
            assert np.array_equal(getattr(after, name), getattr(before, name))


def test_every_task_has_its_share_of_the_episodes_and_none_comes_twice():
    plan = shard_plan(400)
    episodes = {(task, seed) for task, first, n in plan for seed in range(first, first + n)}
    assert len(episodes) == sum(n for _, _, n in plan) == 400
    assert len({task for task, _ in episodes}) == 4


@pytest.mark.parametrize("task", ["remember", "switch"])
def test_a_roll_out_keeps_every_frame_that_the_deployed_memory_retains(has_renderer, task):
    environment = Environment(renders=False)
    sequences = roll_out(environment, task, 1_000_000)
    again = roll_out(environment, task, 1_000_000)
    environment.close()
    assert len(sequences) == (2 if task == "switch" else 1)
    for found, repeated in zip(sequences, again, strict=True):
        assert np.array_equal(found.ticks, repeated.ticks)
        assert np.array_equal(found.frames, repeated.frames)
        contexts = contexts_of(found.ticks, len(found.prompt), np.ones((len(found.ticks), 4)), PARAMETERS)
        retained = found.ticks[contexts.is_retained]
        assert retained[0] == found.ticks[0]
        # Where a pass is missed, a stride begins a tick later or two.
        stride = PARAMETERS["memory.stride_ticks"]
        assert all(stride <= gap <= stride + 3 for gap in np.diff(retained))
        assert found.ticks[-1] - retained[-1] < stride + 3
        assert np.isfinite(found.actions).all()


class _Unseen(Environment):
    """Takes no pictures, and counts the ticks after an episode's end."""

    n_after_end = 0

    def render(self) -> np.ndarray:
        return np.zeros((64, 128, 3), np.uint8)

    def step(self, action: np.ndarray) -> Observation:
        self.n_after_end += self.is_over
        return super().step(action)


def test_some_roll_outs_go_on_after_their_end_and_actions_take_one_tick_or_two():
    environment = _Unseen(renders=False)
    after_end, latencies = [], set()
    for seed in range(24):
        environment.n_after_end = 0
        roll_out(environment, "reach", FIRST_SEED + seed)
        after_end.append(environment.n_after_end)
        latencies.add(environment.latency_ticks)
    environment.close()
    assert latencies == set(LATENCIES)
    assert 6 <= np.count_nonzero(after_end) <= 18
    assert max(after_end) <= LINGER_S * CONTROL_HZ


def test_contexts_are_those_of_memory_and_do_not_depend_on_ticks_between_strides():
    rng = np.random.default_rng(0)
    ticks = np.arange(1, 400)
    embeddings = rng.standard_normal((len(ticks), 6)).astype(np.float32)
    small = PARAMETERS | {"memory.slots": 20 + 32 * 5 + 8, "memory.policy": "semantic"}
    full = contexts_of(ticks, 20, embeddings, small)
    kept = np.flatnonzero(full.is_retained | (rng.random(len(ticks)) < 0.1))
    some = contexts_of(ticks[kept], 20, embeddings[kept], small)
    assert np.array_equal(some.is_retained, full.is_retained[kept])
    for place, i in enumerate(kept):
        assert [kept[frame] for frame in some.seen[place]] == full.seen[i]
    assert max(map(len, full.seen)) == 4, "the frame at hand takes one of the five blocks"


def test_most_sequences_are_seen_by_the_deployed_memory_and_some_by_smaller_ones():
    rng = np.random.default_rng(0)
    drawn = [draw_memory(PARAMETERS, 75, rng) for _ in range(300)]
    changed = [memory for memory in drawn if memory != PARAMETERS]
    assert 0.2 < len(changed) / len(drawn) < 0.4
    assert {memory["memory.policy"] for memory in changed} == {"fifo", "semantic"}
    assert {(memory["memory.slots"] - 75 - 8) // 32 for memory in changed} == set(range(3, 15))


def test_a_batch_is_fixed_by_its_step(tmp_path):
    save(tmp_path / "a.npz", [sequence(40), sequence(20, 9)])
    frames, sequences = load_data(tmp_path, torch.device("cpu"))
    assert frames.shape == (60, 64, 128, 3)
    steps = Steps(sequences, torch.ones(60, 4), PARAMETERS, 4, 6, n_steps=10, seed=3)
    one, same, other = steps[2], steps[2], steps[3]
    assert torch.equal(one.labels, same.labels)
    assert torch.equal(one.queries.frames, same.queries.frames)
    assert not torch.equal(one.queries.frames, other.queries.frames)
    assert one.labels.shape == (24, 8)


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ({"actions": np.full((5, 8), np.nan, np.float32)}, "an action is NaN or infinite"),
        ({"actions": np.zeros((5, 7), np.float32)}, r"actions are \(5, 7\).*wanted \(5, 8\)"),
        ({"actions": np.zeros((4, 8), np.float32)}, r"actions are \(4, 8\)"),
    ],
)
def test_data_that_cannot_be_trained_on_is_refused_by_file(tmp_path, fault, line):
    save(tmp_path / "bad.npz", [sequence(5, **fault)])
    with pytest.raises(UnfitData, match=f"bad.npz: .*{line}"):
        load_data(tmp_path, torch.device("cpu"))


def test_a_folder_without_roll_outs_is_refused_with_the_command_that_makes_them(tmp_path):
    with pytest.raises(UnfitData, match=r"has no roll-outs.*python -m training\.rollouts"):
        load_data(tmp_path, torch.device("cpu"))


@pytest.mark.parametrize("content", [None, 3000, 0], ids=["without hints", "cut short", "empty"])
def test_a_shard_that_is_none_is_refused_by_file_with_what_to_do(tmp_path, content):
    path = tmp_path / "old.npz"
    save(path, [sequence(5)])
    if content is None:
        with np.load(path) as shard:
            arrays = {name: shard[name] for name in shard.files if name != "hints"}
        np.savez_compressed(path, **arrays)
    else:
        path.write_bytes(path.read_bytes()[:content])
    with pytest.raises(UnfitData, match=r"old.npz: is no shard .*; remove it and make it again"):
        load_data(tmp_path, torch.device("cpu"))


def test_hints_and_lengths_of_other_ticks_are_refused(tmp_path):
    save(tmp_path / "bad.npz", [sequence(5, hints=np.zeros((5, 3), np.float32))])
    with pytest.raises(UnfitData, match=r"bad.npz: hints are \(5, 3\)"):
        load_data(tmp_path, torch.device("cpu"))
    save(tmp_path / "bad.npz", [sequence(5)])
    with np.load(tmp_path / "bad.npz") as shard:
        arrays = dict(shard)
    np.savez_compressed(tmp_path / "bad.npz", **arrays | {"lengths": np.array([6])})
    with pytest.raises(UnfitData, match="6 ticks in all, and there are 5"):
        load_data(tmp_path, torch.device("cpu"))
