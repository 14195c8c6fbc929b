"""What the device's clock says when the steady clock says something, learnt from the passes themselves."""

DRIFT = 1 / 2000
"""What the clocks may drift apart in a time: 500 ppm, the most that NTP slews the steady clock."""


class DeviceClock:
    """Keeps `steady - device` between two bounds.

    A pass is launched before its first mark on the device, and seen to be over after its last one. So the
    difference is at least launched - first mark and at most seen - last mark. Bounds of later passes
    intersect with the earlier ones, which widen by `DRIFT` of the time that has passed. Where they do not
    meet, a clock was set, and the newest count alone.
    """

    def __init__(self) -> None:
        self._low_ns = self._high_ns = 0
        self._at_ns: int | None = None

    @property
    def width_ns(self) -> int:
        """How far the bounds are apart."""
        return self._high_ns - self._low_ns

    def observe(self, launched_ns: int, first_mark_ns: int, last_mark_ns: int, seen_ns: int) -> None:
        """Take one pass over: steady times around its marks in device time."""
        # Both as they can be when the pass is seen: each holds at its mark, somewhere in between.
        drift_ns = _drift_ns(launched_ns, seen_ns)
        low_ns, high_ns = launched_ns - first_mark_ns - drift_ns, seen_ns - last_mark_ns + drift_ns
        if self._at_ns is not None:
            drift_ns = _drift_ns(self._at_ns, seen_ns)
            known_low_ns = max(low_ns, self._low_ns - drift_ns)
            known_high_ns = min(high_ns, self._high_ns + drift_ns)
            if known_low_ns <= known_high_ns:
                low_ns, high_ns = known_low_ns, known_high_ns
        self._low_ns, self._high_ns, self._at_ns = low_ns, high_ns, seen_ns

    def device_ns(self, steady_ns: int) -> int | None:
        """The latest that the device's clock can say at `steady_ns`; None before the first pass.

        The latest, so that what is stopped at that time has no time left.
        """
        if self._at_ns is None:
            return None
        return steady_ns - self._low_ns + _drift_ns(self._at_ns, steady_ns)


def _drift_ns(from_ns: int, to_ns: int) -> int:
    return int(DRIFT * abs(to_ns - from_ns)) + 1
