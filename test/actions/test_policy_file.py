import copy
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import yaml

from vla_edge_ros.actions.config import ActionConfig
from vla_edge_ros.actions.policy import Interface, Kind, load_policy
from vla_edge_ros.actions.reading import PolicyError

EXAMPLES = Path(__file__).resolve().parents[2] / "config" / "policies"

GOOD = {
    "name": "arm",
    "statistics": "statistics.json",
    "action_period_ms": 50,
    "dimensions": [
        {
            "name": "pan",
            "kind": "position",
            "min": -1,
            "max": 1.5,
            "max_velocity": 2,
            "max_acceleration": 4.0,
        },
        {"name": "x", "kind": "ee_delta", "min": -0.01, "max": 0.01, "max_velocity": 0.2},
        {"name": "gripper", "kind": "gripper", "min": 0.0, "max": 1.0, "max_velocity": 1.0},
    ],
    "groups": [
        {"name": "arm", "interface": "trajectory", "joints": ["pan"]},
        {"name": "hand", "interface": "command", "topic": "/hand/commands", "joints": ["gripper", "x"]},
    ],
}
STATISTICS = {"action": {"q01": [-1, -0.01, 0], "q99": [1, 0.01, 1], "mask": [True, True, False]}}


@pytest.fixture
def load(tmp_path):
    def write_and_load(content, statistics=STATISTICS):
        (tmp_path / "statistics.json").write_text(json.dumps(statistics))
        path = tmp_path / "arm.yaml"
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return load_policy(path)

    return write_and_load


def changed(*path_and_value):
    """GOOD with one entry replaced; a value of None takes the key away."""
    content = copy.deepcopy(GOOD)
    *path, last, value = path_and_value
    place = content
    for step in path:
        place = place[step]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return content


