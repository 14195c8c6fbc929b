"""The one decision that every tick ends with."""

from enum import Enum


class Decision(str, Enum):
    """Where several apply: FAULT, a latched SAFE_STOP, one for missing joint states while enabled, FRESH,
    FRESH_LATE, SAFE_STOP from a hold timeout, then the holds in the order below.
    """

    FAULT = "FAULT"
    SAFE_STOP = "SAFE_STOP"
    FRESH = "FRESH"
    FRESH_LATE = "FRESH_LATE"
    HOLD_NO_FRAME = "HOLD_NO_FRAME"
    HOLD_STALE_FRAME = "HOLD_STALE_FRAME"
    HOLD_BUSY = "HOLD_BUSY"
    HOLD_REFUSED = "HOLD_REFUSED"
    HOLD_LATE = "HOLD_LATE"

    def __str__(self) -> str:
        return self.value

    @property
    def is_fresh(self) -> bool:
        return self in (Decision.FRESH, Decision.FRESH_LATE)

    @property
    def is_hold(self) -> bool:
        return self.value.startswith("HOLD_")
