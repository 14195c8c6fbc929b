import hashlib
import shutil

import numpy as np
import pytest

from vla_edge_ros.engine.interface import EngineError
from vla_edge_ros.engine.presets import model_folder
from vla_edge_ros.evaluation.forgetting.footage import Footage, with_needles
from vla_edge_ros.evaluation.forgetting.trial import n_slots_for, run_trial, run_unevicted
from vla_edge_ros.evaluation.forgetting.trial_model import TrialModel, weights_digest
from vla_edge_ros.memory.policies import make_policy

N_FRAMES, CAPACITY = 9, 4
PROMPT = np.arange(5, dtype=np.int32)


@pytest.fixture(scope="module")
def footage():
    coarse = np.random.default_rng(0).integers(0, 256, (N_FRAMES, 8, 16, 3))
    frames = np.kron(coarse, np.ones((1, 8, 8, 1), np.int64)).astype(np.uint8)
    return Footage(frames, np.arange(N_FRAMES) / 10)


@pytest.fixture(scope="module")
def model():
    return TrialModel("tiny", 3, n_slots_for(N_FRAMES, len(PROMPT)) + 32, action_tokens=3)


@pytest.fixture(scope="module")
def unevicted(model, footage):
    return run_unevicted(model, footage, PROMPT)


def trial(model, footage, unevicted, policy, capacity=CAPACITY, oracle_every=1):
    return run_trial(model, footage, PROMPT, unevicted, policy, "pooled", capacity, oracle_every)


def test_a_memory_that_holds_all_is_the_one_that_forgets_nothing(model, footage, unevicted):
    done = trial(model, footage, unevicted, make_policy("fifo"), capacity=N_FRAMES)
    assert done.evicted == [] and done.losses == [] and done.kl_nats == []
    assert done.retained[-1] == list(range(N_FRAMES))


def test_the_account_of_a_trial_is_that_of_fifo(model, footage, unevicted):
    done = trial(model, footage, unevicted, make_policy("fifo"))
    assert done.evicted == [(4, 0), (5, 1), (6, 2), (7, 3), (8, 4)]
    assert done.retained[3] == [0, 1, 2, 3] and done.retained[-1] == [5, 6, 7, 8]
    assert done.chosen == [0] * 5 and [len(losses) for losses in done.losses] == [3] * 5
    assert len(done.kl_nats) == len(done.action_l1) == len(done.eviction_us) == 5
    assert min(done.kl_nats) > 0


def test_the_oracle_looks_at_every_so_many_evictions(model, footage, unevicted):
    done = trial(model, footage, unevicted, make_policy("random", seed=1), oracle_every=2)
    assert len(done.losses) == len(done.chosen) == 3


def test_leaving_a_frame_out_is_a_pass_without_it(model, footage, unevicted):
    """The first losses, from a memory that is built with one frame less and holds the same states."""
    done = trial(model, footage, unevicted, make_policy("fifo"))
    slots = np.arange(model.n_slots, dtype=np.int32)
    run_unevicted(model, Footage(footage.frames[:CAPACITY], footage.times_s[:CAPACITY]), PROMPT)
    actions, block = slots[-3:], slots[-40:-8]
    context = slots[: 5 + 32 * CAPACITY]
    whole = model.run(footage.frames[CAPACITY], context, block, actions)
    kept = [place for place in range(len(context)) if not 5 + 32 <= place < 5 + 64]
    part = model.run(footage.frames[CAPACITY], context[kept], block, actions, whole.tokens)
    p, q = whole.log_probabilities, part.log_probabilities
    assert done.losses[0][1] == pytest.approx((np.exp(p) * (p - q)).sum(1).mean(), rel=1e-3)


def test_given_tokens_are_decoded_as_one_by_one(model, footage):
    slots = np.arange(model.n_slots, dtype=np.int32)
    own = model.run(footage.frames[0], slots[:0], slots[:32], slots[32:35])
    given = model.run(footage.frames[0], slots[:0], slots[:32], slots[32:35], own.tokens)
    np.testing.assert_allclose(given.log_probabilities, own.log_probabilities, atol=1e-4)


def test_each_needle_is_in_one_frame_alone_and_drawn_by_the_seed(footage):
    shown, places = with_needles(footage.frames, last=6, seed=5)
    differing = [i for i in range(N_FRAMES) if (shown[i] != footage.frames[i]).any()]
    assert differing == places and len(places) == 3 and min(places) >= 1 and max(places) < 6
    again, others = with_needles(footage.frames, 6, 5)[0], with_needles(footage.frames, 6, 6)[1]
    assert (again == shown).all() and others != places


@pytest.mark.parametrize("last", [0, 1])
def test_there_is_no_needle_where_there_is_no_frame_for_it(footage, last):
    assert with_needles(footage.frames, last, 0)[1] == []


def test_footage_is_taken_at_an_even_distance_from_a_seeded_first(footage):
    taken = footage.every(4, seed=1)
    steps = [int(np.flatnonzero((footage.frames == frame).all((1, 2, 3)))[0]) for frame in taken.frames]
    assert np.diff(steps).tolist() == [2, 2, 2] and steps[0] in (0, 1)
    assert taken.times_s[0] == 0.0
    assert len(footage.every(100, seed=1).frames) == N_FRAMES


def test_without_positions_the_order_of_frames_does_not_matter(footage):
    model = TrialModel("tiny", 3, 200, action_tokens=3, has_positions=False)
    slots = np.arange(200, dtype=np.int32)
    for place in range(2):
        model.run(footage.frames[place], slots[:0], slots[32 * place : 32 * place + 32], slots[-3:])
    one_way, other_way = (
        model.run(footage.frames[2], np.concatenate(blocks), slots[64:96], slots[-3:]).log_probabilities
        for blocks in ((slots[:32], slots[32:64]), (slots[32:64], slots[:32]))
    )
    np.testing.assert_allclose(one_way, other_way, atol=1e-4)


def test_weights_are_told_by_their_digest_wherever_they_lie(tmp_path):
    trained = model_folder("tiny-vla")
    copy = shutil.copytree(trained, tmp_path / "copy")
    own = hashlib.sha256((trained / "model.safetensors").read_bytes()).hexdigest()[:12]
    assert weights_digest("tiny-vla") == weights_digest(str(copy)) == own
    with (copy / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x01")
    assert weights_digest(str(copy)) != own
    assert weights_digest("tiny") == "seeded"
    with pytest.raises(EngineError, match="neither a preset"):
        weights_digest(str(tmp_path / "nothing"))
