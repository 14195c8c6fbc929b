"""Prompts put together from the cache, on the NumPy engine: the bits of prompts that are filled in whole."""

import numpy as np
import pytest

from vla_edge_ros.engine.interface import EngineSpec, FrameWork, PromptWork, WorkResult, WorkStatus
from vla_edge_ros.engine.numpy_engine import NumpyEngine
from vla_edge_ros.engine.recording import NoiseFrames
from vla_edge_ros.memory.frame_memory import FrameMemory
from vla_edge_ros.memory.policies import make_policy

N_SLOTS, A = 512, 7
SYSTEM = "You control a robot arm. Do what the instruction says."
PROMPTS = [
    np.frombuffer((SYSTEM + text).encode(), np.uint8).astype(np.int32)
    for text in (
        "wave",
        "put the red cup on the blue plate",
        "put the red cup on the shelf",
        "",
        "go home now",
    )
]


class Robot:
    """An engine and a memory whose slots are permuted; `instruct` tells how many tokens were written."""

    def __init__(self, policy="fifo", gives_signals=False, **memory):
        spec = EngineSpec(n_slots=N_SLOTS, action_tokens=A, gives_signals=gives_signals)
        self.engine = NumpyEngine(spec, NoiseFrames(0))
        self.engine.configure()
        self.memory = FrameMemory(N_SLOTS, A, make_policy(policy), **memory)
        self.slots = np.random.default_rng(1).permutation(N_SLOTS).astype(np.int32)
        self.tick = 0

    def instruct(self, tokens: np.ndarray) -> int:
        new = self.memory.instruct(tokens, self.tick)
        self.forget(new.evicted)
        if not new.is_cached:
            work = PromptWork(0, new.tokens, self.slots[new.slots], self.slots[new.context_slots])
            assert self.run(work).status is WorkStatus.DONE
            self.memory.prompt_written()
        return len(new.tokens)

    def look(self) -> WorkResult:
        self.tick += 1
        memory = self.memory
        self.forget(memory.make_room(self.tick))
        lists = (memory.context_slots(), memory.frame_slots, memory.action_slots)
        work = FrameWork(0, *(self.slots[slots] for slots in lists), prompt_tokens=memory.prompt_tokens)
        result = self.run(work)
        assert result.status is WorkStatus.DONE
        memory.retain(result.frame, result.embedding, self.tick, result.signals)
        return result

    def forget(self, evicted) -> None:
        for line in evicted:
            self.engine.evict(self.slots[line.slots])

    def run(self, work) -> WorkResult:
        self.engine.submit(work)
        return self.engine.wait(0)

    def cached(self, n: int | None = None) -> bytes:
        """Keys and values of the first `n` ranks in every layer."""
        slots = self.slots[self.memory.context_slots()[:n]]
        decoder = self.engine.decoder
        return decoder.cached_keys[:, slots].tobytes() + decoder.cached_values[:, slots].tobytes()


def outputs(result: WorkResult) -> tuple:
    return tuple(part.tobytes() for part in (result.tokens, result.top_probability, result.entropy))


@pytest.mark.parametrize("prompt_slots", [100, 200, 300])
def test_a_prompt_from_the_cache_has_the_bits_of_one_filled_in_whole(prompt_slots):
    reusing, writing = Robot(prompt_slots=prompt_slots), Robot()
    written = whole = 0
    for number in np.random.default_rng(prompt_slots).integers(0, len(PROMPTS), 40).tolist():
        written += reusing.instruct(PROMPTS[number])
        whole += writing.instruct(PROMPTS[number])
        n = len(PROMPTS[number])
        assert reusing.cached(n) == writing.cached(n)
        for _ in range(2):
            assert outputs(reusing.look()) == outputs(writing.look())
    assert written < (0.75 if prompt_slots == 100 else 0.5) * whole


def test_going_back_costs_nothing_and_a_new_instruction_not_the_first_piece_of_the_system_prompt():
    robot = Robot(prompt_slots=200)
    assert [robot.instruct(PROMPTS[n]) for n in (1, 2, 1, 2, 0)] == [
        len(PROMPTS[1]),
        len(PROMPTS[2]) - 64,
        0,
        0,
        len(PROMPTS[0]) - 32,
    ]


def test_frames_that_are_kept_keep_their_bits_and_only_the_first_layer_is_as_if_seen_anew():
    robot, anew = Robot(keeps_frames=True), Robot()
    robot.instruct(PROMPTS[1])
    for _ in range(5):
        robot.look()
    blocks = robot.slots[robot.memory.context_slots()[len(PROMPTS[1]) :]]
    before = robot.engine.decoder.cached_keys[:, blocks].copy()

    robot.instruct(PROMPTS[0])

    assert robot.cached(len(PROMPTS[0])) == _whole(PROMPTS[0])
    held = robot.slots[robot.memory.context_slots()[len(PROMPTS[0]) :]]
    assert robot.engine.decoder.cached_keys[:, held].tobytes() == before.tobytes()
    anew.instruct(PROMPTS[0])
    for _ in range(5):
        anew.look()
    fresh = anew.engine.decoder.cached_keys[:, anew.slots[anew.memory.context_slots()[len(PROMPTS[0]) :]]]
    assert before[0].tobytes() == fresh[0].tobytes()
    assert np.abs(before[1] - fresh[1]).max() > 1e-3
    robot.look()


def _whole(prompt: np.ndarray) -> bytes:
    robot = Robot()
    robot.instruct(prompt)
    return robot.cached(len(prompt))


def test_another_instruction_is_filled_in_after_passes_whose_attention_was_counted():
    robot = Robot("heavy_hitter", gives_signals=True, prompt_slots=200)
    for number in (1, 0, 1):
        robot.instruct(PROMPTS[number])
        for n_before in range(3):
            assert robot.look().signals.frame_attention.shape == (n_before,)


def test_a_prompt_longer_than_the_cache_is_refused():
    robot = Robot()
    slots = np.arange(N_SLOTS, dtype=np.int32)
    with pytest.raises(ValueError, match="513 tokens does not fit in 512 slots"):
        robot.engine.submit(PromptWork(0, slots[:1], slots[:1], slots))
    with pytest.raises(ValueError, match="context slot"):
        robot.engine.submit(PromptWork(0, slots[:1], slots[:1], np.array([N_SLOTS], np.int32)))


def test_a_prompt_cannot_be_longer_than_the_context():
    robot = Robot()
    robot.instruct(PROMPTS[0])
    robot.memory.make_room(1)
    memory = robot.memory
    lists = (memory.context_slots(), memory.frame_slots, memory.action_slots)
    with pytest.raises(ValueError, match="60 prompt tokens stand in 58 context slots"):
        robot.engine.submit(FrameWork(0, *lists, prompt_tokens=60))
