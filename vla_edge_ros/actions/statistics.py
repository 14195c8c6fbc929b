"""Normalisation statistics of a policy's actions, as OpenVLA and LeRobot write them."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vla_edge_ros.actions.reading import PolicyError, describe, mapping, number, read_mapping, sequence


@dataclass(frozen=True, slots=True)
class Statistics:
    """The range of each of A action dimensions in the data that a policy was trained on.

    low, high: (A,) float64, what -1 and 1 stand for where `mask` is set.
    mask: (A,) bool; where it is not set a value in [-1, 1] is the action itself (OpenVLA's gripper).
    bounds: the pair of keys that `low` and `high` came from, "q01/q99" or "min/max".
    """

    source: str
    bounds: str
    low: np.ndarray
    high: np.ndarray
    mask: np.ndarray

    def __len__(self) -> int:
        return len(self.low)

    def unnormalise(self, normalised: np.ndarray) -> np.ndarray:
        """Actions in units from values in [-1, 1]; (..., A) float64.

        OpenVLA's `0.5 * (x + 1) * (q99 - q01) + q01`, which for q01 == q99 is that constant.
        """
        return np.where(self.mask, 0.5 * (normalised + 1) * (self.high - self.low) + self.low, normalised)

    @property
    def warning(self) -> str | None:
        """One line where the policy can move nothing, else None."""
        if self.mask.any() and (self.low == self.high)[self.mask].all():
            return (
                f"{self.source}: {self.bounds} are equal in every normalised dimension: "
                "whatever the policy decides, its actions are constant"
            )
        return None


def load_statistics(path: Path, dataset: str | None = None) -> Statistics:
    """Statistics of the actions of one data set; raises PolicyError with one line on what is wrong.

    Three files are understood: OpenVLA's `dataset_statistics.json` (data sets by name, each with `action`), a
    `config.json` that has the same under `norm_stats`, and LeRobot's `stats.json` (`action` at the top). The
    first two must have q01 and q99, which their policies are trained with. In the third these are used where
    they are there, else min and max: older LeRobot files have no quantiles.
    """
    content = read_mapping(path, json.loads)
    if "action" in content and "norm_stats" not in content:
        if dataset is not None:
            raise PolicyError(f"{path}: is of one data set only; leave dataset: {dataset} out")
        return _read_action(content["action"], f"{path}: action", has_min_max=True)

    content = mapping(content.get("norm_stats", content), f"{path}: norm_stats")
    if dataset is None:
        names = [name for name, entry in content.items() if isinstance(entry, dict) and "action" in entry]
        if not names:
            raise PolicyError(f"{path}: has no action statistics, wanted 'action', 'norm_stats' or data sets")
        if len(names) > 1:
            raise PolicyError(f"{path}: name one of its data sets with dataset: {', '.join(names)}")
        dataset = names[0]
    elif dataset not in content:
        raise PolicyError(f"{path}: has no data set {dataset!r}, it has {', '.join(map(str, content))}")
    entry = mapping(content[dataset], f"{path}: {dataset}")
    if "action" not in entry:
        raise PolicyError(f"{path}: {dataset} has no 'action', it has {', '.join(entry) or 'nothing'}")
    return _read_action(entry["action"], f"{path}: {dataset}.action")


def _read_action(value: object, what: str, has_min_max: bool = False) -> Statistics:
    entry = mapping(value, what)
    is_quantile = not has_min_max or "q01" in entry or "q99" in entry
    low_key, high_key = ("q01", "q99") if is_quantile else ("min", "max")
    for key in (low_key, high_key):
        if key not in entry:
            raise PolicyError(f"{what} has no {key!r}, it has {', '.join(entry) or 'nothing'}")
    low = _numbers(entry[low_key], f"{what}.{low_key}")
    high = _numbers(entry[high_key], f"{what}.{high_key}")
    # Like OpenVLA: without a mask every dimension is normalised.
    mask = _booleans(entry["mask"], f"{what}.mask") if "mask" in entry else np.ones(len(low), bool)
    for key, values in ((high_key, high), ("mask", mask)):
        if len(values) != len(low):
            raise PolicyError(f"{what}.{key} has {len(values)} dimensions, {low_key} has {len(low)}")
    for i, (lowest, highest) in enumerate(zip(low, high, strict=True)):
        if lowest > highest:
            raise PolicyError(
                f"{what}: dimension {i} has {low_key} {lowest:g} above {high_key} {highest:g}, wanted at most"
            )
        number(float(highest) - float(lowest), f"{what}: dimension {i}: {high_key} - {low_key}")
    return Statistics(what, f"{low_key}/{high_key}", low, high, mask)


def _numbers(value: object, what: str) -> np.ndarray:
    return np.array([number(item, f"{what}[{i}]") for i, item in enumerate(sequence(value, what))])


def _booleans(value: object, what: str) -> np.ndarray:
    for i, item in enumerate(sequence(value, what)):
        if not isinstance(item, bool):
            raise PolicyError(f"{what}[{i}] is {describe(item)}, wanted true or false")
    return np.array(value)
