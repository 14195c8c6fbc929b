"""What reaches the controllers over some ticks, one test a rule; random runs: test_planner_properties.py."""

import numpy as np
import pytest

from vla_edge_ros.actions.config import ActionConfig
from vla_edge_ros.actions.planner import ActionPlanner
from vla_edge_ros.actions.policy import Dimension, Group, Interface, Kind
from vla_edge_ros.actions.reading import PolicyError

MS = 1_000_000
PERIOD_NS = 33 * MS
VOCABULARY = 1000
# The bin nearest to 1.
ONE = 1 - 1 / 255
FAST = Dimension("a", Kind.POSITION, -1, 1, 100.0, 5.0)
LONG_LIFE = {"ttl_ns": 2000 * MS}


def positions(trajectory):
    return [list(point.positions) for point in trajectory.points]


def times_ms(trajectory):
    return [point.time_from_start_ns / MS for point in trajectory.points]


# Trajectories


def test_a_fresh_tick_sends_the_steps_of_its_chunk_timed_from_the_effect_time(loop_of, row):
    loop = loop_of([FAST], config=LONG_LIFE)
    loop.see(0.0)
    loop.fresh(row(0.2), row(0.4), row(-1))
    (trajectory,) = loop.trajectories
    assert trajectory.stamp_ns == loop.effect_ns
    assert trajectory.joints == ("a",)
    assert times_ms(trajectory) == [33, 66, 99]
    assert positions(trajectory) == pytest.approx(np.array([[0.2], [0.4], [-ONE]]), abs=1 / 255)
    assert [len(point.velocities) for point in trajectory.points] == [0, 0, 0]


def test_a_chunk_is_sent_once_and_a_hold_sends_no_trajectory(loop_of, row):
    loop = loop_of([FAST])
    loop.see(0.0)
    loop.fresh(row(0.2))
    loop.hold()
    assert loop.planner.trajectories(loop.effect_ns, loop.effect_ns) == []


def test_the_first_target_is_limited_from_the_measured_position_and_the_next_from_the_last(loop_of, row):
    loop = loop_of({"a": "position"})
    loop.see(0.5)
    loop.fresh(row(-1))
    assert positions(loop.trajectories[0]) == pytest.approx(np.array([[0.467]]))
    # The arm lags behind, which does not matter.
    loop.see(0.499)
    loop.fresh(row(-1))
    assert positions(loop.trajectories[0]) == pytest.approx(np.array([[0.434]]))


def test_skipped_ticks_do_not_allow_a_larger_step(loop_of, row):
    loop = loop_of({"a": "position"})
    loop.see(0.0)
    loop.fresh(row(1))
    loop.fresh(row(1), ticks=20)
    assert positions(loop.trajectories[0]) == pytest.approx(np.array([[0.066]]))


def test_a_new_chunk_starts_from_where_the_old_plan_is_by_then(loop_of, row):
    loop = loop_of({"a": "position"}, config=LONG_LIFE)
    loop.see(0.0)
    loop.fresh(*[row(1)] * 8)
    loop.fresh(*[row(-1)] * 8, ticks=3)
    assert positions(loop.trajectories[0])[0] == pytest.approx([0.099 - 0.033])


def test_a_slow_policy_asked_at_every_tick_gets_up_to_speed(loop_of, row):
    loop = loop_of({"a": "position"}, period_ms=99)
    loop.see(0.0)
    loop.fresh(row(1))
    assert positions(loop.trajectories[0]) == pytest.approx(np.array([[0.033]]))
    for _ in range(10):
        loop.fresh(row(1))
    # One period further with each tick: 1 unit a second.
    assert positions(loop.trajectories[0]) == pytest.approx(np.array([[11 * 0.033]]))


def test_a_measured_position_outside_the_limits_is_left_inwards_at_limited_speed(loop_of, row):
    loop = loop_of({"a": "position"})
    loop.see(1.2)
    targets = []
    for _ in range(8):
        loop.fresh(row(1))
        targets += positions(loop.trajectories[0])[0]
    # The target is half a bin inside, at 0.996.
    assert targets == pytest.approx([1.167, 1.134, 1.101, 1.068, 1.035, 1.002, ONE, ONE])


