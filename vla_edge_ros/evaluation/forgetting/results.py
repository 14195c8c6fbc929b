"""Rows of an evaluation: written as they come, read again where a run goes on, and summed up by policy."""

import fcntl
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np

from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.forgetting.jobs import Plan, Row
from vla_edge_ros.evaluation.forgetting.metrics import bootstrap_ci95
from vla_edge_ros.evaluation.json_shape import check
from vla_edge_ros.figures import percentiles
from vla_edge_ros.parameters import defaults

PLAN = tuple(f"plan_{field.name}" for field in fields(Plan))
KEY = ("bag", "footage_digest", "policy", "capacity", "seed", *PLAN)
FIGURES = ("regret_nats", "regret_rank", "kl_nats", "action_l1", "needle_recall", "coverage")
AGAINST = ("fifo", "semantic", "novelty")
"""Policies that every other one is compared with, seed by seed."""


def key_of(row: dict) -> tuple:
    return tuple(row[name] for name in KEY)


def checked_key_of(row: object) -> tuple:
    """Raises WrongShape, with the field, for what is no `Row`."""
    check(row, Row)
    return key_of(row)


class RowFile:
    """One JSON object a line, for one process at a time; a last line that was cut is dropped when it is read.

    key_of: of a row, hashable; raises ValueError, KeyError or TypeError for what is none.
    Raises UserError where another process has it, or where a line is no row.
    """

    def __init__(self, path: Path, key_of: Callable[[dict], tuple] = checked_key_of):
        self._path = path
        self._key_of = key_of
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.rows = self._read()
        except BlockingIOError:
            self._file.close()
            raise UserError(
                f"{path}: another evaluation writes there: wait for it, or name another --out folder"
            ) from None
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> "RowFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, rows: Iterable[dict]) -> None:
        """Add rows, with the kernel before this returns."""
        rows = list(rows)
        self._file.write("".join(json.dumps(row) + "\n" for row in rows).encode())
        self._file.flush()
        self.rows += rows

    def _read(self) -> list[dict]:
        self._file.seek(0)
        whole, _, cut = self._file.read().rpartition(b"\n")
        rows = []
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                row = json.loads(line.decode())
                hash(self._key_of(row))
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise UserError(
                    f"{self._path}: line {number} is no row of an evaluation: {error}; name another --out "
                    "folder"
                ) from None
            rows.append(row)
        if cut:
            self._file.truncate(len(whole) + 1 if whole else 0)
        return rows


def write_parquet(path: Path, rows: Sequence[dict]) -> None:
    """All rows with all their columns; needs pyarrow."""
    import pyarrow
    from pyarrow import parquet

    ordered = sorted(rows, key=lambda row: tuple(str(row[name]).zfill(6) for name in KEY))
    parquet.write_table(pyarrow.Table.from_pylist(ordered), path)


def by_seed(rows: Sequence[dict], figure: str) -> dict[int, float]:
    """By seed, the mean of `figure` over bags and capacities; rows that have none are left out."""
    values: dict[int, list[float]] = {}
    for row in rows:
        if row[figure] is not None:
            values.setdefault(row["seed"], []).append(row[figure])
    return {seed: float(np.mean(found)) for seed, found in sorted(values.items())}


def summary_of(rows: Sequence[dict]) -> dict:
    """One policy's figures over its rows: means, and 95 % bootstrap intervals over seeds.

    A seed's value is the mean over bags and capacities, so that what a bag has in common in all seeds does
    not count as independent.
    """
    summary: dict = {"trials": len(rows)}
    for figure in FIGURES:
        values = list(by_seed(rows, figure).values())
        name = figure.removesuffix("_nats")
        summary[f"{name}_mean"] = float(np.mean(values)) if values else None
        summary[f"{name}_ci95"] = bootstrap_ci95(values)
    summary["needle_recall"] = summary.pop("needle_recall_mean")
    costs = percentiles(us for row in rows for us in row["eviction_us"])
    return summary | {"eviction_us_p50": costs["p50"], "eviction_us_p99": costs["p99"]}


def difference(rows: Sequence[dict], better: str, other: str, figure: str) -> dict:
    """`better` minus `other`, paired by seed: mean, 95 % bootstrap interval, and whether it excludes zero."""
    first = by_seed([row for row in rows if row["policy"] == better], figure)
    second = by_seed([row for row in rows if row["policy"] == other], figure)
    pairs = [first[seed] - second[seed] for seed in first.keys() & second.keys()]
    interval = bootstrap_ci95(pairs)
    return {
        "mean": float(np.mean(pairs)) if pairs else None,
        "ci95": interval,
        "is_significant": interval is not None and (interval[0] > 0 or interval[1] < 0),
        "seeds": len(pairs),
    }


def document(rows: Sequence[dict]) -> dict:
    """Everything that the rows say, for `forgetting.json`.

    eviction_us: processor time of an eviction between two passes, with the bookkeeping of slots.
    policies: beside its own figures each has minus_fifo, minus_semantic and minus_novelty: its distance to
    these in every figure, with `is_significant`: whether it can be told from chance.
    least_regret: the policy of the least mean regret by rank; least_regret_minus_others: its distances.
    plans: rows of the fields of `Plan`.
    default_policy: that of the parameter table, which a trained task decides and not these figures.
    """
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    figures = {name: summary_of([row for row in rows if row["policy"] == name]) for name in policies}
    for name in policies:
        for other in AGAINST:
            if other in policies and other != name:
                figures[name][f"minus_{other}"] = _apart(rows, name, other)
    ranked = [name for name in policies if figures[name]["regret_rank_mean"] is not None]
    winner = min(ranked, key=lambda name: figures[name]["regret_rank_mean"], default=None)
    against = {
        other: _apart(rows, winner, other) for other in policies if winner is not None and other != winner
    }
    return {
        "default_policy": defaults()["memory.policy"],
        "bags": sorted({row["bag"] for row in rows}),
        "seeds": len({row["seed"] for row in rows}),
        "capacities": sorted({row["capacity"] for row in rows}),
        "plans": [list(plan) for plan in sorted({tuple(row[name] for name in PLAN) for row in rows})],
        "policies": figures,
        "least_regret": winner,
        "least_regret_minus_others": against,
    }


def _apart(rows: Sequence[dict], name: str, other: str) -> dict:
    return {figure: difference(rows, name, other, figure) for figure in FIGURES}
