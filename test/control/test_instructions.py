"""What becomes of prompts and frames when the instruction changes."""

import numpy as np
import pytest
from control_rig import INFO, Rig

from vla_edge_ros.control.decision import Decision
from vla_edge_ros.control.events import ClockJump, Enable, EngineReplaced, Instruction, ResetMemory
from vla_edge_ros.engine.interface import PromptWork

LIFT = Instruction("lift", np.arange(100, 150, dtype=np.int32))
LOWER = Instruction("lower", np.concatenate([LIFT.tokens[:32], np.arange(10, dtype=np.int32)]))


def prompts(rig) -> list[PromptWork]:
    return [work for work in rig.engine.submitted if isinstance(work, PromptWork)]


def instructed(rig, instruction: Instruction, n_ticks: int = 4):
    rig.controller.post(instruction)
    return rig.run(rig._tick + n_ticks)


def test_going_back_to_an_earlier_instruction_costs_no_tick():
    rig = Rig(prompt_slots=200)
    rig.run(5)
    assert instructed(rig, LIFT)[0].decision is Decision.HOLD_BUSY
    assert instructed(rig, LOWER)[0].decision is Decision.HOLD_BUSY
    n_prompts = len(prompts(rig))
    records = instructed(rig, LIFT)
    assert [record.decision for record in records] == [Decision.FRESH] * 4
    assert [record.retained_frames for record in records] == [1, 2, 3, 4]
    assert len(prompts(rig)) == n_prompts


def test_only_what_differs_from_an_earlier_prompt_is_filled_in_behind_what_does_not():
    rig = Rig(prompt_slots=200)
    instructed(rig, LIFT)
    instructed(rig, LOWER)
    first, second = prompts(rig)[-2:]
    assert second.tokens.tolist() == LOWER.tokens[32:].tolist()
    assert second.context_slots.tolist() == first.slots[:32].tolist()
    context = rig.engine.submitted[-1].context_slots
    assert context[:42].tolist() == second.context_slots.tolist() + second.slots.tolist()


def test_by_default_every_prompt_is_filled_in_whole():
    rig = Rig()
    for instruction in (LIFT, LOWER, LIFT):
        instructed(rig, instruction)
        assert prompts(rig)[-1].tokens.tolist() == instruction.tokens.tolist()
        assert prompts(rig)[-1].context_slots.size == 0


@pytest.mark.parametrize("event", [ResetMemory(), ClockJump(-5)])
def test_a_reset_has_the_prompt_filled_in_again(event):
    rig = Rig(prompt_slots=200, keeps_frames=True)
    instructed(rig, LIFT)
    n_prompts = len(prompts(rig))
    rig.controller.post(event)
    [record, *_] = rig.run(rig._tick + 3)
    assert record.retained_frames == 0
    assert [work.tokens.size for work in prompts(rig)[n_prompts:]] == [50]


def test_a_replaced_engine_has_no_prompt_whatever_was_said_meanwhile():
    rig = Rig(prompt_slots=200, keeps_frames=True)
    instructed(rig, LIFT)
    instructed(rig, LOWER)
    rig.engine.script_next("fail")
    rig.run(rig._tick + 2)
    assert instructed(rig, LIFT)[-1].decision is Decision.FAULT
    rig.engine.is_dead = False
    n_prompts = len(prompts(rig))
    rig.controller.post(EngineReplaced(INFO))
    rig.observe_joints()
    rig.controller.post(Enable(True))
    rig.run(rig._tick + 3)
    assert [work.tokens.tolist() for work in prompts(rig)[n_prompts:]] == [LIFT.tokens.tolist()]
    assert rig.controller.memory.prompt_tokens == 50


def test_an_instruction_that_gave_way_before_it_was_filled_in_is_filled_in_when_it_returns():
    rig = Rig(prompt_slots=200)
    instructed(rig, LIFT)
    rig.engine.script_next(50.0)
    rig.run(rig._tick + 1)
    instructed(rig, LOWER, 1)
    assert prompts(rig)[-1].tokens.tolist() == LIFT.tokens.tolist(), "the engine is busy"
    instructed(rig, LIFT)
    n_prompts = len(prompts(rig))
    instructed(rig, LOWER)
    assert [work.tokens.size for work in prompts(rig)[n_prompts:]] == [10]


def test_frames_that_are_kept_are_the_context_of_the_next_pass():
    rig = Rig(keeps_frames=True)
    rig.run(6)
    before = [frame.meta.index for frame in rig.controller.memory.frames]
    records = instructed(rig, LIFT)
    assert records[0].retained_frames == len(before) > 0
    assert [frame.meta.index for frame in rig.controller.memory.frames][: len(before)] == before
    assert rig.engine.submitted[-1].prompt_tokens == 50


def test_frames_that_a_longer_prompt_leaves_no_room_for_are_told_to_the_engine_and_journalled():
    rig = Rig(n_slots=10 + 8 + 4 * 32, keeps_frames=True)
    rig.run(10)
    n_evicted = sum(map(len, rig.engine.evicted))
    [record] = instructed(rig, LIFT, 1)
    assert len(record.journal) == 2, "40 more tokens take two blocks"
    assert sum(map(len, rig.engine.evicted)) == n_evicted + 2 * 32
    assert 32 * rig.controller.totals.evictions == sum(map(len, rig.engine.evicted))
