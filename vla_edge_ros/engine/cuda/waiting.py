"""Waiting for a pass: asleep while it cannot be over yet, then asking the device again and again."""

import time
from collections.abc import Callable

from vla_edge_ros.engine.linux import sleep_until

SPIN_NS = 300_000
"""The longest that it is asked without a pause, beyond the least that the pass takes."""
NAP_NS = 100_000
"""Between two questions afterwards."""
_MOST_MARGIN_NS = 250_000
_FORGETTING = 1 / 64


class Waiting:
    """A wait that ends within microseconds of the pass, for little processor time.

    A blocking event wakes its thread by an interrupt, which a virtual machine delivers 50 to 150 us late. Who
    asks the device sees the end at once, but asking all the time takes a whole core: so the wait sleeps until
    a margin before the earliest end. The margin is the most that sleeps have overslept of late.

    is_over: asks the device; called without a pause for up to the margin and `SPIN_NS`.
    """

    def __init__(
        self,
        is_over: Callable[[], bool],
        now_ns: Callable[[], int] = time.monotonic_ns,
        sleep_until: Callable[[int], None] = sleep_until,
    ) -> None:
        self._is_over = is_over
        self._now_ns = now_ns
        self._sleep_until = sleep_until
        self._margin_ns = _MOST_MARGIN_NS

    def until(self, until_ns: int, earliest_ns: int) -> bool:
        """True as soon as the pass is over, False once the steady clock reads `until_ns`.

        earliest_ns: when it can be over at the earliest, on the steady clock; one that is past says nothing.
        """
        began_ns = now_ns = self._now_ns()
        wake_ns = min(earliest_ns - self._margin_ns, until_ns)
        if now_ns < wake_ns:
            self._sleep_until(wake_ns)
            now_ns = self._now_ns()
            kept_ns = self._margin_ns - int(_FORGETTING * self._margin_ns)
            self._margin_ns = min(max(now_ns - wake_ns, kept_ns), _MOST_MARGIN_NS)
        spins_until_ns = max(began_ns, earliest_ns) + SPIN_NS
        while not self._is_over():
            now_ns = self._now_ns()
            if now_ns >= until_ns:
                return False
            if now_ns >= spins_until_ns:
                self._sleep_until(min(now_ns + NAP_NS, until_ns))
        return True
