import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_edge_ros.simulation.controllers import CommandController, TrajectoryController, Waypoint

MS = 1_000_000


def controller(*positions):
    return TrajectoryController(["a", "b"][: len(positions)], np.array(positions))


def points(*rows):
    """(time in ms, position) or (time in ms, position, velocity) of one joint."""
    return [Waypoint([row[1]], list(row[2:]), row[0] * MS) for row in rows]


def test_it_stays_where_it_was_activated_until_there_is_a_trajectory():
    assert controller(0.5).position_at(10 * MS) == 0.5


def test_it_goes_in_a_straight_line_from_where_it_is_to_the_points_and_stays_at_the_last():
    arm = controller(0.0)
    assert arm.follow(["a"], points((20, 1.0), (40, 0.0)), 100 * MS, 90 * MS) is None
    # From the first sample at 100 ms, not from the stamp or the receipt, to the point at 120 ms.
    assert [arm.position_at(t * MS)[0] for t in (100, 110, 120, 130, 140, 500)] == [0, 0.5, 1, 0.5, 0, 0]


def test_a_stamp_ahead_is_no_pause_the_way_to_the_first_point_begins_at_once():
    arm = controller(0.0)
    arm.follow(["a"], points((50, 1.0)), 50 * MS, 0)
    assert [arm.position_at(t * MS)[0] for t in (0, 25, 50, 100)] == [0, 0.25, 0.5, 1]


def test_no_stamp_means_from_now_on():
    arm = controller(0.0)
    arm.position_at(70 * MS)
    arm.follow(["a"], points((10, 1.0)), None, 75 * MS)
    assert [arm.position_at(t * MS)[0] for t in (80, 85, 90)] == [0, 0.5, 1]


def test_a_new_trajectory_replaces_the_old_one_from_where_that_is():
    arm = controller(0.0)
    arm.follow(["a"], points((100, 1.0), (200, 9.0)), 0, 0)
    arm.position_at(0)
    assert arm.position_at(50 * MS)[0] == 0.5
    arm.follow(["a"], points((100, 0.0)), 50 * MS, 50 * MS)
    assert [arm.position_at(t * MS)[0] for t in (50, 100, 150, 300)] == [0.5, 0.25, 0, 0]


def test_a_point_with_a_velocity_is_reached_by_the_cubic_that_keeps_the_velocity():
    arm = controller(0.0)
    arm.follow(["a"], points((100, 1.0)), 0, 0)
    arm.position_at(0)
    arm.position_at(50 * MS)
    # At 0.5 with 10 rad/s; to rest at 1.0 in 100 ms: p = 0.5 + 10 t - 50 t2, whose t3 term is nothing.
    arm.follow(["a"], points((100, 1.0, 0.0)), 50 * MS, 50 * MS)
    found = [arm.position_at(t * MS)[0] for t in (50, 75, 100, 150)]
    assert found == pytest.approx([0.5, 0.71875, 0.875, 1.0])


def test_points_that_are_past_are_jumped_over():
    arm = controller(0.0)
    assert arm.follow(["a"], points((10, 5.0), (20, 1.0), (40, 2.0)), 0, 30 * MS) is None
    assert arm.position_at(30 * MS)[0] == 1.5


def test_joints_are_taken_in_any_order():
    arm = controller(0.0, 0.0)
    arm.follow(["b", "a"], [Waypoint([2.0, 1.0], [], 10 * MS)], 0, 0)
    arm.position_at(0)
    assert arm.position_at(10 * MS).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("joints", "sent", "start_ns", "words"),
    [
        (["a"], [], 0, "it has no points"),
        (["b"], points((10, 1.0)), 0, "its joints are b; wanted a"),
        (["a", "a"], points((10, 1.0)), 0, "its joints are a, a; wanted a"),
        (["a"], points((10, 1.0)), -15 * MS, "it ended 5.0 ms ago"),
        (["a"], points((10, float("nan"))), 0, "point 0 is not finite"),
        (["a"], points((10, 1.0), (10, 1.0)), 0, "point 1 is not later than the one before"),
        (["a"], points((10, 1.0, 2.0)), 0, "its last point has a velocity that is not zero"),
        (["a"], [Waypoint([1.0, 2.0], [], 10 * MS)], 0, "point 0 has 2 positions and 0 velocities"),
    ],
)
def test_what_is_refused_is_counted_and_the_trajectory_before_goes_on(joints, sent, start_ns, words):
    arm = controller(0.0)
    arm.follow(["a"], points((100, 1.0)), 0, 0)
    arm.position_at(0)
    assert words in arm.follow(joints, sent, start_ns, 0)
    assert arm.refused == 1
    assert arm.position_at(50 * MS)[0] == 0.5


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 90), st.floats(-3, 3), st.integers(1, 60)), max_size=20),
    st.integers(1, 20),
)
def test_on_straight_lines_it_never_leaves_the_range_of_what_was_sent(messages, step_ms):
    arm, now_ms, seen = controller(0.0), 0, [0.0]
    for offset_ms, position, ahead_ms in messages:
        arm.follow(["a"], points((ahead_ms, position)), (now_ms + offset_ms) * MS, now_ms * MS)
        seen.append(position)
        for _ in range(3):
            now_ms += step_ms
            assert min(seen) - 1e-9 <= arm.position_at(now_ms * MS)[0] <= max(seen) + 1e-9
    if messages:
        assert arm.position_at((now_ms + 1000) * MS)[0] == seen[-1]


def test_a_command_is_kept_for_ever_and_a_wrong_one_is_refused_and_counted():
    gripper = CommandController(1)
    assert gripper.values is None
    assert gripper.take([0.25]) is None
    for wrong in ([], [1.0, 2.0], [float("nan")]):
        assert "command refused" in gripper.take(wrong)
    assert gripper.values.tolist() == [0.25]
    assert gripper.refused == 3
