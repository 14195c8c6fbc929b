"""The figures by which durations are told, and how they are written."""

import math
from collections.abc import Iterable

import numpy as np

NOTHING = "–"
PER_MILLE = {"p50": 500, "p99": 990, "p999": 999, "max": 1000}


def percentiles(values: Iterable[float | None]) -> dict[str, float | int | None]:
    """n, p50, p99, p999 and max of the finite `values`, by nearest rank: each is a value that occurred.

    Rank ceil(q * n), counted from 1. With n = 0 every figure is None.
    """
    found = np.array([value for value in values if value is not None], np.float64)
    found = found[np.isfinite(found)]
    if not found.size:
        return {"n": 0} | dict.fromkeys(PER_MILLE)
    found.sort()
    ranks = {name: -(-share * found.size // 1000) for name, share in PER_MILLE.items()}
    return {"n": found.size} | {name: float(found[rank - 1]) for name, rank in ranks.items()}


def in_words(value: object, digits: int = 0, unit: str = "") -> str:
    """A number for people: `digits` decimals and a space before the unit; a dash for None and NaN."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return NOTHING
    text = f"{value:,.{digits}f}" if isinstance(value, int | float) else str(value)
    return f"{text} {unit}" if unit else text
