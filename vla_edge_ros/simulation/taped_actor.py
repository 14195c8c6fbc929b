"""The model in the loop, with what one seed's episodes have in common computed once."""

from dataclasses import replace

import numpy as np

from vla_edge_ros.simulation.environment import Environment, Observation
from vla_edge_ros.simulation.model_actor import ModelActor

Tape = dict[tuple[tuple[tuple[int, int], ...], int], np.ndarray]
"""The action by the evictions so far, (tick, tick of the frame that went) each, and the tick."""


class TapedActor(ModelActor):
    """Acts as `ModelActor` does, bit for bit, and runs no pass whose outcome is on the tape.

    An episode is a function of its seed and of what was forgotten when. Memories that have forgotten the same
    act the same, whatever policy and capacity they have; only a pass whose frame is retained is run again,
    for its keys and values. Pictures are taken for passes alone: the environment need not render.

    tape: of this seed, model and stride; it is added to.
    cue_gone_at: the tick at which the last frame that shows the cue was forgotten; None before that.
    """

    def __init__(self, parameters: dict[str, object], seed: int, environment: Environment, tape: Tape):
        super().__init__(parameters, seed)
        self._environment = environment
        self._tape = tape
        self._history: tuple[tuple[int, int], ...] = ()
        self._cues: set[int] = set()
        self.cue_gone_at: int | None = None

    @property
    def n_evictions(self) -> int:
        return len(self._history)

    def act(self, observation: Observation) -> np.ndarray:
        tick = observation.tick
        if self.memory.prompt_tokens:
            gone = [evicted.frame.capture_ns for evicted in self.make_room(tick)]
            self._history += tuple((tick, frame) for frame in gone)
            if self._cues and self._cues <= {*gone}:
                self.cue_gone_at = tick
            self._cues.difference_update(gone)
            key = (self._history, tick)
            if key in self._tape and not self._is_due(tick):
                return self._tape[key]
        frames = self.memory.frames
        action = super().act(replace(observation, frame=self._environment.render()))
        if frames and frames[-1].tick == tick and self._environment.task.has_cue:
            self._cues.add(tick)
            self.cue_gone_at = None
        self._tape[self._history, tick] = action
        return action

    def _is_due(self, tick: int) -> bool:
        frames = self.memory.frames
        return not frames or tick - frames[-1].tick >= self.memory.stride_ticks
