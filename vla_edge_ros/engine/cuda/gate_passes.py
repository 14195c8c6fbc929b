"""What the gate gives the engine and its references: a prompt, and passes through a memory that fills.

The engine computes pass by pass, and the slots of a pass's action tokens are free again when it ends. Without
an eviction a token's rank never changes, so all passes are one sequence too, in which a token sees what was
in the memory in its own pass: `positions` and `is_seen` say it to a decoder without a memory.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from vla_edge_ros.engine.cuda.reference import Reference
from vla_edge_ros.engine.interface import FRAME_TOKENS, MAX_ACTION_TOKENS
from vla_edge_ros.engine.model_config import ModelConfig
from vla_edge_ros.engine.vision import FRAME_HEIGHT, FRAME_WIDTH

PROMPT_TOKENS = 24
"""With it pass 2 ends at rank 128, and at 4096 slots the last pass at rank 4096, to the token."""

PASS_TOKENS = FRAME_TOKENS + MAX_ACTION_TOKENS

SHORT_PASS = 2


@dataclass(frozen=True, slots=True)
class EnginePass:
    """What an engine computed in a pass.

    embedding: (hidden,) float32. actions: (8,), 0..255. logits: (8, 256) float32.
    trace: (32 + 8, layers, size) float32 as `Parts` lays it out, where the build writes one.
    """

    embedding: np.ndarray
    actions: np.ndarray
    logits: np.ndarray
    trace: torch.Tensor | None


class Probe(Protocol):
    """An engine whose every operator can be looked at, and broken; see gate_probe.py."""

    def fill_prompt(self, tokens: np.ndarray, slots: np.ndarray) -> torch.Tensor:
        """Fill the prompt in; the stream (P, layers, hidden) after every layer."""

    def run(
        self, context: np.ndarray, slots: np.ndarray, frame: np.ndarray, start: int, is_traced: bool = True
    ) -> EnginePass:
        """A pass after `context` slots, its block to `slots`; decoding begins with token `start`."""

    def cached(self, slots: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys before RoPE and values of `slots`: (layers, n, KV heads, head) each."""

    def set_values(self, slots: np.ndarray, values: torch.Tensor) -> None:
        """Overwrite what the cache holds: (layers, n, KV heads, head)."""

    def poison_workspaces(self) -> None:
        """Fill with NaN what a pass keeps for itself, weights and cache excepted."""

    def set_rope(self, table: np.ndarray) -> None:
        """(n_slots, head / 2, 2) float32."""

    def set_biases(self, layer: int, biases: np.ndarray) -> None:
        """Of queries, keys and values: (QKV rows,) float32."""

    def set_qkv(self, layer: int, matrix: np.ndarray) -> None:
        """(QKV rows, hidden) float32."""

    def lose_split(self, is_lost: bool) -> None:
        """Leave the first split of 64 ranks out of attention's combination."""


@dataclass(frozen=True, slots=True)
class Passes:
    """prompt: (P,) ids. frames: (n, 64, 128, 3) uint8. starts: (n,) ids of each pass's first decoded input.

    slots: a permutation of all slots. A seeded model's chain of tokens hardly depends on its frames, so that
    passes from the same action-start token would test eight positions again and again; each but the first
    begins with a token of its own.
    """

    n_slots: int
    prompt: np.ndarray
    frames: np.ndarray
    starts: np.ndarray
    slots: np.ndarray

    @classmethod
    def draw(cls, config: ModelConfig, n_slots: int, n_passes: int, seed: int) -> "Passes":
        random = np.random.default_rng(seed)
        starts = random.integers(0, config.action_start, n_passes)
        starts[0] = config.action_start
        coarse = random.integers(0, 256, (n_passes, FRAME_HEIGHT // 8, FRAME_WIDTH // 8, 3), dtype=np.uint8)
        return cls(
            n_slots,
            random.integers(0, config.action_start, PROMPT_TOKENS).astype(np.int32),
            coarse.repeat(8, axis=1).repeat(8, axis=2),
            starts,
            random.permutation(n_slots).astype(np.int32),
        )

    @property
    def n_frames(self) -> int:
        """Frames that the memory holds."""
        return (self.n_slots - PROMPT_TOKENS - MAX_ACTION_TOKENS) // FRAME_TOKENS

    def n_kept(self, index: int) -> int:
        """Frames in memory before pass `index`; once it is full, each takes the block of the one before."""
        return min(index, self.n_frames - 1)

    @property
    def prompt_slots(self) -> np.ndarray:
        return self.slots[:PROMPT_TOKENS]

    def block_slots(self, block: int) -> np.ndarray:
        """(32,) slots of a frame."""
        first = PROMPT_TOKENS + block * FRAME_TOKENS
        return self.slots[first : first + FRAME_TOKENS]

    def context(self, index: int) -> np.ndarray:
        """Slots, in rank order, that pass `index` sees."""
        return self.slots[: PROMPT_TOKENS + self.n_kept(index) * FRAME_TOKENS]

    def tokens_of(self, index: int) -> slice:
        """Where the 32 + 8 tokens of a pass stand in the sequence of all passes."""
        first = PROMPT_TOKENS + index * PASS_TOKENS
        return slice(first, first + PASS_TOKENS)

    def _pass_and_offset(self) -> tuple[np.ndarray, np.ndarray]:
        """Of each token of the sequence: its pass, -1 for the prompt, and its place there."""
        of_passes = np.arange(len(self.frames) * PASS_TOKENS)
        prompt = np.arange(PROMPT_TOKENS)
        return (
            np.concatenate([np.full(PROMPT_TOKENS, -1), of_passes // PASS_TOKENS]),
            np.concatenate([prompt, of_passes % PASS_TOKENS]),
        )

    def is_decoded(self) -> np.ndarray:
        """(T,) bool: the action tokens of all passes."""
        index, offset = self._pass_and_offset()
        return (index >= 0) & (offset >= FRAME_TOKENS)

    def positions(self) -> np.ndarray:
        """(T,) the rank that each token has in its pass."""
        index, offset = self._pass_and_offset()
        kept = np.minimum(index, self.n_frames - 1)
        return np.where(index < 0, offset, PROMPT_TOKENS + kept * FRAME_TOKENS + offset)

    def is_seen(self, device: torch.device | str) -> torch.Tensor:
        """(T, T) bool: whether token i sees token j."""
        index, offset = (torch.from_numpy(values).to(device) for values in self._pass_and_offset())
        order = torch.arange(len(index), device=device)
        kept = torch.clamp(index, max=self.n_frames - 1)
        is_retained = (offset < FRAME_TOKENS)[None] & (index[None] < kept[:, None])
        return (order[None] <= order[:, None]) & (
            (index < 0)[None] | is_retained | (index[None] == index[:, None])
        )


def pass_states(reference: Reference, passes: Passes, index: int, actions: np.ndarray) -> torch.Tensor:
    """(32 + 8, hidden) that a pass begins with: its frame, and what it was fed with while decoding `actions`.

    Feeding a reference with the engine's own tokens is teacher forcing without a way to force the engine's.
    """
    fed = np.concatenate([[passes.starts[index]], reference.config.first_action + actions[:-1]])
    return torch.cat([reference.embed_frame(passes.frames[index]), reference.embed(fed)])


def layers_of(reference: Reference, found: torch.Tensor) -> list[torch.Tensor]:
    """Of a stream (T, layers, hidden): the states after every layer, then after the final norm.

    The kernels have no normed state to show: norm and head are one product, which operator `head` checks.
    """
    return [*found.unbind(1), reference.norm(found[:, -1].to(reference.dtype), "model.norm.weight")]