def test_joints_are_found_by_name_and_sent_in_the_order_of_their_group(loop_of, row, policy_of):
    groups = [
        Group("left", Interface.TRAJECTORY, "~/left", ("c", "a")),
        Group("right", Interface.TRAJECTORY, "~/right", ("b",)),
    ]
    loop = loop_of(None, policy=policy_of({"a": "position", "b": "position", "c": "position"}, groups=groups))
    loop.see(0.3, 0.2, 0.1, names=["c", "b", "a"])
    loop.fresh(row(0.1, 0.2, 0.3))
    left, right = loop.trajectories
    assert (left.group, left.joints) == ("left", ("c", "a"))
    assert positions(left) == pytest.approx(np.array([[0.3, 0.1]]), abs=1 / 255)
    assert positions(right) == pytest.approx(np.array([[0.2]]), abs=1 / 255)


def test_without_joint_states_nothing_is_sent_and_the_clamped_action_is_still_shown(loop_of, row):
    loop = loop_of({"a": "position"}, low=-5.0, high=5.0)
    loop.fresh(row(0.1))
    assert loop.trajectories == []
    assert loop.planner.last_action == pytest.approx([0.5], abs=5 / 255)
    loop.fresh(row(1))
    assert loop.planner.last_action == [1.0]


def test_old_joint_states_are_no_start(loop_of, row):
    loop = loop_of({"a": "position"})
    loop.see(0.0)
    assert loop.planner.why_not_ready(loop.effect_ns + 99 * MS) is None
    assert "100 ms old" in loop.planner.why_not_ready(loop.effect_ns + 100 * MS)
    loop.fresh(row(1), ticks=5)
    assert loop.trajectories == []


def test_a_plan_that_was_never_sent_is_not_sent_for_a_later_chunk(loop_of, row):
    loop = loop_of({"a": "position"})
    loop.see(0.0)
    loop.planner.accept(loop.tokens(row(1)), VOCABULARY, loop.effect_ns, loop.effect_ns)
    loop.fresh(row(1), ticks=10)
    assert loop.trajectories == []


# Cancelling


def test_cancelling_sends_the_point_where_the_plan_comes_to_rest(loop_of, row):
    loop = loop_of({"a": "position", "b": "position"}, config=LONG_LIFE)
    loop.see(0.0, 0.0)
    loop.fresh(*[row(1, 0)] * 8)
    loop.hold(2)
    now = loop.effect_ns
    (stop,) = loop.planner.cancel(now, now + PERIOD_NS, stamp_ns=7_000 * MS)
    # At the effect time the plan is 3 periods on, at 1 unit a second; 5 a second squared stop that in 0.2 s.
    assert stop.stamp_ns == 7_000 * MS
    assert times_ms(stop) == [200]
    assert positions(stop) == pytest.approx(np.array([[0.099 + 0.1, 0.0]]), abs=1 / 255)
    assert list(stop.points[0].velocities) == [0.0, 0.0]


def test_a_plan_that_has_come_to_its_end_is_kept_there(loop_of, row):
    loop = loop_of({"a": "position"})
    loop.see(0.0)
    loop.fresh(row(1))
    loop.hold(10)
    (stop,) = loop.cancel()
    assert positions(stop) == pytest.approx(np.array([[0.033]]))
    # Twice the time to the effect, so that no controller speeds up to be there.
    assert times_ms(stop) == [66]


def test_a_stop_that_comes_after_its_effect_time_starts_now(loop_of, row):
    loop = loop_of({"a": "position"}, config=LONG_LIFE)
    loop.see(0.0)
    loop.fresh(*[row(1)] * 8)
    effect = loop.effect_ns
    (stop,) = loop.planner.cancel(effect + 66 * MS, effect, stamp_ns=5_000 * MS)
    assert stop.stamp_ns == 5_066 * MS
    assert times_ms(stop) == [200]
    assert positions(stop) == pytest.approx(np.array([[0.066 + 0.1]]))


def test_there_is_nothing_to_cancel_before_a_trajectory_and_after_a_cancel(loop_of, row):
    loop = loop_of({"a": "position"})
    loop.see(0.0)
    assert loop.cancel() == []
    loop.fresh(row(1))
    assert len(loop.cancel()) == 1
    assert loop.cancel() == []
    loop.fresh(row(1))
    loop.planner.reset()
    assert loop.cancel() == []


