"""A wait that sleeps while a pass cannot be over, and sees its end at once afterwards."""

import pytest

from vla_edge_ros.engine.cuda.waiting import NAP_NS, SPIN_NS, Waiting

US, MS = 1_000, 1_000_000
ASKING_NS = 2 * US


class Machine:
    """A clock on which asking takes 2 us and a sleep ends `oversleep_ns` late; a pass ends at `end_ns`.

    asleep_ns: time that the thread slept.
    """

    def __init__(self, end_ns: int = 8 * MS, oversleep_ns: int = 0) -> None:
        self.now, self.end_ns, self.oversleep_ns, self.asleep_ns = 0, end_ns, oversleep_ns, 0
        self.waiting = Waiting(self._is_over, lambda: self.now, self._sleep_until)

    def _is_over(self) -> bool:
        self.now += ASKING_NS
        return self.now >= self.end_ns

    def _sleep_until(self, until_ns: int) -> None:
        woke = max(self.now, until_ns) + self.oversleep_ns
        self.asleep_ns += woke - self.now
        self.now = woke

    def passes(self, n: int, least_ns: int, takes_ns: int, until_ns: int = 1000 * MS) -> tuple[int, int]:
        """(late_ns, awake_ns) of the last of `n` passes: how late its end was seen, and what that took."""
        for _ in range(n):
            began, self.asleep_ns = self.now, 0
            self.end_ns = began + takes_ns
            assert self.waiting.until(began + until_ns, began + least_ns)
        return self.now - self.end_ns, self.now - began - self.asleep_ns


@pytest.mark.parametrize("oversleep_ns", [0, 60 * US, 150 * US])
def test_the_end_is_seen_at_once_for_little_time_awake_whatever_sleeps_oversleep(oversleep_ns):
    late_ns, awake_ns = Machine(oversleep_ns=oversleep_ns).passes(300, 8 * MS, 8 * MS + 30 * US)
    assert late_ns <= 2 * ASKING_NS
    assert awake_ns <= 50 * US


def test_a_first_sleep_that_oversleeps_costs_no_pass_its_time():
    late_ns, _ = Machine(oversleep_ns=200 * US).passes(1, 8 * MS, 8 * MS)
    assert late_ns <= ASKING_NS


def test_one_sleep_that_was_long_is_forgotten():
    machine = Machine(oversleep_ns=20 * US)
    machine.passes(100, 8 * MS, 8 * MS)
    machine.oversleep_ns = 240 * US
    machine.passes(1, 8 * MS, 8 * MS)
    machine.oversleep_ns = 20 * US
    assert machine.passes(1, 8 * MS, 8 * MS)[1] > 200 * US
    assert machine.passes(300, 8 * MS, 8 * MS)[1] < 50 * US


def test_a_pass_far_longer_than_the_least_is_not_asked_for_without_a_pause():
    late_ns, awake_ns = Machine().passes(1, 8 * MS, 20 * MS)
    assert 0 <= late_ns <= NAP_NS + ASKING_NS
    assert awake_ns < 2 * SPIN_NS + 120 * 2 * ASKING_NS


def test_a_pass_of_which_nothing_is_known_is_asked_for_a_while_and_then_now_and_then():
    late_ns, awake_ns = Machine().passes(1, 0, 8 * MS)
    assert 0 <= late_ns <= NAP_NS + ASKING_NS
    assert awake_ns < SPIN_NS + 80 * 2 * ASKING_NS


def test_a_wait_ends_at_its_time_and_can_be_taken_up_again():
    machine = Machine(end_ns=8 * MS)
    for until_ns in (3 * MS, 7 * MS + 900 * US):
        assert not machine.waiting.until(until_ns, 8 * MS)
        assert until_ns <= machine.now <= until_ns + ASKING_NS
    assert machine.waiting.until(9 * MS, 8 * MS)
    assert machine.now <= 8 * MS + 2 * ASKING_NS


def test_a_wait_until_a_time_that_is_past_asks_once():
    machine = Machine(end_ns=2 * MS)
    machine.now = MS
    assert not machine.waiting.until(0, 2 * MS)
    assert machine.now == MS + ASKING_NS
    machine.now = 3 * MS
    assert machine.waiting.until(0, 2 * MS)


def test_what_goes_wrong_at_the_device_ends_the_wait():
    def fails():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Waiting(fails, lambda: 0, lambda until_ns: None).until(MS, 0)
