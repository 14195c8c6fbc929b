"""The figures by which durations are told, and how they are written."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

NOTHING = "–"
Z_95 = 1.959963984540054
"""Two-sided 95 % of the normal distribution."""
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


def proportion(outcomes: Sequence[bool]) -> dict:
    """How many of `outcomes` are true: `value`, `episodes` and `ci95`, Wilson's score interval (1927).

    With none at all every figure is None.
    """
    n = len(outcomes)
    if n == 0:
        return {"value": None, "episodes": 0, "ci95": None}
    n_true = sum(map(bool, outcomes))
    return {"value": n_true / n, "episodes": n, "ci95": list(wilson_interval(n_true, n))}


def wilson_interval(n_found: int, n: int) -> tuple[float, float]:
    """Wilson's score interval (1927), 95 %, of a rate: `n_found` of `n` were seen; (0, 1) for none."""
    if n == 0:
        return 0.0, 1.0
    rate, z = n_found / n, Z_95
    middle = rate + z * z / (2 * n)
    reach = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (middle - reach) / scale), min(1.0, (middle + reach) / scale)


def in_words(value: object, digits: int = 0, unit: str = "") -> str:
    """A number for people: `digits` decimals and a space before the unit; a dash for None and NaN."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return NOTHING
    text = f"{value:,.{digits}f}" if isinstance(value, int | float) else str(value)
    return f"{text} {unit}" if unit else text


def counted(n: int, what: str) -> str:
    """`1 tick`, `1,024 ticks`: of what has a plural in s."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"