def test_what_was_accepted_and_not_sent_while_disabled_is_not_cancelled(loop_of, row):
    loop = loop_of({"a": "position"})
    loop.see(0.0)
    loop.planner.accept(loop.tokens(row(1)), VOCABULARY, loop.effect_ns, loop.effect_ns)
    assert loop.cancel() == []


def test_after_a_cancel_the_next_target_is_limited_from_the_measured_position(loop_of, row):
    loop = loop_of({"a": "position"})
    loop.see(0.0)
    loop.fresh(row(1))
    loop.cancel()
    loop.see(0.7)
    loop.fresh(row(-1))
    assert positions(loop.trajectories[0]) == pytest.approx(np.array([[0.667]]))


def test_a_reset_after_three_of_eight_steps_drops_five_and_nothing_old_is_sent(loop_of, row):
    # 255 bins of 1 unit: their centres are whole numbers.
    dimensions = [Dimension("x", Kind.EE_DELTA, -9, 9, 1000.0)]
    loop = loop_of(dimensions, interface="command", config=LONG_LIFE, low=-127.5, high=127.5)
    sent = [loop.fresh(*[row(1 / 127.5)] * 8)["group"], loop.hold()["group"], loop.hold()["group"]]
    assert sent == [[1.0]] * 3
    loop.cancel()
    assert loop.planner.steps_dropped == 5
    assert loop.fresh(*[row(2 / 127.5)] * 8)["group"] == [2.0]
    assert loop.planner.steps_dropped == 5


# Commands


def test_commands_follow_the_chunk_through_holds_until_its_time_to_live(loop_of, row):
    loop = loop_of([FAST], interface="command")
    loop.see(0.0)
    sent = [loop.fresh(*[row(i / 10) for i in range(1, 9)])["group"][0]]
    sent += [loop.hold()["group"][0] for _ in range(6)]
    # 45 ms old, 4 steps of 33 ms are younger than 200 ms at their end.
    assert loop.accepted.steps_dropped == 4
    assert sent == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4], abs=1 / 255)


def test_commands_move_by_one_period_a_tick_from_the_measured_position(loop_of, row):
    loop = loop_of({"a": "position"}, interface="command", period_ms=99)
    loop.see(0.5)
    sent = [loop.fresh(row(-1))["group"][0], loop.hold()["group"][0], loop.hold()["group"][0]]
    assert sent == pytest.approx([0.467, 0.434, 0.401])


def test_skipped_ticks_do_not_allow_a_larger_command(loop_of, row):
    loop = loop_of({"a": "position"}, interface="command")
    loop.see(0.0)
    assert loop.fresh(row(1))["group"] == pytest.approx([0.033])
    assert loop.fresh(row(1), ticks=10)["group"] == pytest.approx([0.066])


def test_asking_twice_for_the_same_tick_moves_nothing_further(loop_of, row):
    loop = loop_of({"a": "position"}, interface="command")
    loop.see(0.0)
    first = loop.fresh(row(1))
    assert loop.hold(ticks=0) == first


def test_before_any_step_a_position_is_held_where_the_arm_was_first_seen(loop_of):
    loop = loop_of({"a": "position"}, interface="command")
    assert loop.hold() == {}
    loop.see(1.7)
    assert loop.hold() == {"group": [1.7]}
    loop.see(0.2)
    assert loop.hold() == {"group": [1.7]}


def test_without_joint_states_no_position_is_commanded(loop_of, row):
    loop = loop_of({"a": "position"}, interface="command")
    assert loop.fresh(row(0.5)) == {}
    assert loop.hold() == {}
    assert loop.planner.last_action == pytest.approx([0.5], abs=1 / 255)


def test_a_position_measured_too_long_ago_is_not_held(loop_of):
    loop = loop_of({"a": "position"}, interface="command")
    loop.see(0.4)
    assert loop.hold(ticks=5) == {}


def test_a_gripper_is_not_commanded_before_its_first_step_and_latched_afterwards(loop_of, row):
    loop = loop_of([Dimension("gripper", Kind.GRIPPER, 0, 1, 100.0)], interface="command")
    assert loop.planner.why_not_ready(loop.effect_ns) is None
    assert loop.hold() == {}
    closed = loop.fresh(row(0.4))
    assert closed["group"] == pytest.approx([0.4], abs=1 / 255)
    assert loop.hold(30) == closed
    loop.cancel()
    assert loop.hold() == closed


