"""Success at a task that needs memory, by eviction policy: what the rows of `remember_study` say."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vla_edge_ros.errors import UserError, reason_of
from vla_edge_ros.evaluation.forgetting.metrics import bootstrap_ci95
from vla_edge_ros.figures import proportion

AGAINST = ("fifo", "semantic")
"""Policies that every other one is compared with, seed by seed."""


_HEADLINE = ("remember_success", "remember_success_ci95")


def with_remembered(document: dict, remembered: dict) -> dict:
    """`document` of an evaluation with the success of its policies; `remembered`: that of `remember_study`.

    A policy of the evaluation has its success beside its other figures, all else stands by itself, as does a
    study of late cues.
    """
    if remembered.get("cue_later_s"):
        return document | {"remember_late": remembered}
    asked = remembered["policies"]
    policies = {
        name: figures | ({key: asked[name][key] for key in _HEADLINE} if name in asked else {})
        for name, figures in document["policies"].items()
    }
    return document | {"policies": policies, "remember": remembered}


def read_remembered(path: Path) -> dict:
    """The figures that `remember_study` wrote to `path`. Raises UserError where they are not there."""
    try:
        found = json.loads(path.read_text())
        if not {"policies", "full", "at_once", "seeds"} <= found.keys():
            raise ValueError("it has no figures of remember_study")
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(
            f"{path}: {reason_of(error)}; name the remember.json that remember_study writes"
        ) from None
    return found


def summary(rows: Sequence[dict], policies: Sequence[str], capacities: Sequence[int]) -> dict:
    """By policy, success in its rows of `capacities`, and paired differences to those of `AGAINST`.

    rows: one an episode, with policy, capacity, seed, has_succeeded and is_cue_held. Only seeds that every
    policy has at every capacity count. remember_success is the mean over capacities, its interval and those
    of differences are bootstraps over seeds; by capacity they are Wilson's.
    """
    by_key = {(row["policy"], row["capacity"], row["seed"]): row for row in rows}
    seeds = sorted(
        seed
        for seed in {row["seed"] for row in rows}
        if all((name, capacity, seed) in by_key for name in policies for capacity in capacities)
    )
    success = {
        name: np.array(
            [[by_key[name, capacity, seed]["has_succeeded"] for capacity in capacities] for seed in seeds],
            float,
        ).reshape(len(seeds), len(capacities))
        for name in policies
    }
    figures = {}
    for name in policies:
        by_seed = success[name].mean(axis=1)
        held = {
            capacity: [by_key[name, capacity, seed]["is_cue_held"] for seed in seeds]
            for capacity in capacities
        }
        figures[name] = {
            "remember_success": float(by_seed.mean()) if seeds else None,
            "remember_success_ci95": bootstrap_ci95(by_seed),
            "remember_success_by_capacity": {
                str(capacity): proportion(success[name][:, place].astype(bool).tolist())
                for place, capacity in enumerate(capacities)
            },
            "remember_cue_held_by_capacity": {
                str(capacity): float(np.mean(held[capacity])) if seeds else None for capacity in capacities
            },
        }
        for other in AGAINST:
            if other in success and other != name:
                apart = by_seed - success[other].mean(axis=1)
                figures[name][f"remember_minus_{other}"] = {
                    "mean": float(apart.mean()) if seeds else None,
                    "ci95": bootstrap_ci95(apart),
                }
    return {
        "seeds": len(seeds),
        "seed_list": seeds,
        "capacities": list(capacities),
        "policies": figures,
    }
