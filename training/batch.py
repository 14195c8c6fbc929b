"""Sequences and their contexts as the index tensors of one training step."""

from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np
import torch

from training.contexts import Contexts
from training.hints import N_HINTS
from vla_edge_ros.memory.slots import FRAME_TOKENS


@dataclass(frozen=True, slots=True)
class Group:
    """Blocks `start` to `end`, and the keys that each attends to beside its own.

    index: (n, L) int32 rows of the source tokens in rank order, 0 beyond `lengths` (n,).
    """

    start: int
    end: int
    index: torch.Tensor
    lengths: torch.Tensor


@dataclass(frozen=True, slots=True)
class Blocks:
    """Frames (n,) by their place in the frame store, in groups of similar context lengths."""

    frames: torch.Tensor
    groups: list[Group]


@dataclass(frozen=True, slots=True)
class Batch:
    """S prompts (S, P), R retained frames and Q queried ticks.

    Source tokens are the prompts' S * P, then the retained frames' R * 32: what contexts index.
    labels: (Q, 8) int64, from 0 to 255. hints: (Q, N_HINTS) float32, NaN where unknown.
    """

    prompts: torch.Tensor
    retained: Blocks
    queries: Blocks
    labels: torch.Tensor
    hints: torch.Tensor

    def to(self, device: torch.device) -> "Batch":
        def moved(blocks: Blocks) -> Blocks:
            groups = [Group(g.start, g.end, g.index.to(device), g.lengths.to(device)) for g in blocks.groups]
            return Blocks(blocks.frames.to(device), groups)

        return Batch(
            self.prompts.to(device),
            moved(self.retained),
            moved(self.queries),
            self.labels.to(device),
            self.hints.to(device),
        )


@dataclass(frozen=True, slots=True)
class Part:
    """A sequence's share of a batch: its prompt (P,), the first of its frames in the frame store, its
    contexts, its labels (n, 8), which of its n ticks are queried, and its hints (n, N_HINTS), if any."""

    prompt: np.ndarray
    first_frame: int
    contexts: Contexts
    labels: np.ndarray
    queried: np.ndarray
    hints: np.ndarray | None = None


def make_batch(parts: Items[Part], n_groups: int = 4) -> Batch:
    """n_groups: the blocks are sorted by the length of their contexts and padded within each group only."""
    longest = max(len(part.prompt) for part in parts)
    prompts = np.zeros((len(parts), longest), np.int64)
    for row, part in zip(prompts, parts, strict=True):
        row[: len(part.prompt)] = part.prompt

    retained = [
        (s, i) for s, part in enumerate(parts) for i in np.flatnonzero(part.contexts.is_retained).tolist()
    ]
    queries = [(s, i) for s, part in enumerate(parts) for i in part.queried.tolist()]
    for entries in (retained, queries):
        entries.sort(key=lambda entry: _length(parts, entry))
    first_token = {entry: prompts.size + FRAME_TOKENS * place for place, entry in enumerate(retained)}

    def blocks(entries: list[tuple[int, int]]) -> Blocks:
        frames = torch.tensor([parts[s].first_frame + i for s, i in entries], dtype=torch.int64)
        edges = np.unique(np.linspace(0, len(entries), n_groups + 1).round().astype(int))
        groups = []
        for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            lengths = [_length(parts, entry) for entry in entries[start:end]]
            width = -(-max(lengths) // FRAME_TOKENS) * FRAME_TOKENS
            index = np.zeros((end - start, width), np.int32)
            for row, (s, i) in zip(index, entries[start:end], strict=True):
                n_prompt, seen = len(parts[s].prompt), parts[s].contexts.seen[i]
                row[:n_prompt] = s * longest + np.arange(n_prompt)
                starts = np.array([first_token[s, frame] for frame in seen], np.int64)
                tokens = starts[:, None] + np.arange(FRAME_TOKENS)
                row[n_prompt : n_prompt + tokens.size] = tokens.reshape(-1)
            groups.append(Group(start, end, torch.from_numpy(index), torch.tensor(lengths)))
        return Blocks(frames, groups)

    labels = np.array([parts[s].labels[i] for s, i in queries], np.int64)
    unknown = np.full(N_HINTS, np.nan, np.float32)
    hints = np.array([unknown if parts[s].hints is None else parts[s].hints[i] for s, i in queries])
    return Batch(
        torch.from_numpy(prompts),
        blocks(retained),
        blocks(queries),
        torch.from_numpy(labels),
        torch.from_numpy(hints),
    )


def _length(parts: Items[Part], entry: tuple[int, int]) -> int:
    part, i = parts[entry[0]], entry[1]
    return len(part.prompt) + FRAME_TOKENS * len(part.contexts.seen[i])
