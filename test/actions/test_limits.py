import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_edge_ros.actions.limits import BRAKING_S, Limits, braking_point, limited_waypoints, towards
from vla_edge_ros.actions.policy import Dimension, Kind

MS = 1_000_000


def limits_of(*rows):
    return Limits.of([Dimension("joint", Kind.POSITION, *row) for row in rows])


def at(*values):
    return np.array(values, float)


def test_a_target_is_reached_or_approached():
    assert towards(at(0.1, 5, -5), at(0, 0, 0), at(0.5, 0.5, 0.5)).tolist() == [0.1, 0.5, -0.5]


def test_the_first_step_stays_within_one_period_of_the_measured_position():
    limits = limits_of((-2, 2, 1.0))
    points = limited_waypoints([[2.0]], [100 * MS], 0, [0.0], [0.0], limits, 33 * MS)
    assert points == [pytest.approx([0.033])]


def test_steps_closer_together_than_a_period_are_limited_by_their_own_distance():
    limits = limits_of((-2, 2, 1.0))
    due = [20 * MS, 40 * MS, 60 * MS]
    points = limited_waypoints([[2.0]] * 3, due, 0, [0.0], [0.0], limits, 33 * MS)
    assert [point[0] for point in points] == pytest.approx([0.02, 0.04, 0.06])


def test_a_step_that_can_be_reached_is_left_alone_and_one_outside_is_clamped():
    limits = limits_of((-2, 2, 100.0), (-1, 1, 100.0))
    points = limited_waypoints([[0.5, 3.0]], [33 * MS], 0, [0, 0], [0, 0], limits, 33 * MS)
    assert points == [[0.5, 1.0]]


def test_the_first_step_can_be_reached_from_where_the_plan_is():
    # The old target lies 0.09 ahead of the plan, so that one period more cannot be reached in 100 ms.
    limits = limits_of((-2, 2, 1.0))
    points = limited_waypoints([[2.0]], [100 * MS], 0, [0.0], [0.09], limits, 33 * MS)
    assert points == [pytest.approx([0.1])]


def test_from_outside_the_limits_steps_move_inwards_at_limited_speed():
    limits = limits_of((-1, 1, 1.0))
    due = [33 * MS, 66 * MS]
    points = limited_waypoints([[-1.0]] * 2, due, 0, [1.5], [1.5], limits, 33 * MS)
    assert [point[0] for point in points] == pytest.approx([1.467, 1.434])


def test_braking_takes_v_over_a_and_v_squared_over_2a():
    rest, braking_ns = braking_point(at(0.0), at(0.8), limits_of((-2, 2, 1.0, 4.0)), 10 * MS)
    assert braking_ns == 200 * MS
    assert rest == pytest.approx(0.08)


def test_all_joints_stop_together_and_none_brakes_harder_than_it_may():
    velocity = at(0.8, -0.1)
    rest, braking_ns = braking_point(at(0, 0), velocity, limits_of((-2, 2, 1, 4), (-2, 2, 1, 4)), 10 * MS)
    # A cubic from velocity v to 0 over T brakes evenly, at v / T, exactly where it covers v T / 2.
    assert rest == pytest.approx(velocity * 0.2 / 2)
    assert braking_ns == 200 * MS


def test_without_an_acceleration_full_speed_is_stopped_in_a_fixed_time():
    _, braking_ns = braking_point(at(0.0), at(1.0), limits_of((-2, 2, 1.0, None)), 10 * MS)
    assert braking_ns == BRAKING_S * 1e9


def test_at_rest_the_braking_point_is_here_and_not_in_the_past():
    rest, braking_ns = braking_point(at(0.3), at(0.0), limits_of((-2, 2, 1.0, 4.0)), 20 * MS)
    assert (rest.tolist(), braking_ns) == ([0.3], 20 * MS)


def test_braking_ends_at_the_limit_by_braking_harder():
    rest, braking_ns = braking_point(at(0.96), at(0.8), limits_of((-1, 1, 1.0, 4.0)), 10 * MS)
    assert rest == pytest.approx(1.0)
    # v T / 2 = 0.04
    assert braking_ns == 100 * MS


@settings(max_examples=300, deadline=None)
@given(
    position=st.floats(-3, 3),
    velocity=st.floats(-1, 1),
    acceleration=st.none() | st.floats(0.1, 100),
    least_ms=st.integers(1, 100),
)
def test_braking_never_reverses_and_never_leaves_the_limits(position, velocity, acceleration, least_ms):
    limits = limits_of((-1, 1, 1.0, acceleration))
    rest, braking_ns = braking_point(at(position), at(velocity), limits, least_ms * MS)
    way = float(rest[0]) - position
    assert way * velocity >= 0
    assert min(-1, position) <= rest[0] <= max(1, position)
    assert braking_ns >= least_ms * MS
    assert abs(way) <= abs(velocity) * braking_ns / 1e9 / 2 + 1e-12