def refusal(load, *arguments) -> str:
    with pytest.raises(PolicyError) as caught:
        load(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_policy_is_read_with_its_statistics(load):
    policy = load(GOOD)
    assert policy.name == "arm"
    assert policy.action_period_ns == 50_000_000
    assert [d.kind for d in policy.dimensions] == [Kind.POSITION, Kind.EE_DELTA, Kind.GRIPPER]
    assert (policy.dimensions[0].max, policy.dimensions[0].max_acceleration) == (1.5, 4.0)
    assert policy.dimensions[1].max_acceleration is None
    assert policy.groups[0].topic == "~/trajectory"
    assert policy.groups[1].topic == "/hand/commands"
    assert policy.groups[1].joints == ("gripper", "x")
    assert policy.columns(Interface.TRAJECTORY) == [0]
    assert policy.columns(Interface.COMMAND) == [1, 2]
    assert policy.statistics.high.tolist() == [1, 0.01, 1]
    assert policy.warnings == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (changed("nmae", "arm"), "unknown key nmae; known are action_period_ms, "),
        (changed("dimensions", 0, "unit", "rad"), "dimensions[0]: unknown key unit"),
        (changed("groups", 0, "controller", "x"), "groups[0]: unknown key controller"),
        (changed("dimensions", 0, True, 1), "dimensions[0]: unknown key True"),
        (changed("statistics", None), "has no statistics"),
        (changed("dimensions", 0, "max_velocity", None), "dimensions[0]: has no max_velocity"),
        (changed("groups", 0, "joints", None), "groups[0]: has no joints"),
        (
            changed("dimensions", 0, "kind", "angle"),
            "(pan): kind is 'angle', wanted one of position, velocity",
        ),
        (changed("dimensions", 0, "kind", []), "(pan): kind is an empty list, wanted one of"),
        (
            changed("groups", 0, "interface", "action"),
            "(arm): interface is 'action', wanted one of trajectory",
        ),
        (changed("dimensions", 2, "name", "x"), "dimension x is there more than once"),
        (changed("groups", 1, "name", "arm"), "group arm is there more than once"),
        (changed("groups", 1, "topic", "~/trajectory"), "topic ~/trajectory is there more than once"),
        (changed("groups", 1, "joints", ["x"]), "dimension gripper is in no group"),
        (
            changed("groups", 1, "joints", ["gripper", "x", "pan"]),
            "joint of the groups pan is there more than",
        ),
        (changed("groups", 1, "joints", ["gripper", "x", "x"]), "joint of the groups x is there more than"),
        (changed("groups", 1, "joints", ["gripper", "x", "y"]), "joint 'y', wanted one of pan, x, gripper"),
        (changed("groups", 0, "joints", "pan"), "(arm): joints is 'pan', wanted a list"),
        (changed("groups", 0, "joints", [1]), "(arm): joints[0] is 1, wanted one line of text"),
        (changed("groups", 0, "topic", "no topic"), "topic 'no topic' is no ROS topic name"),
        (changed("dimensions", 0, "min", 1.5), "(pan): min is 1.5 and max is 1.5, wanted min below max"),
        (changed("dimensions", 0, "min", 2.0), "(pan): min is 2 and max is 1.5"),
        (changed("dimensions", 0, "min", float("-inf")), "(pan): min is -inf, wanted a finite number"),
        (changed("dimensions", 0, "max", float("nan")), "(pan): max is nan, wanted a finite number"),
        (changed("dimensions", 0, "max", True), "(pan): max is true, wanted a number"),
        (changed("dimensions", 0, "max_velocity", 0), "(pan): max_velocity is 0, wanted a number above 0"),
        (changed("dimensions", 0, "max_velocity", -1.0), "(pan): max_velocity is -1"),
        (changed("dimensions", 0, "max_velocity", "1e-3"), "write an exponent as 1.0e-3"),
        (changed("dimensions", 0, "max_acceleration", 0.0), "(pan): max_acceleration is 0"),
        (changed("dimensions", 1, "min", 0.005), "ee_delta from 0.005 to 0.01 cannot come to rest"),
        (
            changed("dimensions", 0, "name", True),
            "dimensions[0]: name is true, wanted one line of text; put quo",
        ),
        (changed("dimensions", 0, "name", "a\nb"), r"name is 'a\nb', wanted one line of text"),
        (changed("dimensions", []), "dimensions is an empty list"),
        (changed("dimensions", "pan"), "dimensions is 'pan', wanted a list"),
        (changed("dimensions", 0, "pan"), "dimensions[0] holds 'pan', wanted a mapping"),
        (changed("groups", {}), "groups is an empty mapping, wanted a list"),
        (changed("action_period_ms", 0), "action_period_ms is 0, wanted a number above 0"),
        (changed("action_period_ms", "fast"), "action_period_ms is 'fast', wanted a number"),
        (changed("name", 7), "name is 7, wanted one line of text"),
        (changed("dataset", "data"), "leave dataset: data out"),
        (changed("statistics", "none.json"), "none.json: cannot be read: No such file"),
        ("", "holds nothing, wanted a mapping"),
        ("- a\n- b\n", "holds a list, wanted a mapping"),
        ("name: [", "cannot be parsed"),
        ("name: !!python/object:os.system {}", "cannot be parsed"),
        ("name: 2024-13-01\n", "cannot be parsed"),
        ("name: !!timestamp x\n", "cannot be parsed"),
        ("name: " + "[" * 5000, "cannot be parsed"),
        (
            changed("dimensions", 0, "max_acceleration", 1e-300),
            "(pan): max_acceleration 1e-300 takes over 60 s to stop from max_velocity",
        ),
        ("{}", "has no action_period_ms, dimensions, groups, name, statistics"),
    ],
)
def test_a_bad_policy_is_refused_in_one_line(load, content, said):
    message = refusal(load, content)
    assert said in message
    assert ".yaml" in message or ".json" in message


def test_a_device_is_not_read_to_its_end(load):
    assert "/dev/zero: cannot be read: Not a regular file" in refusal(
        load, changed("statistics", "/dev/zero")
    )


@pytest.mark.parametrize("kind", ["velocity", "ee_delta"])
def test_only_positions_go_through_a_trajectory(load, kind):
    content = changed("dimensions", 0, "kind", kind)
    assert f"group arm is of positions and pan is {kind}; put it into a group" in refusal(load, content)


def test_more_than_eight_dimensions_are_refused(load):
    content = copy.deepcopy(GOOD)
    content["dimensions"] += [GOOD["dimensions"][0] | {"name": f"joint{i}"} for i in range(6)]
    content["groups"][0]["joints"] += [f"joint{i}" for i in range(6)]
    assert "has 9 dimensions, wanted at most 8" in refusal(load, content)


def test_statistics_of_another_length_are_refused(load):
    statistics = {"action": {"q01": [0] * 7, "q99": [1] * 7}}
    message = refusal(load, GOOD, statistics)
    assert "has 3 dimensions, its statistics" in message
    assert "have 7" in message


def test_statistics_beyond_the_limits_are_worth_a_warning(load):
    in_degrees = {"action": STATISTICS["action"] | {"q01": [-90, -0.01, 0], "q99": [90, 0.01, 1]}}
    (warning,) = load(GOOD, in_degrees).warnings
    assert "pan is from -90 to 90 by q01/q99, its limits are -1 to 1.5" in warning


