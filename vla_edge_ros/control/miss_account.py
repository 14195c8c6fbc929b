"""How many misses the promise has been charged with: the number that bounds misses per tick."""

MOST_MISSES = 16
"""With so many on the account no pass is begun, not even a probe. It leaves room for a burst in a machine
that misses less than the target, and costs 1.7 % of 0.1 % in 10^6 ticks."""


class MissAccount:
    """A leaky bucket: every tick adds its miss (0 or 1) and takes `target_rate`, refused ticks as well.

    Conformal decision theory (Lekeufack, Angelopoulos, Bajcsy, Jordan and Malik 2023, arXiv 2310.05921), with
    the account as its conformal control variable, step 1. As long as nothing is begun while `is_full`, the
    account stays below MOST_MISSES + 1, whatever the service times: any T ticks in a row have at most
    target_rate x T + MOST_MISSES + 1 misses (docs/admission.md has the three lines of proof).
    """

    __slots__ = ("misses",)

    def __init__(self) -> None:
        self.misses = 0.0

    @property
    def is_full(self) -> bool:
        return self.misses >= MOST_MISSES

    @property
    def fullness(self) -> float:
        """From 0, nothing owed, to 1, full; a little above after the last miss."""
        return self.misses / MOST_MISSES

    def settle(self, is_miss: bool, target_rate: float) -> None:
        """Close one tick."""
        self.misses = max(0.0, self.misses + is_miss - target_rate)
