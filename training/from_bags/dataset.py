"""Episodes of recordings as training wants them, some of them held out."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from training.data import Labelled
from training.from_bags import judge
from training.from_bags.episodes import BagEpisode
from training.from_bags.policy_files import statistics_of
from training.labels import action_rows
from training.model import TinyVla
from vla_edge_ros.actions.policy import Policy
from vla_edge_ros.actions.statistics import Statistics
from vla_edge_ros.control import settings
from vla_edge_ros.errors import UserError

HELD_OUT_SHARE = 0.1
"""Of the episodes, at least one, are not trained on: the error that is told is theirs."""


@dataclass(frozen=True, slots=True)
class Data:
    """The recordings as training wants them.

    frames: (N, 64, 128, 3) uint8 on the device. trained, held_out: their sequences, and `actions` of both in
    their order, (n, A) each. sha256: of all of it and the node's parameters.
    """

    frames: Tensor
    trained: list[Labelled]
    held_out: list[Labelled]
    actions: list[np.ndarray]
    statistics: Statistics
    sha256: str

    def error_of(self, model: TinyVla, deployment: settings.Parameters) -> float:
        """Mean absolute error on the held-out episodes, as a share of each dimension's range."""
        embeddings = model.pooled_embeddings(self.frames)
        held = self.actions[len(self.trained) :]
        return judge.model_error(
            model, self.frames, embeddings, self.held_out, held, self.statistics, deployment
        )

    def constant_errors(self) -> dict[str, float]:
        n = len(self.trained)
        learnt = np.concatenate(self.actions[:n])
        constants = {"mean action": learnt.mean(axis=0), "median action": np.median(learnt, axis=0)}
        return {
            name: judge.constant_error(value, self.held_out, self.actions[n:], self.statistics)
            for name, value in constants.items()
        }


def make_data(
    episodes: Sequence[BagEpisode],
    policy: Policy,
    deployment: settings.Parameters,
    seed: int,
    device: torch.device,
) -> Data:
    """Statistics of the episodes that are trained on, labels by them, and one tensor of all frames.

    Raises UserError where nothing can be learnt.
    """
    trained, held_out = _split(episodes, seed)
    statistics = statistics_of(np.concatenate([e.actions for e in trained]), policy)
    if not (statistics.high > statistics.low).any():
        names = ", ".join(dimension.name for dimension in policy.dimensions)
        raise UserError(f"{names}: none of them ever changes in the recordings: nothing can be learnt")
    digest = hashlib.sha256(json.dumps(dict(deployment), sort_keys=True).encode())
    labelled: list[Labelled] = []
    n_frames = 0
    prompts: dict[str, np.ndarray] = {}
    for episode in [*trained, *held_out]:
        text = episode.instruction
        if text not in prompts:
            prompts[text] = settings.Prompter(deployment).changed_to(text).tokens
        labels = action_rows(episode.actions, statistics).astype(np.int16)
        labelled.append(Labelled("recorded", prompts[text], episode.ticks, labels, n_frames))
        n_frames += len(episode.frames)
        for part in (prompts[text], episode.ticks, labels, episode.frames):
            digest.update(np.ascontiguousarray(part))
    frames = torch.from_numpy(np.concatenate([e.frames for e in [*trained, *held_out]])).to(device)
    actions = [episode.actions for episode in [*trained, *held_out]]
    n = len(trained)
    return Data(frames, labelled[:n], labelled[n:], actions, statistics, digest.hexdigest())


def _split(episodes: Sequence[BagEpisode], seed: int) -> tuple[list[BagEpisode], list[BagEpisode]]:
    """What is trained on and what is held out: some episodes, or of a single one its last ticks."""
    if len(episodes) == 1:
        (whole_one,) = episodes
        n = len(whole_one.ticks)
        kept = max(1, n - max(1, round(HELD_OUT_SHARE * n)))
        if n == 1:
            raise UserError("the recordings have one tick with an action: nothing can be learnt from it")
        return [_part(whole_one, slice(kept))], [_part(whole_one, slice(kept, None))]
    n_held = max(1, round(HELD_OUT_SHARE * len(episodes)))
    order = np.random.default_rng(seed).permutation(len(episodes))
    return [episodes[i] for i in sorted(order[n_held:])], [episodes[i] for i in sorted(order[:n_held])]


def _part(episode: BagEpisode, part: slice) -> BagEpisode:
    return replace(
        episode, ticks=episode.ticks[part], frames=episode.frames[part], actions=episode.actions[part]
    )
