"""How many misses the promise has been charged with: the number that bounds misses per tick."""

SPARE_TICKS = 2400
"""80 s at 30 Hz: what so many ticks earn may be owed, and changes nothing yet. So a machine that misses less
than the target may do it in storms."""

MOST_CHARGED = 16
"""With so many more on the account no pass is begun, not even a probe: costs 1.9 % of 0.1 % in 10^6 ticks."""


def spare_misses(target_rate: float) -> float:
    """The misses on the account that are free."""
    return SPARE_TICKS * target_rate


def most_misses(target_rate: float) -> float:
    """No account has more: any T ticks in a row have at most so many misses above target_rate x T."""
    return spare_misses(target_rate) + MOST_CHARGED + 1


class MissAccount:
    """A leaky bucket: every tick adds its miss (0 or 1) and takes `target_rate`, refused ticks as well.

    Conformal decision theory (Lekeufack, Angelopoulos, Bajcsy, Jordan and Malik 2023, arXiv 2310.05921), with
    the account as its conformal control variable, step 1. As long as nothing is begun while `is_full`, the
    account stays below `most_misses`, whatever the service times (docs/admission.md has the three lines of
    proof).
    """

    __slots__ = ("misses",)

    def __init__(self) -> None:
        self.misses = 0.0

    def charged(self, target_rate: float) -> float:
        """The misses on it that are not free."""
        return max(0.0, self.misses - spare_misses(target_rate))

    def is_full(self, target_rate: float) -> bool:
        return self.charged(target_rate) >= MOST_CHARGED

    def has_spare(self, target_rate: float) -> bool:
        return self.misses < spare_misses(target_rate)

    def settle(self, is_miss: bool, target_rate: float) -> None:
        """Close one tick. What a higher rate let in before is not held against a lower one."""
        owed = self.misses + is_miss - target_rate
        self.misses = min(max(0.0, owed), most_misses(target_rate))
