from array import array

import pytest

from vla_edge_ros.actions.joints import JointStates

MS = 1_000_000
WANTED = ("pan", "lift", "elbow", "w1", "w2", "w3")


@pytest.fixture
def joints():
    return JointStates(WANTED, max_age_ns=100 * MS)


def test_positions_are_taken_by_name_whatever_their_order(joints):
    names = ["elbow", "lift", "pan", "w1", "w2", "w3"]
    assert joints.observe(names, array("d", [3, 2, 1, 4, 5, 6]), array("d"), 0) is None
    assert joints.latest.positions == [1, 2, 3, 4, 5, 6]


def test_other_joints_in_the_message_do_not_matter(joints):
    names = ["finger", *WANTED, "base"]
    assert joints.observe(names, [float("nan"), 1, 2, 3, 4, 5, 6, 9], None, 0) is None
    assert joints.latest.positions == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("names", "positions", "velocities", "said"),
    [
        (WANTED[:5], [0] * 5, [], "w3 is missing, it has pan, lift, elbow, w1, w2"),
        ([], [], [], "pan is missing, it has no joints"),
        ((*WANTED, "pan"), [0] * 7, [], "pan is there more than once"),
        ((*WANTED, "base", "base"), [0] * 8, [], "base is there more than once"),
        (WANTED, [0, float("nan"), 0, 0, 0, 0], [], "lift is at nan"),
        (WANTED, [0, 0, 0, 0, 0, float("-inf")], [], "w3 is at -inf"),
        (WANTED, [0] * 5, [], "5 positions for 6 names"),
        (WANTED, [], [], "0 positions for 6 names"),
        (WANTED, [0] * 6, [0] * 5, "5 velocities for 6 names"),
    ],
)
def test_a_message_not_to_be_relied_on_is_refused_and_counted(joints, names, positions, velocities, said):
    joints.observe(WANTED, [1] * 6, [], 5)
    refusal = joints.observe(names, positions, velocities, 7)
    assert refusal == f"joint_states refused: {said}"
    assert joints.refused == 1
    assert joints.latest.receipt_ns == 5
    assert joints.latest.positions == [1] * 6


def test_a_refusal_is_a_line_of_bounded_length_whatever_the_names(joints):
    refusal = joints.observe([f"\x1b[31m{i}\n" for i in range(10_000)], [0] * 10_000, [], 7)
    assert refusal.isprintable()
    assert len(refusal) <= 1000


def test_unused_velocities_may_be_anything(joints):
    assert joints.observe(WANTED, [0] * 6, [float("nan")] * 6, 0) is None


def test_positions_are_relied_on_while_younger_than_the_limit(joints):
    assert "no joint_states with pan, lift, elbow, w1, w2, w3 have arrived" in joints.why_not_ready(0)
    joints.observe(WANTED, [0] * 6, [], 1_000 * MS)
    assert joints.why_not_ready(1_000 * MS) is None
    assert joints.why_not_ready(1_100 * MS - 1) is None
    assert joints.why_not_ready(1_100 * MS) == "joint_states are 100 ms old, wanted below 100 ms"


def test_who_needs_no_joints_is_always_ready():
    assert JointStates((), 100 * MS).why_not_ready(0) is None


def test_a_later_message_does_not_change_what_a_reader_holds(joints):
    joints.observe(WANTED, [1] * 6, [], 0)
    held = joints.latest
    joints.observe(WANTED, [2] * 6, [], 1)
    assert held.positions == [1] * 6


def test_each_state_is_told_once_to_the_record(joints):
    names = ["pan", "lift", "elbow", "w1", "w2", "w3"]
    for at_ns in (1, 2):
        joints.observe(names, [float(at_ns)] * 6, None, at_ns)
    joints.observe(names[:-1], [3.0] * 5, None, 3)
    assert [state.receipt_ns for state in joints.take_untold()] == [1, 2]
    assert joints.take_untold() == []
