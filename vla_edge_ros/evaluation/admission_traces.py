"""Service times of simulated passes, with the state that made them: what admission is tried on.

Every trace is seeded. The cut-off is 31 ms after a tick's start, as with the node's defaults.
"""

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vla_edge_ros.engine.interface import FRAME_TOKENS

CUTOFF_MS = 31.0
HICCUP_MS = 80.0


@dataclass(frozen=True, slots=True)
class Trace:
    """
    service_ms: (T,) the time that a pass of tick t takes, if one is begun.
    miss_probability: (T,) of a pass of tick t, for who knows the state that the time is drawn from.
    context_tokens: (T,) what the pass attends to.
    """

    service_ms: np.ndarray
    miss_probability: np.ndarray
    context_tokens: np.ndarray

    def causal_goodput(self, target: float) -> float:
        """FRESH per tick that no rule can beat that misses `target` per tick and is told the state.

        It begins the passes with the smallest probability of a miss, as many as the target pays for.
        """
        costs = np.sort(self.miss_probability)
        spent = np.cumsum(costs)
        n = int(np.searchsorted(spent, target * len(costs), side="right"))
        return (n - (spent[n - 1] if n else 0.0)) / len(costs)


def make_trace(name: str, n_ticks: int, seed: int = 0) -> Trace:
    """The trace `name` of TRACES; a longer one does not begin with a shorter one."""
    return TRACES[name](np.random.default_rng((seed, zlib.crc32(name.encode()))), n_ticks)


def _normal(rng: np.random.Generator, mean_ms: np.ndarray, sd_ms: float) -> Trace:
    tail = [0.5 * math.erfc(x) for x in ((CUTOFF_MS - mean_ms) / (sd_ms * math.sqrt(2))).tolist()]
    service_ms = np.maximum(0.1, mean_ms + sd_ms * rng.standard_normal(len(mean_ms)))
    return Trace(service_ms, np.array(tail), np.full(len(mean_ms), 2048))


def _with_hiccups(trace: Trace, is_slow: np.ndarray, probability: np.ndarray) -> Trace:
    service_ms = np.where(is_slow, HICCUP_MS, trace.service_ms)
    return Trace(service_ms, np.maximum(trace.miss_probability, probability), trace.context_tokens)


def _spells(rng: np.random.Generator, n: int, usual_ticks: int, slow_ticks: int) -> np.ndarray:
    """(n,) bool, true in slow spells; the lengths of both kinds are geometric around the given means."""
    lengths = rng.geometric(np.tile([1 / usual_ticks, 1 / slow_ticks], n // usual_ticks + 2))
    lengths[-1] += n
    return np.repeat(np.arange(len(lengths)) % 2 == 1, lengths)[:n]


def _steady(rng: np.random.Generator, n: int) -> Trace:
    return _normal(rng, np.full(n, 20.0), 0.3)


def _bimodal(usual_ticks: int, slow_ticks: int) -> Callable[[np.random.Generator, int], Trace]:
    def make(rng: np.random.Generator, n: int) -> Trace:
        return _normal(rng, np.where(_spells(rng, n, usual_ticks, slow_ticks), 45.0, 20.0), 0.5)

    return make


def _slow_at_random(rng: np.random.Generator, n: int) -> Trace:
    return _with_hiccups(_steady(rng, n), rng.random(n) < 0.02, np.full(n, 0.02))


def _ramp(rng: np.random.Generator, n: int) -> Trace:
    return _normal(rng, _folded(np.arange(n) * 32 / 50_000, 18.0, 34.0), 0.4)


def _walk(rng: np.random.Generator, n: int) -> Trace:
    return _normal(rng, _folded(10 + np.cumsum(rng.normal(0, 0.04, n)), 16.0, 34.0), 0.4)


def _clustered(rng: np.random.Generator, n: int) -> Trace:
    """Storms of 40 ticks in 2,000 with a Pareto tail (index 1.5) on a log-normal body."""
    body_ms = 20 + rng.lognormal(-1.5, 0.6, n)
    is_storm = _spells(rng, n, 2000, 40)
    service_ms = np.where(is_storm, body_ms + 8 * rng.pareto(1.5, n), body_ms)
    # Of the Pareto tail at the mean of the body.
    probability = (1 + (CUTOFF_MS - body_ms.mean()) / 8) ** -1.5
    return Trace(service_ms, np.where(is_storm, probability, 0.0), np.full(n, 2048))


def _periodic(rng: np.random.Generator, n: int) -> Trace:
    is_slow = np.arange(n) % 250 == 249
    return _with_hiccups(_steady(rng, n), is_slow, is_slow.astype(float))


def _regimes(rng: np.random.Generator, n: int) -> Trace:
    """Changes for some 5,000 ticks to another of four levels, one of which does not fit."""
    n_regimes = n // 2500 + 8
    steps = np.cumsum(rng.integers(1, 4, n_regimes)) % 4
    levels_ms = np.array([16.0, 22.0, 27.0, 36.0])[steps]
    lengths = rng.geometric(1 / 5000, n_regimes)
    lengths[-1] += n
    return _normal(rng, np.repeat(levels_ms, lengths)[:n], 0.4)


def _tight(rng: np.random.Generator, n: int) -> Trace:
    return _with_hiccups(_normal(rng, np.full(n, 28.5), 0.25), rng.random(n) < 0.0005, np.full(n, 0.0005))


def _growing_context(rng: np.random.Generator, n: int) -> Trace:
    """Memory fills with a frame a tick up to 4,064 tokens and is emptied about every 1,000 ticks."""
    is_reset = rng.random(n) < 0.001
    is_reset[0] = True
    since = np.arange(n) - np.maximum.accumulate(np.where(is_reset, np.arange(n), 0))
    tokens = np.minimum(32 + FRAME_TOKENS * since, 4064)
    trace = _normal(rng, 14.0 + 0.0041 * tokens, 0.3)
    return Trace(trace.service_ms, trace.miss_probability, tokens)


def _never_fits(rng: np.random.Generator, n: int) -> Trace:
    return _normal(rng, np.full(n, 40.0), 1.0)


def _folded(path: np.ndarray, low: float, high: float) -> np.ndarray:
    """`path` reflected at both ends of a range that begins at path 0."""
    span = high - low
    return high - np.abs(path % (2 * span) - span)


TRACES: dict[str, Callable[[np.random.Generator, int], Trace]] = {
    "steady": _steady,
    "spells_3000_150": _bimodal(3000, 150),
    "spells_600_60": _bimodal(600, 60),
    "slow_at_random": _slow_at_random,
    "drift_ramp": _ramp,
    "drift_walk": _walk,
    "clustered": _clustered,
    "periodic": _periodic,
    "regimes": _regimes,
    "tight": _tight,
    "growing_context": _growing_context,
    "never_fits": _never_fits,
}
BENIGN = ("steady", "spells_3000_150", "drift_ramp", "drift_walk", "clustered")
"""Where what is to come can be told from what has been."""
