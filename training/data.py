"""The roll-outs as a training step wants them: frames in one tensor on the device, the rest in arrays."""

import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from training.batch import Batch, Part, make_batch
from training.contexts import contexts_of, draw_memory
from training.hints import N_HINTS
from training.labels import action_rows
from training.rollouts import Sequence, load
from vla_edge_ros.control import settings
from vla_edge_ros.engine.vision import FRAME_HEIGHT, FRAME_WIDTH
from vla_edge_ros.errors import reason_of
from vla_edge_ros.simulation.environment import arm_policy


class UnfitData(ValueError):
    """The data set cannot be trained on; the message says which file and why."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """A sequence without its frames, which are `first_frame` and the following in the store."""

    task: str
    prompt: np.ndarray
    ticks: np.ndarray
    labels: np.ndarray
    first_frame: int
    hints: np.ndarray | None = None


def load_data(folder: Path, device: torch.device) -> tuple[torch.Tensor, list[Labelled]]:
    """All frames (N, 64, 128, 3) uint8 on `device`, and the sequences. Raises UnfitData."""
    paths = sorted(path for path in folder.glob("*.npz") if ".partial" not in path.name)
    if not paths:
        raise UnfitData(f"{folder} has no roll-outs (*.npz): python -m training.rollouts {folder} makes them")
    statistics = arm_policy().statistics
    sequences: list[Labelled] = []
    tensors: list[torch.Tensor] = []
    n_frames = 0
    with ThreadPoolExecutor() as pool:
        for path, shard in zip(paths, pool.map(_load, paths), strict=True):
            for sequence in shard:
                _check(path, sequence)
                labels = action_rows(sequence.actions, statistics).astype(np.int16)
                sequences.append(
                    Labelled(sequence.task, sequence.prompt, sequence.ticks, labels, n_frames, sequence.hints)
                )
                tensors.append(torch.from_numpy(sequence.frames).to(device))
                n_frames += len(sequence.frames)
    return torch.cat(tensors), sequences


def _load(path: Path) -> list[Sequence]:
    try:
        return load(path)
    except (OSError, EOFError, ValueError, LookupError, zipfile.BadZipFile, zlib.error) as error:
        raise UnfitData(
            f"{path}: is no shard of roll-outs as they are written today: {reason_of(error)}; "
            "remove it and make it again"
        ) from None


def _check(path: Path, sequence: Sequence) -> None:
    n = len(sequence.ticks)
    if n == 0:
        raise UnfitData(f"{path}: a sequence has no ticks, wanted at least one with its action")
    if sequence.actions.shape != (n, 8) or sequence.frames.shape != (n, FRAME_HEIGHT, FRAME_WIDTH, 3):
        raise UnfitData(
            f"{path}: actions are {sequence.actions.shape} and frames {sequence.frames.shape} for {n} ticks, "
            f"wanted ({n}, 8) and ({n}, {FRAME_HEIGHT}, {FRAME_WIDTH}, 3)"
        )
    if sequence.hints.shape != (n, N_HINTS):
        raise UnfitData(f"{path}: hints are {sequence.hints.shape} for {n} ticks, wanted ({n}, {N_HINTS})")
    if not np.isfinite(sequence.actions).all():
        raise UnfitData(f"{path}: an action is NaN or infinite, wanted finite numbers")


class Steps(torch.utils.data.Dataset):
    """Batch of each step, fixed by the seed and the step's number.

    embeddings: (N, hidden) float32 pooled embeddings of all frames under recent weights; where memory is
        small, the semantic policy evicts by them. They are refreshed in place as training goes on.
    """

    def __init__(
        self,
        sequences: list[Labelled],
        embeddings: torch.Tensor,
        deployment: settings.Parameters,
        n_sequences: int,
        n_queries: int,
        n_steps: int,
        seed: int,
    ) -> None:
        self._sequences = sequences
        self._embeddings = embeddings
        self._deployment = deployment
        self._n_sequences, self._n_queries, self._n_steps = n_sequences, n_queries, n_steps
        self._seed = seed

    def __len__(self) -> int:
        return self._n_steps

    def __getitem__(self, step: int) -> Batch:
        rng = np.random.default_rng((self._seed, step))
        chosen = rng.integers(len(self._sequences), size=self._n_sequences)
        return make_batch([self._part(self._sequences[i], rng) for i in chosen])

    def _part(self, sequence: Labelled, rng: np.random.Generator) -> Part:
        n, n_prompt = len(sequence.ticks), len(sequence.prompt)
        memory = draw_memory(self._deployment, n_prompt, rng)
        embeddings = self._embeddings[sequence.first_frame : sequence.first_frame + n].numpy()
        contexts = contexts_of(sequence.ticks, n_prompt, embeddings, memory)
        queried = rng.permutation(n)[: self._n_queries]
        return Part(sequence.prompt, sequence.first_frame, contexts, sequence.labels, queried, sequence.hints)
