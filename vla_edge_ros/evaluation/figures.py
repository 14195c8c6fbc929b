"""The figures by which latencies are told, and how they are written."""

import math
from collections.abc import Iterable

NOTHING = "–"


def percentiles(values: Iterable[float | None]) -> dict[str, float | int | None]:
    """n, p50, p99, p999 and max of the finite `values`, by nearest rank: each is a value that occurred.

    Rank ceil(q * n), counted from 1. With n = 0 every figure is None.
    """
    ranked = sorted(value for value in values if value is not None and math.isfinite(value))
    n = len(ranked)

    def at(per_mille: int) -> float | None:
        return ranked[-(-per_mille * n // 1000) - 1] if n else None

    return {"n": n, "p50": at(500), "p99": at(990), "p999": at(999), "max": at(1000)}


def in_words(value: object, digits: int = 0, unit: str = "") -> str:
    """A number for people: `digits` decimals and a space before the unit; a dash for None and NaN."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return NOTHING
    text = f"{value:,.{digits}f}" if isinstance(value, int | float) else str(value)
    return f"{text} {unit}" if unit else text
