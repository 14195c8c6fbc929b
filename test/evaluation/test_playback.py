"""A recording is played at the times and with the stamps of a camera that is there now."""

from hypothesis import given
from hypothesis import strategies as st

from vla_edge_ros.evaluation.playback import PlaybackSchedule, read_stamps_line

START_NS = 5_000_000_000
BASE_NS = 1_900_000_000_000_000_000
LOG_NS = 1_700_000_000_008_000_000
STAMP_NS = 1_700_000_000_000_000_000


def schedule(log_ns: int = LOG_NS, stamp_ns: int = STAMP_NS, rate: float = 1.0) -> PlaybackSchedule:
    return PlaybackSchedule.from_first_image(log_ns, stamp_ns, START_NS, BASE_NS, rate)


def test_the_first_image_is_stamped_at_the_start_and_sent_after_its_transport_delay():
    assert schedule().restamped_ns(STAMP_NS) == BASE_NS
    assert schedule().due_ns(LOG_NS) == START_NS + 8_000_000


@given(st.integers(-(10**15), 10**15))
def test_intervals_are_kept_to_the_nanosecond(offset_ns):
    assert schedule().restamped_ns(STAMP_NS + offset_ns) - BASE_NS == offset_ns
    assert schedule().due_ns(LOG_NS + offset_ns) - schedule().due_ns(LOG_NS) == offset_ns


def test_twice_the_rate_halves_every_interval():
    fast = schedule(rate=2.0)
    assert fast.due_ns(LOG_NS) == START_NS + 4_000_000
    assert fast.due_ns(LOG_NS + 1_000_000_000) - fast.due_ns(LOG_NS) == 500_000_000
    assert fast.restamped_ns(STAMP_NS + 1_000_000_000) == BASE_NS + 500_000_000


def test_a_foreign_clock_gives_no_delay_and_keeps_its_intervals():
    stamp_ns = LOG_NS - (3 * 3600 + 41 * 60) * 1_000_000_000
    foreign = schedule(stamp_ns=stamp_ns)
    assert foreign.due_ns(LOG_NS) == START_NS
    assert foreign.restamped_ns(stamp_ns + 33) == BASE_NS + 33


def test_a_stamp_in_the_future_of_its_log_gives_no_delay():
    assert schedule(stamp_ns=LOG_NS + 1).due_ns(LOG_NS) == START_NS


def test_no_stamp_stays_no_stamp():
    assert schedule(stamp_ns=0).restamped_ns(0) == 0
    assert schedule(stamp_ns=0).due_ns(LOG_NS) == START_NS
    assert schedule().restamped_ns(0) == 0


def test_laps_follow_at_the_mean_image_period_without_a_step_back():
    last_log_ns = LOG_NS + 900_000_000
    lap = schedule().next_lap(LOG_NS, last_log_ns, n_images=10)
    assert lap.due_ns(LOG_NS) - schedule().due_ns(last_log_ns) == 100_000_000
    assert lap.restamped_ns(STAMP_NS) == BASE_NS + 1_000_000_000


def test_a_single_image_is_repeated_thirty_times_a_second():
    lap = schedule().next_lap(LOG_NS, LOG_NS, n_images=1)
    assert lap.due_ns(LOG_NS) - schedule().due_ns(LOG_NS) == 33_333_333


def test_a_lap_announced_in_the_log_leads_every_played_stamp_back_to_the_recorded_one():
    schedule = PlaybackSchedule.from_first_image(
        5_000_000_008, 5_000_000_000, 77, 1_795_975_191_444_357_014, 1.0
    )
    lap = read_stamps_line(f"[INFO] [1795.1] [bag_camera]: {schedule.stamps_line()}")
    for recorded_ns in (5_000_000_000, 5_016_666_667, 4_999_999_999):
        assert lap.recorded_stamp_ns(schedule.restamped_ns(recorded_ns)) == recorded_ns
        assert lap.log_ns(schedule.due_ns(recorded_ns)) == recorded_ns
    assert read_stamps_line("published 12 images of /cam") is None
