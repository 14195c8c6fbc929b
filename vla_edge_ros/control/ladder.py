"""A ladder instead of a cliff: where a whole pass does not fit, the least is given up that is enough.

    full            a whole pass over every retained frame
    fewer_frames    the same pass, after as many frames were forgotten as it takes, by the eviction policy
    reuse           no pass: the picture has not changed, so its block and what was decoded from it stand
    hold            nothing fits
    stop            nothing has fitted for longer than a hold may last

The first that fits is taken, and none that does not. Whether a pass fits is for the admission rule to say.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class Step(str, Enum):
    """What a tick made of its time, each giving up more than the one before."""

    FULL = "full"
    FEWER_FRAMES = "fewer_frames"
    REUSE = "reuse"
    HOLD = "hold"
    STOP = "stop"

    def __str__(self) -> str:
        return self.value


PRICED = (Step.FULL, Step.FEWER_FRAMES, Step.REUSE)
"""The steps that have an action to give."""


@dataclass(frozen=True, slots=True)
class LadderConfig:
    """
    forget_frames: `fewer_frames` forgets at most so many, and so many more for each pass in a row before that
        could not be begun; 0: this step is never taken.
    least_frames: so many stay, whatever that costs.
    """

    forget_frames: int = 0
    least_frames: int = 8


NO_STEPS = LadderConfig()
"""Nothing between a whole pass and a hold."""


def most_to_forget(config: LadderConfig, n_frames: int, n_refused: int) -> int:
    """How many of `n_frames` may go now, after `n_refused` passes in a row that could not be begun.

    So one hiccup costs `forget_frames` at most, and a machine that stays slow gets there tick by tick.
    """
    return max(0, min(config.forget_frames * (1 + n_refused), n_frames - config.least_frames))


def choose(most: int, fits: Callable[[int], bool], can_reuse: Callable[[], bool]) -> tuple[Step, int]:
    """The cheapest step that fits, and how many frames are forgotten for it.

    most: of `most_to_forget`. fits: whether a pass can be begun once n frames are forgotten; of fewer frames
        it is never longer, so halving finds the smallest n, with 2 + log2(most) questions in all.
    """
    if fits(0):
        return Step.FULL, 0
    if most > 0 and fits(most):
        return Step.FEWER_FRAMES, 1 + bisect_left(range(1, most), True, key=fits)
    return (Step.REUSE if can_reuse() else Step.HOLD), 0