def test_what_a_gripper_was_to_do_while_disabled_is_not_sent_on_enabling(loop_of, row):
    loop = loop_of({"g": "gripper", "x": "ee_delta"}, interface="command")
    loop.fresh(row(0.4, 0.1))
    loop.planner.reset()
    assert loop.hold() == {}


@pytest.mark.parametrize("kind", ["velocity", "ee_delta"])
def test_a_held_motion_decays_to_zero_within_100_ms(loop_of, row, kind):
    loop = loop_of([Dimension("a", Kind(kind), -1, 1, 100.0)], interface="command")
    first = loop.fresh(row(-1))["group"][0]
    sent = [loop.hold()["group"][0] for _ in range(5)]
    assert first == pytest.approx(-ONE)
    assert sent == pytest.approx([first * 0.67, first * 0.34, first * 0.01, 0, 0])


def test_no_motion_outlives_the_time_to_live(loop_of, row):
    loop = loop_of({"a": "velocity"}, interface="command")
    sent = [loop.fresh(*[row(1)] * 8)["group"][0]] + [loop.hold()["group"][0] for _ in range(6)]
    # The last of four steps is sent 144 ms after the capture; 200 ms after it everything is over.
    assert sent == pytest.approx([ONE] * 4 + [ONE * (200 - 177) / (200 - 144), 0, 0])


def test_no_motion_is_sent_once_a_hold_has_lasted_too_long(loop_of, row):
    loop = loop_of({"a": "velocity"}, interface="command", config=LONG_LIFE | {"max_hold_ns": 50 * MS})
    sent = [loop.fresh(*[row(1)] * 8)["group"][0]] + [loop.hold()["group"][0] for _ in range(3)]
    assert sent == pytest.approx([ONE, ONE, 0, 0])


def test_a_motion_decays_after_a_cancel_and_ends_at_once_before_silence(loop_of, row):
    loop = loop_of({"a": "velocity"}, interface="command", config=LONG_LIFE)
    loop.fresh(*[row(1)] * 8)
    loop.cancel()
    assert loop.hold()["group"] == pytest.approx([ONE * 0.67])
    (rest,) = loop.planner.rest_commands()
    assert list(rest.values) == [0.0]
    assert loop.hold()["group"] == [0.0]


def test_before_silence_positions_and_grippers_stay_as_they_are(loop_of, row):
    loop = loop_of({"a": "position", "g": "gripper", "v": "velocity"}, interface="command")
    loop.see(0.01, 0, 0)
    before = loop.fresh(row(0, 0.5, 1))["group"]
    (rest,) = loop.planner.rest_commands()
    assert list(rest.values) == [*before[:2], 0.0]


@pytest.mark.parametrize("kind", ["velocity", "ee_delta"])
def test_a_motion_is_zero_until_its_first_step_and_again_after_a_reset(loop_of, row, kind):
    loop = loop_of({"a": kind}, interface="command", config=LONG_LIFE)
    assert loop.hold() == {"group": [0.0]}
    loop.fresh(*[row(1)] * 8)
    loop.planner.reset()
    assert loop.planner.steps_dropped == 7
    assert loop.hold() == {"group": [0.0]}


def test_a_velocity_is_bounded_by_its_range_and_its_greatest_speed(loop_of, row):
    dimensions = [
        Dimension("a", Kind.VELOCITY, -0.2, 0.9, 0.5),
        Dimension("b", Kind.VELOCITY, -0.2, 0.9, 5.0),
    ]
    loop = loop_of(dimensions, interface="command")
    assert loop.fresh(row(1, 1))["group"] == [0.5, 0.9]
    assert loop.fresh(row(-1, -1))["group"] == [-0.2, -0.2]


def test_a_delta_is_bounded_by_what_one_tick_may_add(loop_of, row):
    loop = loop_of([Dimension("x", Kind.EE_DELTA, -1, 1, 0.5)], interface="command")
    assert loop.fresh(row(1))["group"] == pytest.approx([0.5 * 0.033])


def test_the_array_of_a_group_is_the_same_one_on_every_tick(loop_of, row):
    loop = loop_of({"a": "velocity"}, interface="command")
    loop.fresh(row(1))
    (first,) = loop.planner.commands(loop.effect_ns, 0)
    loop.hold()
    (second,) = loop.planner.commands(loop.effect_ns, PERIOD_NS)
    assert first.values is second.values
    assert first.values.typecode == "d"


