"""The table in real time, on a time that the test makes."""

import numpy as np
import pytest

from vla_edge_ros.simulation.controllers import Waypoint
from vla_edge_ros.simulation.live_table import MOST_BEHIND_STEPS, LiveTable
from vla_edge_ros.simulation.renderer import with_sensor_noise
from vla_edge_ros.simulation.scene import JOINTS, PHYSICS_HZ

MS = 1_000_000


@pytest.fixture
def table():
    return LiveTable(3, "reach", 0)


def run(table, until_ms, period_ms=10):
    """Run it to `until_ms`; how often it was judged."""
    began_ms = round(1000 * table.time_s)
    return sum(table.run_to(t * MS) for t in range(began_ms, until_ms + 1, period_ms))


def test_it_runs_as_much_physics_as_there_was_time_and_judges_at_30_hz(table):
    assert run(table, 1000) == 30
    assert table.time_s == 1.0
    assert table.skipped_steps == 0


def test_nothing_moves_the_arm_until_a_message_does(table):
    before = table.scene.joint_positions
    run(table, 500)
    assert np.abs(table.scene.joint_positions - before).max() < 0.01


def test_the_arm_goes_where_a_trajectory_says(table):
    goal = table.scene.joint_positions + 0.1
    table.trajectory.follow(JOINTS, [Waypoint(goal, [], 300 * MS)], 0, 0)
    table.gripper.take([0.0])
    run(table, 1000)
    assert np.abs(table.scene.joint_positions - goal).max() < 0.01
    assert table.scene.gripper < 0.05


def test_a_jump_is_made_no_faster_than_the_policy_allows_and_ends_at_the_limits(table):
    start = table.scene.joint_positions
    table.trajectory.follow(JOINTS, [Waypoint([9.0] * 7, [], 1)], 0, 0)
    fastest = 0.0
    for t in range(0, 4000, 10):
        table.run_to(t * MS)
        fastest = max(fastest, np.abs(table.scene.joint_velocities[:6]).max())
    assert 1.0 < fastest < 2.0  # 1.8 rad/s, and what the servo overshoots
    assert np.allclose(table.scene.joint_positions, table.scene.joint_range[:, 1], atol=0.02)
    assert (table.scene.joint_positions > start).all()


def test_time_that_physics_was_kept_from_is_skipped_and_counted(table):
    run(table, 100)
    table.run_to(2100 * MS)
    assert table.skipped_steps == 2 * PHYSICS_HZ - MOST_BEHIND_STEPS
    assert table.time_s == pytest.approx(0.1 + MOST_BEHIND_STEPS / PHYSICS_HZ)
    steps = table.time_s
    table.run_to(2110 * MS)
    assert table.time_s == pytest.approx(steps + 3 / PHYSICS_HZ)


def test_an_episode_that_nobody_acts_in_fails_at_its_end_and_a_reset_begins_another(table):
    run(table, 6100)
    assert (table.task.is_over, table.task.has_succeeded) == (True, False)
    table.trajectory.follow(JOINTS, [Waypoint([0.0] * 7, [], 900 * MS)], None, 6100 * MS)
    table.reset(4, "track", 6100 * MS)
    start = table.scene.joint_positions
    assert (table.number, table.seed, table.task_name, table.time_s) == (2, 4, "track", 0.0)
    table.run_to(6200 * MS)
    assert np.abs(table.scene.joint_positions - start).max() < 0.01, "the old trajectory is forgotten"
    with pytest.raises(ValueError, match="task is 'juggle'; known are reach"):
        table.reset(4, "juggle", 0)


def test_noise_makes_equal_pictures_differ_by_one_level_at_most():
    rng = np.random.default_rng(0)
    frame = np.full((64, 128, 3), 255, np.uint8)
    first, second = with_sensor_noise(frame, rng), with_sensor_noise(frame, rng)
    assert not np.array_equal(first, second)
    assert first.min() == 254
