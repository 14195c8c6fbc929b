"""Distributions as they are reported everywhere."""

from collections.abc import Sequence

import numpy as np

TAILS = {"p50": 50.0, "p99": 99.0, "p999": 99.9, "max": 100.0}


def percentiles(values: Sequence[float] | np.ndarray) -> dict:
    """`n`, `p50`, `p99`, `p999` and `max` of the finite values; None each, but n, where there is none.

    A percentile is a value that was measured (the smallest that so many do not exceed), never a mean of two.
    """
    finite = np.asarray(values, np.float64)
    finite = finite[np.isfinite(finite)]
    if not finite.size:
        return {"n": 0} | dict.fromkeys(TAILS)
    levels = np.percentile(finite, list(TAILS.values()), method="inverted_cdf").tolist()
    return {"n": finite.size} | dict(zip(TAILS, levels, strict=True))
