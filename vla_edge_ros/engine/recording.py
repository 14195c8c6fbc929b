"""An engine with a memory and a camera of its own, whose layers are kept: what the gate runs on."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vla_edge_ros.engine.interface import (
    MAX_ACTION_TOKENS,
    EngineError,
    EngineSpec,
    FrameWork,
    PromptWork,
    WorkResult,
    WorkStatus,
)
from vla_edge_ros.engine.numpy_decoder import NumpyDecoder
from vla_edge_ros.engine.numpy_engine import NumpyEngine
from vla_edge_ros.engine.vision import FRAME_HEIGHT, FRAME_WIDTH
from vla_edge_ros.memory.frame_memory import FrameMemory
from vla_edge_ros.memory.policies import make_policy
from vla_edge_ros.perception.frame import FrameMeta

Fault = Callable[[NumpyDecoder, FrameWork], None]
"""Breaks a decoder, or the work that it is about to get."""


class NoiseFrames:
    """A source of frames of smooth seeded noise; every read gives the next one and remembers it."""

    def __init__(self, seed: int):
        self._random = np.random.default_rng(seed)
        self.given: list[np.ndarray] = []

    def read_into(self, out: np.ndarray) -> FrameMeta:
        coarse = self._random.integers(0, 256, (FRAME_HEIGHT // 8, FRAME_WIDTH // 8, 3))
        out[:] = np.kron(coarse, np.ones((8, 8, 1), np.int64))
        self.given.append(out.copy())
        return _meta(len(self.given))


class GivenFrames:
    """A source of the given frames, one after another."""

    def __init__(self, frames: list[np.ndarray]):
        self.given = frames
        self._n_read = 0

    def read_into(self, out: np.ndarray) -> FrameMeta:
        out[:] = self.given[self._n_read]
        self._n_read += 1
        return _meta(self._n_read)


def _meta(index: int) -> FrameMeta:
    return FrameMeta(index, stamp_ns=index, capture_ns=index, receipt_ns=index)


@dataclass(frozen=True, slots=True)
class RecordedPass:
    """evicted: indices of the frames forgotten before it. frame: the index of its own.

    layers: states (32 + A, hidden) after every layer. tokens, top_probability: (A,).
    """

    evicted: list[int]
    frame: int
    layers: list[np.ndarray]
    tokens: np.ndarray
    top_probability: np.ndarray


class RecordedEngine:
    """An engine with a memory of its own, in shuffled slots, that keeps the states after every layer."""

    def __init__(
        self, model: str, seed: int, n_slots: int, policy: str, frames: list[np.ndarray] | None = None
    ):
        """frames: what the camera gives, (64, 128, 3) uint8 each; noise where it is None."""
        self.frames = NoiseFrames(seed) if frames is None else GivenFrames(frames)
        spec = EngineSpec(model=model, seed=seed, n_slots=n_slots, action_tokens=MAX_ACTION_TOKENS)
        self._engine = NumpyEngine(spec, self.frames)
        self._engine.configure()
        self._engine.decoder.after_layer = lambda layer, states: self._states[layer].append(states.copy())
        self._states = [[] for _ in range(self._engine.decoder.config.num_hidden_layers)]
        self._memory = FrameMemory(n_slots, MAX_ACTION_TOKENS, make_policy(policy))
        self._shuffled = np.random.default_rng(seed).permutation(n_slots).astype(np.int32)
        self._tick = 0

    def fill_prompt(self, tokens: np.ndarray) -> list[np.ndarray]:
        """States (P, hidden) after every layer."""
        slots = self._shuffled[self._memory.set_prompt(len(tokens))]
        self._run(PromptWork(0, tokens, slots))
        return self._take_states()

    def run_pass(self, plant: Fault | None = None) -> RecordedPass:
        """Run a pass on the next frame, with the fault to `plant` in it, and retain the frame."""
        self._tick += 1
        evicted = self._memory.make_room(self._tick)
        for line in evicted:
            self._engine.evict(self._shuffled[line.slots])
        work = FrameWork(
            self._tick,
            self._shuffled[self._memory.context_slots()],
            self._shuffled[self._memory.frame_slots],
            self._shuffled[self._memory.action_slots],
        )
        if plant is not None:
            plant(self._engine.decoder, work)
        result = self._run(work)
        self._memory.retain(result.frame, result.embedding, self._tick)
        return RecordedPass(
            [line.frame.index for line in evicted],
            result.frame.index,
            self._take_states(),
            result.tokens[0],
            result.top_probability[0],
        )

    def retained(self) -> list[int]:
        """Indices of the frames in memory, oldest first."""
        return [frame.meta.index for frame in self._memory.frames]

    def cached_keys(self) -> np.ndarray:
        """(layers, n, KV size): the keys of the prompt and of every retained frame, by rank."""
        return self._engine.decoder.cached_keys[:, self._shuffled[self._memory.context_slots()]]

    def _run(self, work: PromptWork | FrameWork) -> WorkResult:
        self._engine.submit(work)
        result = self._engine.wait(0)
        if result.status is not WorkStatus.DONE:
            raise EngineError(f"a pass of the gate failed: {result.error}")
        return result

    def _take_states(self) -> list[np.ndarray]:
        taken = [np.concatenate(layer) for layer in self._states]
        for layer in self._states:
            layer.clear()
        return taken
