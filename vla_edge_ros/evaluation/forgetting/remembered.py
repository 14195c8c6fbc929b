"""Success at a task that needs memory, by eviction policy: what the rows of `remember_study` say."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np

from vla_edge_ros.errors import UserError, reason_of
from vla_edge_ros.evaluation.forgetting.metrics import bootstrap_ci95
from vla_edge_ros.evaluation.json_shape import check
from vla_edge_ros.figures import proportion
from vla_edge_ros.input import read_text

AGAINST = ("fifo", "semantic")
"""Policies that every other one is compared with, seed by seed."""

_HEADLINE = ("remember_success", "remember_success_ci95")
_MAX_FILE_BYTES = 100_000_000


class _Proportion(TypedDict):
    value: float | None
    ci95: list[float] | None


class _Difference(TypedDict):
    mean: float | None
    ci95: list[float] | None


class _Success(TypedDict):
    remember_success: float | None
    remember_success_ci95: list[float] | None
    remember_success_by_capacity: dict[str, _Proportion]


class _Policy(_Success, total=False):
    remember_minus_fifo: _Difference


class _Remembered(TypedDict):
    """What figures and page take from `remember_study`."""

    seeds: int
    capacities: list[int]
    policies: dict[str, _Policy]
    full: _Proportion
    at_once: _Proportion
    chance: float


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
    """The figures that `remember_study` wrote to `path`. Raises UserError where they are not there, whole."""
    try:
        found = json.loads(read_text(path, _MAX_FILE_BYTES))
        check(found, _Remembered)
        _check_intervals(found)
    except OSError as error:
        reason = reason_of(error)
    except (ValueError, RecursionError) as error:
        reason = f"it has no figures of remember_study: {error}"
    else:
        return found
    raise UserError(f"{path}: {reason}; name the remember.json that remember_study writes")


def _check_intervals(found: dict) -> None:
    """What `check` cannot say: an interval has two ends, and a policy a proportion for each capacity."""
    intervals = [found["full"]["ci95"], found["at_once"]["ci95"]]
    for name, figures in found["policies"].items():
        by_capacity = figures["remember_success_by_capacity"]
        if list(by_capacity) != [str(capacity) for capacity in found["capacities"]]:
            raise ValueError(f"{name} has capacities {', '.join(by_capacity)}, wanted {found['capacities']}")
        intervals += [figures["remember_success_ci95"], *(share["ci95"] for share in by_capacity.values())]
        intervals.append(figures.get("remember_minus_fifo", {}).get("ci95"))
    odd = [interval for interval in intervals if interval is not None and len(interval) != 2]
    if odd:
        raise ValueError(f"an interval is {odd[0]}, wanted two numbers")


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
