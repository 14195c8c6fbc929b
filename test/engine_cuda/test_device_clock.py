"""The device's clock is known to within what passes show of it, whatever the clocks drift."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_edge_ros.engine.cuda.device_clock import DeviceClock

MS, US = 1_000_000, 1000
SINCE_1970_NS = 1_700_000_000 * 10**9


class Clocks:
    """A steady clock, and a device's that runs `drift` faster and began at `origin_ns`."""

    def __init__(self, drift: float, origin_ns: int = SINCE_1970_NS):
        self.drift, self.origin_ns = drift, origin_ns

    def device(self, steady_ns: int) -> int:
        return self.origin_ns + steady_ns + round(self.drift * steady_ns)

    def run_pass(self, clock: DeviceClock, launched_ns: int, starts_in: int, takes: int, seen_in: int) -> int:
        """When the pass was seen to be over."""
        first = launched_ns + starts_in
        seen = first + takes + seen_in
        clock.observe(launched_ns, self.device(first), self.device(first + takes), seen)
        return seen


def test_before_the_first_pass_nothing_is_known():
    assert DeviceClock().device_ns(5) is None


@settings(deadline=None, max_examples=100)
@given(
    drift=st.floats(-4.9e-4, 4.9e-4),
    delays=st.lists(st.tuples(st.integers(0, 3 * MS), st.integers(0, 5 * MS)), min_size=1, max_size=40),
    gap=st.integers(MS, 2000 * MS),
)
def test_a_deadline_is_never_taken_for_earlier_than_it_is_and_hardly_for_later(drift, delays, gap):
    """Later by no more than the quickest launch, and what the clocks may have drifted apart since."""
    clocks, clock = Clocks(drift), DeviceClock()
    now, launches = 10**9, []
    for starts_in, seen_in in delays:
        launched = now
        now = clocks.run_pass(clock, now, starts_in, 8 * MS, seen_in)
        launches.append((starts_in, launched))
        deadline = now + 31 * MS
        error = clock.device_ns(deadline) - clocks.device(deadline)
        assert error >= 0
        # Twice: what they may drift and what they do.
        allowed = [s + 2 * (deadline - at) / 2000 for s, at in launches]
        assert error <= min(allowed) + 2 * len(delays) + 5
        now += gap


def test_a_few_passes_of_30_hz_tell_the_time_to_within_their_quickest_launch():
    clocks, clock = Clocks(drift=3e-5), DeviceClock()
    random = np.random.default_rng(0)
    for tick in range(300):
        starts_in = 8 * US + int(random.exponential(20 * US))
        clocks.run_pass(clock, tick * 33 * MS, starts_in, 8 * MS, 30 * US + int(random.exponential(80 * US)))
    deadline = 300 * 33 * MS
    assert 0 <= clock.device_ns(deadline) - clocks.device(deadline) < 80 * US
    assert clock.width_ns < 200 * US


def test_one_late_wake_up_does_not_widen_what_is_known():
    clocks, clock = Clocks(drift=0.0), DeviceClock()
    clocks.run_pass(clock, 0, 10 * US, 8 * MS, 20 * US)
    width_ns = clock.width_ns
    clocks.run_pass(clock, 33 * MS, 10 * US, 8 * MS, 900 * MS)
    assert clock.width_ns <= width_ns + 2 * (950 * MS) // 2000


def test_a_clock_that_was_set_is_learnt_anew_from_the_next_pass():
    clock = DeviceClock()
    Clocks(0.0).run_pass(clock, 0, 10 * US, 8 * MS, 20 * US)
    for origin_ns in (SINCE_1970_NS + 10 * MS, SINCE_1970_NS - 10 * MS):
        clocks = Clocks(0.0, origin_ns)
        clocks.run_pass(clock, 33 * MS, 10 * US, 8 * MS, 20 * US)
        error = clock.device_ns(60 * MS) - clocks.device(60 * MS)
        assert 0 <= error < 50 * US
