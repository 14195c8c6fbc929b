"""Which embeddings see the cue of *remember*.

    python -m vla_edge_ros.simulation.cue_table [--model tiny-vla]

Frames a stride apart, from the beginning of an episode to the lamp. Of pairs of them that have a cue and of
pairs that have none: the median cosine, and how often a pair with a cue is the less alike of the two: 0.5 is
blind, 1 sees it always.
"""

import argparse
import sys
from collections.abc import Iterable
from itertools import combinations

import numpy as np

from vla_edge_ros.arguments import whole
from vla_edge_ros.evaluation.forgetting.embedding_table import cosine, embedder
from vla_edge_ros.evaluation.forgetting.trial_model import TrialModel
from vla_edge_ros.memory.policies import EMBEDDINGS
from vla_edge_ros.simulation.environment import HOLD, Environment
from vla_edge_ros.simulation.model_actor import DEPLOYMENT
from vla_edge_ros.simulation.tasks import Remember


def waiting_frames(environment: Environment, seed: int) -> tuple[list[np.ndarray], list[bool]]:
    """The frames of a stride apart that an arm at rest sees before the lamp, and whether each has the cue."""
    stride = int(DEPLOYMENT["memory.stride_ticks"])
    frames, has_cue = [], []
    observation = environment.reset(seed, Remember.name)
    while environment.time_s < environment.task.lamp_s:
        if observation.tick % stride == 1:
            frames.append(environment.render())
            has_cue.append(environment.task.has_cue)
        observation = environment.step(HOLD)
    return frames, has_cue


def seen(embeddings: list[np.ndarray], has_cue: list[bool]) -> tuple[list[float], list[float]]:
    """Cosines of the pairs of which one has the cue, and of those of which none has."""
    with_cue, without = [], []
    for i, j in combinations(range(len(embeddings)), 2):
        if has_cue[i] and has_cue[j]:
            continue
        pairs = with_cue if has_cue[i] or has_cue[j] else without
        pairs.append(cosine(embeddings[i], embeddings[j]))
    return with_cue, without


def less_alike(with_cue: Iterable[float], without: Iterable[float]) -> float:
    """Chance that one of `with_cue` is below one of `without`; equal ones count half."""
    a, b = np.asarray(list(with_cue))[:, None], np.asarray(list(without))[None, :]
    return float((a < b).mean() + (a == b).mean() / 2)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m vla_edge_ros.simulation.cue_table", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--model", default="tiny-vla", help="preset or directory (default: tiny-vla)")
    parser.add_argument("--episodes", type=whole(1), default=50, help="seeds from 0 on (default: 50)")
    args = parser.parse_args(argv)
    model = TrialModel(args.model, 0, n_slots=64, action_tokens=1)
    environment = Environment(renders=False)
    episodes = [waiting_frames(environment, seed) for seed in range(args.episodes)]
    for kind in EMBEDDINGS:
        embed = embedder(kind, model)
        pairs = [seen([embed(frame).copy() for frame in frames], cues) for frames, cues in episodes]
        # Within an episode: what differs from one to the next is no cue.
        chances = [less_alike(a, b) for a, b in pairs if a and b]
        with_cue, without = (np.concatenate(cosines) for cosines in zip(*pairs, strict=True))
        print(
            f"{kind:16} with a cue {np.median(with_cue):.4f}   without {np.median(without):.4f}"
            f"   less alike with it {np.mean(chances):.3f}   episodes {len(chances)}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
