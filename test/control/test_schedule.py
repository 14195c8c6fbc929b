from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_edge_ros.control.schedule import TickSchedule

MS = 1_000_000
SCHEDULE = TickSchedule(origin_ns=1000 * MS, period_ns=33 * MS, deadline_ns=30 * MS, margin_ns=2 * MS)


def test_a_tick_has_a_start_a_cutoff_and_an_effect_time():
    times = SCHEDULE.times(10)
    assert (times.start_ns, times.cutoff_ns, times.effect_ns) == (1330 * MS, 1358 * MS, 1360 * MS)


def test_a_tick_that_ended_in_time_is_followed_by_the_next():
    assert SCHEDULE.following(10, now_ns=1361 * MS) == 11


def test_a_tick_that_overran_into_the_next_is_followed_by_that_one_at_once():
    assert SCHEDULE.following(10, now_ns=1370 * MS) == 11


def test_wholly_missed_ticks_are_skipped():
    assert SCHEDULE.following(10, now_ns=SCHEDULE.times(25).start_ns + 1) == 25


@given(tick=st.integers(0, 10**6), late_ns=st.integers(0, 10**10))
def test_the_following_tick_is_later_and_never_wholly_past(tick, late_ns):
    now = SCHEDULE.times(tick).start_ns + late_ns
    following = SCHEDULE.following(tick, now)
    assert following > tick
    assert SCHEDULE.times(following).start_ns + SCHEDULE.period_ns > now
    assert following == tick + 1 or SCHEDULE.times(following - 1).start_ns + SCHEDULE.period_ns <= now


@pytest.mark.parametrize("age_ms", [-5, 0, 1, 28, 29, 500])
def test_a_pass_has_until_the_cutoff_whatever_its_frame_where_the_deadline_counts_from_the_tick(age_ms):
    times = SCHEDULE.times(4)
    assert SCHEDULE.pass_cutoff_ns(times, times.start_ns - age_ms * MS) == times.cutoff_ns


@pytest.mark.parametrize(("age_ms", "left_ms"), [(-5, 28), (0, 28), (1, 27), (28, 0), (29, -1), (500, -472)])
def test_and_the_age_of_its_frame_less_where_it_counts_from_capture(age_ms, left_ms):
    schedule = replace(SCHEDULE, counts_from_capture=True)
    times = schedule.times(4)
    assert times == SCHEDULE.times(4)
    assert schedule.pass_cutoff_ns(times, times.start_ns - age_ms * MS) == times.start_ns + left_ms * MS


def test_it_is_quiet_from_a_margin_before_the_cutoff_until_the_effect_time():
    start = SCHEDULE.times(4).start_ns
    stretch = (start + 26 * MS, start + 30 * MS)
    for at_ms in (-3, 0, 26, 29.9):  # E_3 is 3 ms before S_4
        assert SCHEDULE.quiet(start + round(at_ms * MS)) == stretch
    assert SCHEDULE.quiet(start + 30 * MS) == SCHEDULE.quiet(SCHEDULE.times(5).start_ns)
    assert SCHEDULE.quiet(0) == SCHEDULE.quiet(SCHEDULE.origin_ns)


@given(now_ns=st.integers(0, 10**12))
def test_the_quiet_stretch_is_the_running_or_the_next_one(now_ns):
    begin_ns, end_ns = SCHEDULE.quiet(now_ns)
    assert now_ns < end_ns and end_ns - begin_ns == 4 * MS
    assert begin_ns <= max(now_ns, SCHEDULE.origin_ns) + SCHEDULE.period_ns


@pytest.mark.parametrize(("deadline_ms", "margin_ms"), [(34, 2), (0, 0), (-1, 0), (30, 30), (30, -1)])
def test_times_that_contradict_each_other_are_refused(deadline_ms, margin_ms):
    with pytest.raises(ValueError, match="ms must be"):
        TickSchedule(0, 33 * MS, deadline_ms * MS, margin_ms * MS)
