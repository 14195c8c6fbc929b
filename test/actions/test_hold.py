import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_edge_ros.actions.hold import DECAY_NS, held, rest_ns

MS = 1_000_000
MOTION_AND_POSITION = np.array([True, False])


def test_a_motion_goes_to_zero_in_a_straight_line_and_a_position_repeats():
    last, sent = np.array([-1.0, 0.7]), []
    for tick in range(1, 6):
        last = held(last, MOTION_AND_POSITION, (tick - 1) * 25 * MS, DECAY_NS, tick * 25 * MS)
        sent.append(last.tolist())
    assert np.allclose(sent, [[-0.75, 0.7], [-0.5, 0.7], [-0.25, 0.7], [0.0, 0.7], [0.0, 0.7]])


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
    last, now_ms = np.array([value, 0.3]), 0
    for wait in waits_ms:
        values = held(last, MOTION_AND_POSITION, now_ms * MS, zero_ms * MS, (now_ms + wait) * MS)
        assert abs(values[0]) <= abs(last[0])
        assert values[0] * value >= 0
        assert values[1] == 0.3
        last, now_ms = values, now_ms + wait
    expected = value * max(0, zero_ms - now_ms) / zero_ms if zero_ms > 0 else 0.0
    assert np.isclose(last[0], expected, atol=1e-9)
