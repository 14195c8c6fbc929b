"""Policies that go by what the engine tells of its attention and its values (`PassSignals`).

Where an engine does not tell, all frames are equal to them and the oldest goes; the engines that do not are
refused for these policies when they are configured.
"""

from typing import ClassVar

import numpy as np

from vla_edge_ros.memory.columns import Column
from vla_edge_ros.memory.eviction_policy import Victim, WhenFull, guarded_frames
from vla_edge_ros.memory.signals import PassSignals
from vla_edge_ros.perception.frame import FrameMeta

WINDOW_PASSES = 8
"""Passes over which `instruction_attention` averages: its observation window."""


class _Scored(WhenFull):
    """A score for each retained frame: but for the newest few the least goes, of equal ones the oldest.

    Subclasses say what the score is (`_observe`), what it is called and how many frames are spared.
    """

    score_name: ClassVar[str]

    def prepare(self, capacity: int, embedding_size: int) -> None:
        self._scores = Column(capacity, np.float64)

    def observe(self, meta: FrameMeta, embedding: np.ndarray, signals: PassSignals | None) -> None:
        self._scores.append(self._observe(self._scores.values, signals))

    def forget(self, place: int) -> None:
        self._scores.remove(place)

    def clear(self) -> None:
        self._scores.clear()

    def _choose(self, n_frames: int) -> Victim:
        scores = self._scores.values[: n_frames - self._spared(n_frames)]
        place = int(scores.argmin())
        return Victim(place, f"{self.score_name} {scores[place]:.4g}, the least")

    def _observe(self, before: np.ndarray, signals: PassSignals | None) -> float:
        """Bring the scores `before` (n,) up to date in place; returns that of the new frame."""
        raise NotImplementedError

    def _spared(self, n_frames: int) -> int:
        return guarded_frames(n_frames)


class HeavyHitter(_Scored):
    """The frame goes that has been paid the least attention since it came, by all queries of all passes.

    H2O (Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models",
    NeurIPS 2023, arXiv:2306.14048) for whole frames. As there, half of the memory is for the newest ones.
    """

    name: ClassVar[str] = "heavy_hitter"
    score_name = "attention so far"

    def _observe(self, before: np.ndarray, signals: PassSignals | None) -> float:
        if signals is not None:
            before += signals.frame_attention
            before += signals.action_attention
        return 0.0

    def _spared(self, n_frames: int) -> int:
        return max(1, n_frames // 2)


class InstructionAttention(_Scored):
    """The frame goes that the action tokens have attended to least in the last passes, about eight of them.

    SnapKV's idea (Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation", NeurIPS 2024,
    arXiv:2404.14469): what a window of queries at the end attends to is what will be asked for. Here these
    are the action tokens, which have read the instruction; its own tokens stand before every frame and see
    none.
    """

    name: ClassVar[str] = "instruction_attention"
    score_name = "attention lately"

    def _observe(self, before: np.ndarray, signals: PassSignals | None) -> float:
        if signals is not None:
            is_first = np.isinf(before)
            before[is_first] = signals.action_attention[is_first]
            before += (signals.action_attention - before) / WINDOW_PASSES
        # Nobody has had a chance to look at the new frame: until then it is the most attended to.
        return np.inf if signals is not None else 0.0


class ValueNorm(_Scored):
    """The frame goes whose values are the shortest, and so add least to what attends to it.

    The VaN score of InfiniPot-V (Kim et al., NeurIPS 2025, arXiv:2506.15745) for whole frames.
    """

    name: ClassVar[str] = "value_norm"
    score_name = "value norm"

    def _observe(self, before: np.ndarray, signals: PassSignals | None) -> float:
        return signals.value_norm if signals is not None else 0.0