def test_groups_are_chosen_by_name(load):
    policy = load(GOOD)
    assert policy.with_groups([""]) == policy.with_groups([]) == policy
    only_hand = policy.with_groups(["hand"])
    assert [group.name for group in only_hand.groups] == ["hand"]
    assert only_hand.dimensions == policy.dimensions
    with pytest.raises(PolicyError, match="has no group 'head', its groups are arm, hand"):
        policy.with_groups(["head"])


@pytest.mark.parametrize("name", ["demo_arm", "so101", "panda_ee_delta"])
def test_the_bundled_policies_fit_the_default_configuration_without_a_warning(name):
    policy = load_policy(EXAMPLES / f"{name}.yaml")
    config = ActionConfig(period_ns=33_333_000)
    config.check(policy)
    assert policy.name == name
    assert policy.warnings + config.warnings(policy) == []


def test_the_so101_policy_has_the_joints_and_stays_in_the_limits_of_the_arm(shared):
    arm = shared / "arms" / "so101"
    joints = ElementTree.parse(arm / "so101_new_calib.urdf").getroot().iter("joint")
    limits = {joint.get("name"): joint.find("limit") for joint in joints if joint.find("limit") is not None}
    policy = load_policy(EXAMPLES / "so101.yaml")
    assert {d.name for d in policy.dimensions} == set(limits)
    for dimension in policy.dimensions:
        limit = limits[dimension.name]
        assert dimension.min >= float(limit.get("lower"))
        assert dimension.max <= float(limit.get("upper"))
        assert dimension.max_velocity <= float(limit.get("velocity"))
    controllers = yaml.safe_load((arm / "so101_controllers.yaml").read_text())["/follower"]
    arm_controller = controllers["arm_controller"]["ros__parameters"]
    assert list(policy.groups[0].joints) == arm_controller["joints"]


def test_the_so101_policy_takes_the_arms_own_recorded_statistics(shared, tmp_path):
    stats = shared / "policies" / "so101_wrist_stats" / "stats.json"
    content = yaml.safe_load((EXAMPLES / "so101.yaml").read_text()) | {"statistics": str(stats)}
    path = tmp_path / "so101.yaml"
    path.write_text(yaml.safe_dump(content))
    warnings = load_policy(path).warnings
    # The arm rests a little beyond the limits of its description in two joints, and never moved.
    assert "constant" in warnings[0]
    assert [warning.split(" is from")[0].split()[-1] for warning in warnings[1:]] == [
        "shoulder_lift",
        "elbow_flex",
    ]


def test_the_panda_policy_takes_the_statistics_of_a_real_seven_dimensional_policy(shared, tmp_path):
    stats = shared / "policies" / "vla_adapter_qwen25_0_5b" / "config.json"
    content = yaml.safe_load((EXAMPLES / "panda_ee_delta.yaml").read_text())
    path = tmp_path / "panda.yaml"
    path.write_text(yaml.safe_dump(content | {"statistics": str(stats), "dataset": "bridge_orig"}))
    assert len(load_policy(path).statistics) == 7
    del content["dataset"]
    path.write_text(yaml.safe_dump(content | {"statistics": str(stats)}))
    with pytest.raises(PolicyError, match="name one of its data sets with dataset: austin_buds"):
        load_policy(path)


@pytest.mark.parametrize(
    ("name", "least", "refused", "works"),
    [
        ("tiny_vla", 1, 8, "none to leave out: wanted fewer, or 0"),
        (
            "panda_ee_delta",
            6,
            5,
            "would hold yaw, of kind ee_delta, while the rest moves: the arm",
        ),
        ("panda_ee_delta", 6, 5, "wanted at least 6, or 0"),
        ("demo_arm", 6, 1, "would hold joint6, of kind position"),
        ("so101", 5, 6, "none to leave out"),
    ],
)
def test_only_last_dimensions_that_are_held_by_themselves_may_be_left_out(name, least, refused, works):
    policy = load_policy(EXAMPLES / f"{name}.yaml")
    assert policy.least_tokens == least
    policy.require_held_from(least, "ladder.least_tokens")
    with pytest.raises(PolicyError, match=works) as line:
        policy.require_held_from(refused, "ladder.least_tokens")
    assert f"ladder.least_tokens is {refused}" in str(line.value) and "\n" not in str(line.value)


def test_a_policy_whose_last_dimension_moves_the_end_effector_can_leave_out_none(load):
    content = copy.deepcopy(GOOD)
    content["dimensions"].reverse()
    content["dimensions"].append(content["dimensions"].pop(1))
    policy = load(content)
    assert policy.dimensions[-1].kind is Kind.EE_DELTA and policy.least_tokens == 3
    with pytest.raises(PolicyError, match=r"wanted 0$"):
        policy.require_held_from(2, "ladder.least_tokens")
