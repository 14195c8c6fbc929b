"""How far a model's actions are from those that were recorded, on episodes that it was not trained on."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from training.batch import Part, make_batch
from training.contexts import contexts_of
from training.data import Labelled
from training.model import TinyVla
from vla_edge_ros.actions.statistics import Statistics
from vla_edge_ros.actions.tokens import N_BINS, detokenise
from vla_edge_ros.control import settings

MOST_TICKS = 32
"""Of each episode that are judged."""


@torch.no_grad()
def decoded_rows(
    model: TinyVla,
    frames: Tensor,
    embeddings: Tensor,
    sequence: Labelled,
    deployment: settings.Parameters,
    judged: np.ndarray,
) -> np.ndarray:
    """(n, A) rows that `model` decodes greedily in the `judged` ticks (n,), under the deployed memory."""
    n = len(sequence.ticks)
    own = embeddings[sequence.first_frame : sequence.first_frame + n].numpy()
    contexts = contexts_of(sequence.ticks, len(sequence.prompt), own, deployment)
    part = Part(sequence.prompt, sequence.first_frame, contexts, np.zeros_like(sequence.labels), judged)
    batch = make_batch([part]).to(frames.device)
    retained, queries = (
        frames[blocks.frames].float() / 127.5 - 1 for blocks in (batch.retained, batch.queries)
    )
    for step in range(batch.labels.shape[1]):
        batch.labels[:, step] = model(batch, retained, queries)[:, step].argmax(-1)
    places = {frame: place for place, frame in enumerate(batch.queries.frames.tolist())}
    rows = batch.labels.cpu().numpy()
    return rows[[places[sequence.first_frame + tick] for tick in judged.tolist()]]


def judged_ticks(sequence: Labelled) -> np.ndarray:
    n = len(sequence.ticks)
    return np.unique(np.linspace(0, n - 1, min(n, MOST_TICKS)).round().astype(int))


def model_error(
    model: TinyVla,
    frames: Tensor,
    embeddings: Tensor,
    sequences: Sequence[Labelled],
    actions: Sequence[np.ndarray],
    statistics: Statistics,
    deployment: settings.Parameters,
) -> float:
    """`mean_error` of what the model decodes; actions: (n, A) of each sequence's ticks."""
    errors = []
    for sequence, recorded in zip(sequences, actions, strict=True):
        judged = judged_ticks(sequence)
        rows = decoded_rows(model, frames, embeddings, sequence, deployment, judged)
        values = statistics.unnormalise(detokenise(rows, N_BINS))
        errors.append(absolute_errors(values, recorded[judged], statistics))
    return float(np.concatenate(errors).mean())


def constant_error(
    constant: np.ndarray, sequences: Sequence[Labelled], actions: Sequence[np.ndarray], statistics: Statistics
) -> float:
    """The same of one action (A,) whatever is seen."""
    errors = [
        absolute_errors(constant, recorded[judged_ticks(sequence)], statistics)
        for sequence, recorded in zip(sequences, actions, strict=True)
    ]
    return float(np.concatenate(errors).mean())


def absolute_errors(values: np.ndarray, recorded: np.ndarray, statistics: Statistics) -> np.ndarray:
    """(n, A) as shares of each dimension's range; dimensions that never change are left out."""
    span = statistics.high - statistics.low
    varies = span > 0
    return np.abs(np.broadcast_to(values, recorded.shape) - recorded)[:, varies] / span[varies]
