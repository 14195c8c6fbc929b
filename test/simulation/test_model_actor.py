from types import SimpleNamespace

import numpy as np
import pytest

from vla_edge_ros.control import settings
from vla_edge_ros.parameters import validate_all
from vla_edge_ros.simulation.environment import HOLD, Environment
from vla_edge_ros.simulation.model_actor import DEPLOYMENT, ModelActor


@pytest.fixture
def actor():
    made = ModelActor(DEPLOYMENT | {"memory.slots": 256, "memory.stride_ticks": 4, "memory.policy": "fifo"})
    yield made
    made.close()


@pytest.fixture
def moving(has_renderer):
    environment = Environment()
    yield environment
    environment.close()


def test_a_tick_that_fills_a_prompt_holds_and_the_next_one_acts(actor, moving):
    observation = moving.reset(0, "reach")
    assert np.array_equal(actor.act(observation), HOLD, equal_nan=True)
    observation = moving.step(HOLD)
    action = actor.act(observation)
    assert action.shape == (8,)
    assert np.isfinite(action).all()


def test_one_frame_a_stride_is_retained_and_old_ones_are_forgotten(actor, moving):
    observation = moving.reset(0, "track")
    for _ in range(30):
        actor.act(observation)
        observation = moving.step(HOLD)
    # The prompt leaves room for five blocks; tick 0 went to the prompt.
    assert [frame.tick for frame in actor.memory.frames] == [13, 17, 21, 25, 29]
    assert len(actor.memory.journal) == 3


def test_an_episode_begins_with_nothing_remembered_and_repeats_itself(actor, moving):
    def actions():
        observation = moving.reset(0, "track")
        actor.begin()
        made = []
        for _ in range(8):
            made.append(actor.act(observation))
            observation = moving.step(HOLD)
        return np.array(made)

    assert np.array_equal(actions(), actions(), equal_nan=True)


def test_a_new_instruction_empties_memory(actor, moving):
    observation = moving.reset(0, "switch")
    first = observation.instruction
    while observation.instruction == first:
        actor.act(observation)
        observation = moving.step(HOLD)
    assert actor.memory.frames
    assert np.array_equal(actor.act(observation), HOLD, equal_nan=True)
    assert not actor.memory.frames


def test_the_deployed_memory_retains_a_cue_and_holds_it_until_the_arm_has_gone_there():
    """The cue lasts 30 ticks, the wait up to 20 s, and an expert is there within 2 s of the lamp."""
    values = validate_all(DEPLOYMENT)
    memory = settings.frame_memory(values, 8, 4)
    instruction = "when the lamp turns green, go where the light was"
    memory.set_prompt(len(settings.Prompter(values).changed_to(instruction).tokens))
    stride = memory.stride_ticks
    assert stride + 1 <= 30 - 1, "a missed tick within the stride, a cue that begins between two ticks"
    n_beside_the_frame_at_hand = memory.capacity_frames - 1
    assert n_beside_the_frame_at_hand * stride >= 30 * (1 + 20 + 2)


def test_going_back_to_a_cached_instruction_acts_at_once():
    deployment = {"engine.model": "tiny", "memory.slots": 512, "memory.prompt_slots": 256}
    actor = ModelActor(DEPLOYMENT | deployment)
    frame = np.zeros((64, 128, 3), np.uint8)
    holds = []
    for tick, instruction in enumerate(["lift", "lift", "lower", "lift", "lower"]):
        action = actor.act(SimpleNamespace(frame=frame, instruction=instruction, tick=tick))
        holds.append(np.array_equal(action, HOLD, equal_nan=True))
    actor.close()
    assert holds == [True, False, True, False, False]


@pytest.mark.parametrize("policy", ["novelty", "value_norm"])
def test_policies_with_an_embedding_or_signals_of_their_own_forget_here_too(policy):
    deployment = {"engine.model": "tiny", "memory.slots": 256, "memory.stride_ticks": 2}
    actor = ModelActor(DEPLOYMENT | deployment | {"memory.policy": policy})
    random = np.random.default_rng(0)
    for tick in range(24):
        frame = random.integers(0, 256, (64, 128, 3)).astype(np.uint8)
        actor.act(SimpleNamespace(frame=frame, instruction="remember", tick=tick))
    actor.close()
    assert {line.policy for line in actor.memory.journal} == {policy}
    reasons = {line.reason.split()[0] for line in actor.memory.journal}
    assert reasons <= ({"cosine", "leaves"} if policy == "novelty" else {"value"})
