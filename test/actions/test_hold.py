import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_edge_ros.actions.hold import DECAY_NS, held, rest_ns

MS = 1_000_000


def test_a_motion_goes_to_zero_in_a_straight_line_and_a_position_repeats():
    motion, position, sent = -1.0, 0.7, []
    for tick in range(1, 6):
        times_ns = (tick - 1) * 25 * MS, DECAY_NS, tick * 25 * MS
        motion, position = held(motion, True, *times_ns), held(position, False, *times_ns)
        sent.append(motion)
        assert position == 0.7
    assert sent == pytest.approx([-0.75, -0.5, -0.25, 0.0, 0.0])


def test_motion_ends_with_the_time_to_live_where_that_is_sooner():
    assert rest_ns(1000 * MS, 1155 * MS) == 1100 * MS
    assert rest_ns(1000 * MS, 1030 * MS) == 1030 * MS


@settings(max_examples=200, deadline=None)
@given(
    value=st.floats(-10, 10),
    zero_ms=st.integers(-50, 300),
    waits_ms=st.lists(st.integers(1, 120), min_size=1, max_size=12),
)
def test_a_held_motion_shrinks_keeps_its_sign_and_does_not_depend_on_how_often_it_is_sent(
    value, zero_ms, waits_ms
):
    last, now_ms = value, 0
    for wait in waits_ms:
        shrunk = held(last, True, now_ms * MS, zero_ms * MS, (now_ms + wait) * MS)
        assert abs(shrunk) <= abs(last)
        assert shrunk * value >= 0
        last, now_ms = shrunk, now_ms + wait
    expected = value * max(0, zero_ms - now_ms) / zero_ms if zero_ms > 0 else 0.0
    assert last == pytest.approx(expected, abs=1e-9)
