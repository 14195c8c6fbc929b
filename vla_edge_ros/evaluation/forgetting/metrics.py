"""How much was lost by forgetting: figures that need no label. Pure functions of arrays."""

from collections.abc import Sequence

import numpy as np

from vla_edge_ros.actions.tokens import N_BINS, detokenise


def kl_nats(reference: np.ndarray, other: np.ndarray) -> float:
    """Mean over the A tokens of KL(reference || other) in nats, from log-probabilities (A, 256)."""
    return float((np.exp(reference) * (reference - other)).sum(axis=-1).mean())


def action_l1(reference: np.ndarray, other: np.ndarray) -> float:
    """Mean distance of the actions that two distributions decode to, in units of a dimension's whole range.

    reference, other: (A, 256) log-probabilities; an action is the centre of its likeliest bin, and the bins
    cover a range of 2.
    """
    decoded, wanted = (detokenise(a.argmax(axis=-1), N_BINS) for a in (other, reference))
    return float(np.abs(decoded - wanted).mean() / 2)


def regret(losses: Sequence[float], chosen: int) -> float:
    """How much more the chosen frame's absence changes than the absence of the one that changes least.

    losses: by place, the change that leaving each frame out makes (the oracle knows them all).
    """
    return float(losses[chosen] - min(losses))


def regret_rank(losses: Sequence[float], chosen: int) -> float:
    """Share of the other frames whose absence changes less: 0 is the oracle, 1/2 chance, 1 the worst.

    Frames of equal loss count half. Unlike `regret` it does not hang on the few evictions that change much.
    """
    losses = np.asarray(losses, float)
    if len(losses) == 1:
        return 0.0
    better = float((losses < losses[chosen]).sum())
    equal = float((losses == losses[chosen]).sum() - 1)
    return (better + equal / 2) / (len(losses) - 1)


def temporal_coverage(times: Sequence[float], start: float, now: float, n_stretches: int) -> float:
    """Share of `n_stretches` equal stretches of the time from `start` to `now` that hold a retained frame.

    times: of the retained frames. A frame on a border belongs to the later stretch, one at `now` to the last.
    Raises ValueError where `now` is not later than `start`.
    """
    if now <= start:
        raise ValueError(f"a time from {start} to {now} has no stretches")
    stretches = np.floor((np.asarray(times, float) - start) / (now - start) * n_stretches).astype(int)
    return len(np.unique(np.clip(stretches, 0, n_stretches - 1))) / n_stretches


def recall(is_held: Sequence[bool]) -> float | None:
    """Share of the needles that memory still holds when they are asked for; None where there was none."""
    return float(np.mean(is_held)) if len(is_held) else None


def bootstrap_ci95(values: Sequence[float], seed: int = 0, draws: int = 10_000) -> list[float] | None:
    """[low, high]: the percentile bootstrap interval (Efron, 1979) of the mean; None below two values."""
    values = np.asarray(values, float)
    if len(values) < 2:
        return None
    picks = np.random.default_rng(seed).integers(len(values), size=(draws, len(values)))
    return np.percentile(values[picks].mean(axis=1), [2.5, 97.5]).tolist()