# Joint deltas


@pytest.mark.parametrize("interface", ["trajectory", "command"])
def test_joint_deltas_add_up_from_the_measured_and_then_from_the_commanded_position(loop_of, row, interface):
    loop = loop_of(
        [Dimension("a", Kind.JOINT_DELTA, -1, 1, 1.0, 5.0)], interface, low=-0.02, high=0.02, config=LONG_LIFE
    )
    loop.see(0.3)
    loop.fresh(row(1), row(1))
    assert loop.planner.last_action == pytest.approx([0.3 + 0.02 * ONE])
    if interface == "trajectory":
        assert positions(loop.trajectories[0])[1] == pytest.approx([0.3 + 0.04 * ONE])
    loop.hold()
    assert loop.planner.last_action == pytest.approx([0.3 + 0.04 * ONE])
    # Sunk a little under its load: the command does not sink with it.
    loop.see(0.29)
    loop.fresh(row(0), row(0))
    assert loop.planner.last_action == pytest.approx([0.3 + 0.04 * ONE], abs=1e-3)
    loop.hold(5)
    assert loop.planner.last_action == pytest.approx([0.3 + 0.04 * ONE], abs=1e-3)


@pytest.mark.parametrize("interface", ["trajectory", "command"])
def test_the_command_of_a_joint_that_is_held_back_stays_on_a_leash(loop_of, row, interface):
    loop = loop_of([Dimension("a", Kind.JOINT_DELTA, -1, 1, 1.0, 5.0)], interface, low=-0.03, high=0.03)
    for _ in range(40):
        loop.see(0.0)
        loop.fresh(row(1))
    # What full speed covers in the 100 ms that a joint state may be old, and one delta.
    assert loop.planner.last_action[0] <= 0.1 + 0.03


def test_joint_deltas_stop_at_the_limit(loop_of, row):
    loop = loop_of([Dimension("a", Kind.JOINT_DELTA, -1, 1, 1.0, 5.0)], low=-0.03, high=0.03)
    loop.see(0.99)
    loop.fresh(row(1))
    assert loop.planner.last_action == [1.0]


# What comes in


def test_ids_that_are_no_actions_are_refused_counted_and_change_nothing(loop_of, row):
    loop = loop_of({"a": "velocity"}, interface="command", config=LONG_LIFE)
    loop.fresh(*[row(1)] * 3)
    accepted = loop.planner.accept(np.array([[10], [999]]), VOCABULARY, loop.effect_ns, loop.effect_ns)
    assert (accepted.steps_left, accepted.steps_dropped) == (0, 2)
    assert "token 10 is no action" in accepted.refusal
    assert loop.planner.steps_dropped == 2
    assert loop.hold()["group"] == pytest.approx([ONE])


@pytest.mark.parametrize("shape", [(1, 2), (1,), (), (1, 1, 1)])
def test_tokens_of_another_shape_are_refused(loop_of, shape):
    loop = loop_of({"a": "velocity"}, interface="command")
    accepted = loop.planner.accept(np.full(shape, 999), VOCABULARY, loop.effect_ns, loop.effect_ns)
    assert accepted.steps_left == 0
    assert "wanted (steps, 1)" in accepted.refusal


def test_no_step_left_is_said_and_sends_nothing(loop_of, row):
    loop = loop_of({"a": "position"})
    loop.see(0.0)
    loop.fresh(row(1), capture_ms=190)
    assert (loop.accepted.steps_left, loop.accepted.steps_dropped) == (0, 1)
    assert loop.accepted.refusal is None
    assert loop.trajectories == []
    assert loop.planner.last_action is None


def test_joint_states_are_refused_with_a_reason_and_counted(loop_of):
    loop = loop_of({"a": "position", "b": "position"})
    assert "b is missing" in loop.see(0.0, names=["a"])
    assert loop.planner.joint_states_refused == 1


