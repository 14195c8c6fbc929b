"""A ladder instead of a cliff: where a whole pass does not fit, the least is given up that is enough.

    full            a whole pass over every retained frame
    fewer_tokens    a pass that decodes the first of the action's tokens; the other dimensions are held
    fewer_frames    a whole pass, after as many frames were forgotten as it takes, by the eviction policy
    reuse           no pass: the picture has not changed, so its block and what was decoded from it stand
    hold            nothing fits
    stop            nothing has fitted for longer than a hold may last

The first that fits is taken, and none that does not. Whether a pass fits is for the admission rule to say.
What the next pass makes good comes before what is gone for good: a held joint moves no one, a forgotten frame
is missed by every action to come. No step gives up two things at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial


class Step(str, Enum):
    """What a tick made of its time, each giving up more than the one before."""

    FULL = "full"
    FEWER_TOKENS = "fewer_tokens"
    FEWER_FRAMES = "fewer_frames"
    REUSE = "reuse"
    HOLD = "hold"
    STOP = "stop"

    def __str__(self) -> str:
        return self.value


PRICED = (Step.FULL, Step.FEWER_TOKENS, Step.FEWER_FRAMES, Step.REUSE)
"""The steps that have an action to give."""


@dataclass(frozen=True, slots=True)
class LadderConfig:
    """
    forget_frames: `fewer_frames` forgets at most so many, and so many more for each pass in a row before that
        could not be begun; 0: this step is never taken.
    least_frames: so many stay, whatever that costs.
    least_tokens: `fewer_tokens` decodes so many at least; 0: this step is never taken.
    """

    forget_frames: int = 0
    least_frames: int = 8
    least_tokens: int = 0


NO_STEPS = LadderConfig()
"""Nothing between a whole pass and a hold."""


def most_to_forget(config: LadderConfig, n_frames: int, n_refused: int) -> int:
    """How many of `n_frames` may go now, after `n_refused` passes in a row that could not be begun.

    So one hiccup costs `forget_frames` at most, and a machine that stays slow gets there tick by tick.
    """
    return max(0, min(config.forget_frames * (1 + n_refused), n_frames - config.least_frames))


def most_to_hold(config: LadderConfig, n_tokens: int) -> int:
    """How many of the `n_tokens` of an action may be left out."""
    return max(0, n_tokens - config.least_tokens) if config.least_tokens else 0


def choose(
    most: dict[Step, int], lacks_ns: Callable[[Step, int], int], can_reuse: Callable[[], bool]
) -> tuple[Step, int]:
    """The cheapest step that fits, and how many tokens are left out or frames forgotten for it.

    most: how many may be, by the steps that leave out some, in their order. lacks_ns: the time that a pass
        without n of them is short of, 0 or what is over where it fits; without more it is never longer.
    """
    whole_ns = lacks_ns(Step.FULL, 0)
    if whole_ns <= 0:
        return Step.FULL, 0
    for step, n_most in most.items():
        if n_most > 0 and (over_ns := lacks_ns(step, n_most)) <= 0:
            return step, _fewest((0, whole_ns), (n_most, over_ns), partial(lacks_ns, step))
    return (Step.REUSE if can_reuse() else Step.HOLD), 0


def _fewest(low: tuple[int, int], high: tuple[int, int], lacks_ns: Callable[[int], int]) -> int:
    """The least n that fits: more than that of `low`, and at most that of `high`, with what each lacks.

    Time is nearly affine in n, so that a secant finds it in two questions as a rule. Every third question
    halves what is left: no more than 3 log2(n) are asked whatever the time does.
    """
    n_asked = 0
    while high[0] - low[0] > 1:
        n_asked += 1
        n = (low[0] + high[0]) // 2
        if n_asked % 3:
            n = low[0] - (low[0] - high[0]) * low[1] // (low[1] - high[1])
            n = min(max(n, low[0] + 1), high[0] - 1)
        lack_ns = lacks_ns(n)
        if lack_ns <= 0:
            high = n, lack_ns
        else:
            low = n, lack_ns
    return high[0]
