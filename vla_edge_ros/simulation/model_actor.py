"""The model in the loop: engine and memory as the node puts them together, one pass a tick."""

import numpy as np

from vla_edge_ros.actions.policy import Policy
from vla_edge_ros.actions.tokens import detokenise
from vla_edge_ros.control import settings
from vla_edge_ros.control.work import embedding_of, forget, recall
from vla_edge_ros.engine.factory import make_engine
from vla_edge_ros.engine.interface import EngineError, FrameWork, PromptWork, WorkResult, WorkStatus
from vla_edge_ros.memory.frame_memory import Evicted
from vla_edge_ros.parameters import validate_all
from vla_edge_ros.perception.frame_buffer import FrameBuffer
from vla_edge_ros.simulation.environment import HOLD, Observation, arm_policy

DEPLOYMENT = {"engine.model": "tiny-vla", "engine.backend": "numpy", "memory.stride_ticks": 28}
"""Parameters of the node in which `tiny-vla` is at home; the others have their defaults.

A cue of 30 ticks is retained at least once by a stride of 28, also where a tick has no pass; 1024 slots reach
back 25 s beside the longest prompt.
"""

_AT_ONCE = 1 << 62


class ModelActor:
    """Acts as the node does where every pass is in time: a tick fills a new prompt in and holds, the others
    decode an action each.

    parameters: of the edge node; what is left out has its default.
    seed: of the eviction policy `random`.
    Raises EngineError where the engine cannot be configured.
    """

    def __init__(self, parameters: dict[str, object], seed: int = 0) -> None:
        values = validate_all(parameters)
        self._policy: Policy = arm_policy()
        n_actions = len(self._policy.dimensions)
        self._frames = FrameBuffer.create()
        self._engine = make_engine(settings.engine_spec(values, n_actions), self._frames)
        self._info = self._engine.configure()
        self._signatures = settings.signature_log(values)
        size = settings.embedding_size(self._info, self._signatures)
        blocks = self._info.ring_blocks
        self.memory = settings.frame_memory(values, n_actions, size, seed, blocks)
        self._values = values
        self._work_id = 0
        self.begin()

    def begin(self) -> None:
        self.memory.set_prompt(0)
        self._prompter = settings.Prompter(self._values)

    def act(self, observation: Observation) -> np.ndarray:
        instruction = self._prompter.changed_to(observation.instruction)
        if instruction is not None and not self._has_prompt(instruction.tokens, observation.tick):
            return HOLD
        result = self.run_pass(observation)
        normalised = detokenise(result.tokens[0], self._info.vocabulary_size)
        return self._policy.statistics.unnormalise(normalised)

    def _has_prompt(self, tokens: np.ndarray, tick: int) -> bool:
        """Whether the cache held the prompt; where it did not, it is filled in now."""
        prompt = self.memory.instruct(tokens, tick)
        forget(self._engine, prompt.evicted)
        if not prompt.is_cached:
            self._run(PromptWork(self._next_id(), prompt.tokens, prompt.slots, prompt.context_slots))
            self.memory.prompt_written()
        return prompt.is_cached

    def run_pass(self, observation: Observation) -> WorkResult:
        """Have the engine see the observation's frame, and retain it if it is due."""
        tick = observation.tick
        if self._signatures is not None:
            self._signatures.put(self._frames.next_index, observation.frame)
        self._frames.write(observation.frame, 0, tick, tick)
        self.make_room(tick)
        recall(self._engine, self.memory, tick)
        memory = self.memory
        work = FrameWork(
            self._next_id(),
            memory.context_slots(),
            memory.frame_slots,
            memory.action_slots,
            prompt_tokens=memory.prompt_tokens,
        )
        result = self._run(work)
        memory.retain(result.frame, embedding_of(result, self._signatures), tick, result.signals)
        return result

    def make_room(self, tick: int) -> list[Evicted]:
        """Forget what has to go for the frame of the pass at `tick`; `run_pass` does so if it is left out."""
        evicted = self.memory.make_room(tick)
        forget(self._engine, evicted)
        return evicted

    def close(self) -> None:
        self._engine.close()
        self._frames.close()

    def _next_id(self) -> int:
        self._work_id += 1
        return self._work_id

    def _run(self, work: PromptWork | FrameWork) -> WorkResult:
        self._engine.submit(work)
        result = self._engine.wait(_AT_ONCE)
        if result.status is not WorkStatus.DONE:
            raise EngineError(f"the engine failed in an episode: {result.error or result.status.name}")
        return result