def test_only_joints_that_are_sent_need_joint_states(loop_of, policy_of, row):
    groups = [
        Group("arm", Interface.TRAJECTORY, "~/trajectory", ("a",)),
        Group("hand", Interface.COMMAND, "~/command", ("g",)),
    ]
    policy = policy_of({"a": "position", "g": "gripper"}, groups=groups)
    assert "with a have arrived" in ActionPlanner(policy, ActionConfig(PERIOD_NS)).why_not_ready(0)
    loop = loop_of(None, policy=policy.with_groups(["hand"]))
    assert loop.planner.why_not_ready(0) is None
    assert loop.fresh(row(0.5, 0.5)) == {"hand": pytest.approx([0.5], abs=1 / 255)}
    assert loop.planner.last_action == pytest.approx([0.5, 0.5], abs=1 / 255)


def test_a_gripper_in_a_trajectory_is_measured_like_its_neighbours(loop_of):
    loop = loop_of({"a": "position", "g": "gripper"})
    assert "with a, g have arrived" in loop.planner.why_not_ready(0)


# Configuration


@pytest.mark.parametrize("kind", ["joint_delta", "ee_delta", "velocity"])
def test_the_capture_anchors_absolute_positions_only(policy_of, kind):
    policy = policy_of({"a": kind}, interface="command")
    with pytest.raises(PolicyError, match="capture is for absolute positions and a of it are not"):
        ActionPlanner(policy, ActionConfig(PERIOD_NS, anchor="capture"))


def test_a_policy_too_slow_for_the_time_to_live_is_refused(policy_of):
    policy = policy_of({"a": "position"}, period_ms=200)
    with pytest.raises(PolicyError, match=r"action_period_ms of 200 is not below actions.ttl_ms of 200"):
        ActionPlanner(policy, ActionConfig(PERIOD_NS))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"period_ns": 0}, "period_ns is 0, wanted above 0"),
        ({"ttl_ns": -1}, "ttl_ns is -1"),
        ({"max_hold_ns": -1}, "max_hold_ns is -1, wanted at least 0"),
        ({"anchor": "now"}, "actions.anchor is 'now', wanted effect or capture"),
    ],
)
def test_a_bad_configuration_is_refused(change, said):
    with pytest.raises(PolicyError, match=said):
        ActionConfig(**({"period_ns": PERIOD_NS} | change))


def test_what_is_probably_not_meant_is_a_warning(policy_of):
    slow = policy_of({"x": "ee_delta"}, interface="command", period_ms=50)
    (warning,) = ActionPlanner(slow, ActionConfig(PERIOD_NS)).warnings
    assert "deltas are for 50 ms each and sent every 33 ms" in warning
    quick = policy_of({"a": "position"}, period_ms=15)
    (warning,) = ActionPlanner(quick, ActionConfig(PERIOD_NS)).warnings
    assert "action_period_ms of 15 is below actions.min_lead_ms of 20" in warning


# Fewer tokens than dimensions


@pytest.mark.parametrize("interface", ["trajectory", "command"])
def test_dimensions_that_were_not_decoded_stay_where_they_were_commanded_to_be(loop_of, row, interface):
    loop = loop_of({"a": "joint_delta", "b": "joint_delta", "g": "gripper"}, interface=interface)
    loop.see(0.0, 0.5, 0.25)
    loop.fresh(row(0.02, 0.02, 0.25))
    before = loop.planner.last_action
    # The arm sags, which moves no command.
    loop.see(0.01, 0.51, 0.2)
    loop.fresh(row(0.02))
    assert loop.accepted.steps_left == 1
    after = loop.planner.last_action
    assert after[0] > before[0] + 0.01
    assert after[1:] == pytest.approx(before[1:], abs=1e-12)
    # A whole action goes on from there.
    loop.see(0.03, 0.52, 0.25)
    loop.fresh(row(0.02, 0.02, 0.27))
    assert loop.planner.last_action[1] > before[1] + 0.01


def test_an_action_with_too_few_tokens_for_its_kinds_is_refused_and_the_chunk_before_goes_on(loop_of, row):
    loop = loop_of({"x": "ee_delta", "y": "ee_delta", "g": "gripper"}, interface="command")
    loop.fresh(row(0.5, 0.5))
    assert loop.accepted.steps_left == 0, "a gripper that was never told where to be cannot be held"
    loop.fresh(row(0.5, 0.5, 0.5))
    loop.fresh(row(0.25, 0.25))
    assert loop.accepted.steps_left == 1
    loop.fresh(row(0.25))
    assert loop.accepted.steps_left == 0 and "(steps, 2 to 3)" in loop.accepted.refusal
