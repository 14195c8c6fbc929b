"""What reaches the controllers: nothing unless enabled, what is due in time, and a stop at the end."""

from robot import ARM, is_braking_point, nanoseconds, noise
from trajectory_msgs.msg import JointTrajectory

from vla_edge_ros.share import share_directory

REST = dict.fromkeys([*ARM, "gripper"], 0.1)


# Enabling


def test_without_joint_states_it_refuses_to_be_enabled_and_says_which_it_needs(robot):
    robot.until_tick(decision="FRESH")
    refusal = robot.enable()
    assert not refusal.success
    assert refusal.message == f"not enabled: no joint_states with {', '.join(ARM)} have arrived"
    robot.joints = {"joint1": 0.0}
    assert "joint2 is missing" in robot.until_logged("joint_states refused")
    assert not robot.enable().success
    robot.joints = REST
    robot.until(lambda: robot.enable().success)
    assert robot.until_event("enable")["is_enabled"] == "True"


def test_disabled_it_decides_and_sends_nothing(robot):
    robot.joints = REST
    robot.until_tick(decision="FRESH")
    robot.trajectories.clear()
    robot.commands.clear()
    ticks = robot.next_ticks(15)
    assert any(tick["decision"] == "FRESH" for tick in ticks)
    assert (robot.trajectories, robot.commands) == ([], [])


# Moving


def test_trajectories_name_the_groups_joints_and_lie_in_the_future(robot):
    heard = []
    robot.node.create_subscription(
        JointTrajectory,
        "/vla_edge_node/trajectory",
        lambda message, info: heard.append((message, info["source_timestamp"])),
        100,
    )
    robot.move()
    robot.until(lambda: len(heard) >= 10)
    moving = [(message, sent_ns) for message, sent_ns in heard if not message.points[0].velocities]
    effects = {int(tick["effect_stamp_ns"]) for tick in robot.ticks}
    for message, _ in moving[:-1]:
        assert message.joint_names == ARM
        assert nanoseconds(message.header.stamp) in effects
        for point in message.points:
            assert nanoseconds(point.time_from_start) > 0
            assert len(point.positions) == len(ARM)
            assert not point.velocities
    leads_ns = sorted(nanoseconds(message.header.stamp) - sent_ns for message, sent_ns in moving)
    assert leads_ns[len(leads_ns) // 2] > 0, "sent before it takes effect"
    # 1 rad/s for 33 ms from the measured 0.1 rad
    assert abs(moving[0][0].points[0].positions[0] - 0.1) <= 0.0334


def test_commands_have_full_width_on_every_tick_holds_included(robot):
    robot.move()
    robot.until(lambda: robot.commands)
    robot.commands.clear()
    ticks = robot.next_ticks(20)
    assert abs(len(robot.commands) - len(ticks)) <= 1
    robot.picture = None
    robot.until_tick(decision="HOLD_NO_FRAME")
    robot.commands.clear()
    robot.trajectories.clear()
    ticks = robot.next_ticks(4)
    assert {tick["decision"] for tick in ticks} == {"HOLD_NO_FRAME"}
    assert abs(len(robot.commands) - len(ticks)) <= 1
    assert all(len(command) == 1 for command in robot.commands)
    assert robot.trajectories == []


def test_a_policy_of_displacements_sends_seven_values_and_zeros_at_the_end(robot):
    robot.reconfigure(actions__policy_file=str(share_directory() / "config/policies/panda_ee_delta.yaml"))
    assert robot.enable().success, "it needs no joint states"
    robot.until(lambda: any(any(command[:6]) for command in robot.commands[-5:] if len(command) == 7))
    robot.disable()
    robot.next_ticks(1)
    assert robot.commands[-1][:6] == [0.0] * 6
    robot.reconfigure(actions__policy_file="")


def test_only_the_chosen_groups_are_told(robot):
    robot.reconfigure(actions__groups=["gripper"])
    assert robot.node.count_publishers("/vla_edge_node/trajectory") == 0
    robot.trajectories.clear()
    robot.commands.clear()
    assert robot.enable().success
    robot.until(lambda: len(robot.commands) >= 5)
    assert robot.trajectories == []
    robot.reconfigure(actions__groups=[""])


# Coming to rest


def test_disabling_sends_one_braking_point_and_then_nothing(robot):
    robot.move()
    assert robot.enable(False).success
    robot.until_rest()
    robot.next_ticks(2)
    robot.commands.clear()
    robot.next_ticks(10)
    assert is_braking_point(robot.trajectories[-1])
    assert robot.commands == []


def test_without_joint_states_or_camera_an_enabled_arm_is_stopped_and_goes_on_when_they_are_back(robot):
    robot.move()
    robot.joints = None
    assert "joint_states are" in robot.until_tick(decision="SAFE_STOP")["reason"]
    robot.until_rest()
    robot.joints = REST
    robot.until_tick(decision="FRESH", is_enabled="True")
    robot.trajectories.clear()
    robot.picture = None
    robot.until_tick(decision="SAFE_STOP")
    robot.until_rest()
    robot.picture = noise
    robot.until_tick(decision="FRESH", is_enabled="True")


def test_deactivating_brings_the_arm_to_rest_and_activating_again_does_not_move_it(robot):
    robot.move()
    assert robot.change("deactivate")
    robot.until_rest()
    assert "not active" in robot.enable().message
    robot.trajectories.clear()
    robot.commands.clear()
    assert robot.change("activate")
    robot.until_tick(decision="FRESH", is_enabled="False")
    robot.next_ticks(5)
    assert (robot.trajectories, robot.commands) == ([], [])
