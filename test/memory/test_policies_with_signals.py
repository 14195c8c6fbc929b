"""The policies that go by what an engine tells of its attention and its values, by hand."""

import numpy as np
import pytest

from vla_edge_ros.memory.by_signal import WINDOW_PASSES
from vla_edge_ros.memory.frame_memory import FrameMemory
from vla_edge_ros.memory.policies import NEED_SIGNALS, make_policy
from vla_edge_ros.memory.signals import PassSignals
from vla_edge_ros.perception.frame import FrameMeta


def remember(policy, capacity, told) -> FrameMemory:
    """A memory after one pass for each of `told`: (attention by frames, by actions, value norm) or None.

    Attention is by index of the frame; what is not named got none.
    """
    memory = FrameMemory(capacity * 32 + 8, 7, make_policy(policy))
    for index, said in enumerate(told, start=1):
        memory.make_room(index)
        held = [frame.meta.index for frame in memory.frames]
        signals = None
        if said is not None:
            by_frame, by_action, norm = said
            frame_attention, action_attention = (
                np.array([by.get(i, 0.0) for i in held], np.float32) for by in (by_frame, by_action)
            )
            signals = PassSignals(frame_attention, action_attention, norm)
        memory.retain(FrameMeta(index, 0, index, 0), np.ones(2, np.float32), index, signals)
    return memory


def retained(memory) -> list[int]:
    return [frame.meta.index for frame in memory.frames]


def test_heavy_hitter_forgets_what_was_attended_to_least_since_it_came():
    # Frame 1 got 3 + 2, frame 2 got 4; 3 and 4 are the newer half and are spared.
    told = [({}, {}, 1), ({1: 3.0}, {}, 1), ({1: 1.0, 2: 3.0}, {1: 1.0, 2: 1.0}, 1), ({3: 0.1}, {}, 1)]
    memory = remember("heavy_hitter", 4, [*told, ({}, {}, 1)])
    assert retained(memory) == [1, 3, 4, 5]
    assert memory.journal[-1].reason == "attention so far 4, the least"


def test_instruction_attention_forgets_what_the_last_actions_did_not_look_at():
    # Frame 1 was looked at once, long ago, and all others in every pass.
    told = [({}, {}, 1), ({}, {1: 1.0}, 1)] + [({}, dict.fromkeys(range(2, 20), 0.6), 1)] * 8
    memory = remember("instruction_attention", 4, told)
    assert [line.frame.index for line in memory.journal][:1] == [2], "1.0 has decayed to 0.77 by then"
    assert 1 not in retained(memory)


def test_instruction_attention_begins_with_what_it_first_sees_and_moves_by_an_eighth():
    memory = remember("instruction_attention", 4, [({}, {}, 1), ({}, {1: 0.8}, 1), ({}, {2: 0.5}, 1)])
    scores = memory.policy._scores.values
    assert scores[:2] == pytest.approx([0.8 * (1 - 1 / WINDOW_PASSES), 0.5])
    assert np.isinf(scores[2]), "nobody has had a chance to look at the newest frame"


def test_instruction_attention_does_not_count_what_the_frames_looked_at():
    told = [({}, {}, 1), ({1: 9.0}, {}, 1), ({1: 9.0}, {2: 0.5}, 1), ({}, {3: 1.0}, 1), ({}, {}, 1)]
    assert 1 not in retained(remember("instruction_attention", 4, told))


def test_value_norm_forgets_the_frame_of_the_shortest_values_but_the_newest():
    memory = remember("value_norm", 4, [({}, {}, norm) for norm in (3.0, 1.5, 2.0, 0.5, 4.0)])
    assert retained(memory) == [1, 3, 4, 5]
    assert memory.journal[-1].reason == "value norm 1.5, the least"


@pytest.mark.parametrize("name", NEED_SIGNALS)
def test_without_signals_the_oldest_goes(name):
    assert retained(remember(name, 4, [None] * 9)) == [6, 7, 8, 9]
