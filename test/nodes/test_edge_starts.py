"""The life cycle, and what stands in the way of it: bad parameters, bad files, names and namespaces."""

from pathlib import Path

import pytest
import yaml
from diagnostic_msgs.msg import DiagnosticStatus
from robot import noise
from sensor_msgs.msg import Image

from vla_edge_ros.share import share_directory

WARN = DiagnosticStatus.WARN


def errors_of(robot) -> list[str]:
    return [line for line in robot.edge.log_lines() if "[ERROR]" in line]


def test_it_configures_activates_deactivates_cleans_up_and_does_so_again(start_edge):
    robot = start_edge()
    robot.picture = noise
    for _ in range(2):
        assert robot.state() == "unconfigured"
        assert robot.change("configure")
        assert robot.state() == "inactive"
        assert robot.ticks == []
        assert not robot.enable().success
        for _ in range(2):
            assert robot.change("activate")
            assert robot.state() == "active"
            robot.until_tick(decision="FRESH")
            assert int(robot.ticks[0]["tick"]) < 5, "counted from each activation"
            assert {tick["is_enabled"] for tick in robot.ticks} == {"False"}
            assert robot.change("deactivate")
            robot.ticks.clear()
        robot.until_status("control", WARN, "not active")
        assert robot.ticks == []
        pid = robot.engine_pid()
        assert robot.change("cleanup")
        assert not Path(f"/proc/{pid}").exists(), "the engine process has ended"
        assert robot.node.count_publishers(f"{robot.name}/tick") == 0


@pytest.fixture(scope="module")
def wrong_statistics(tmp_path_factory):
    """The demo arm with the statistics of an arm with one joint less."""
    folder = tmp_path_factory.mktemp("policy")
    policy = yaml.safe_load((share_directory() / "config/policies/demo_arm.yaml").read_text())
    policy["statistics"] = str(share_directory() / "config/policies/so101_statistics.json")
    policy.pop("dataset")
    path = folder / "policy.yaml"
    path.write_text(yaml.safe_dump(policy))
    return str(path)


def test_what_cannot_be_configured_fails_in_one_line_and_may_be_put_right(start_edge, wrong_statistics):
    robot = start_edge()
    good = {
        "actions.policy_file": "",
        "actions.groups": [""],
        "engine.backend": "fake",
        "engine.model": "fake",
        "memory.budget_bytes": 8_000_000_000,
        "control.deadline_ms": 33.0,
        "control.record_path": "",
    }
    cases = [
        ({"actions.policy_file": "/nowhere/arm.yaml"}, "/nowhere/arm.yaml"),
        ({"actions.policy_file": wrong_statistics}, "has 7 dimensions, its statistics"),
        ({"actions.groups": ["hand"]}, "has no group 'hand', its groups are arm, gripper"),
        ({"engine.backend": "numpy", "engine.model": "huge"}, "model 'huge' is neither a preset"),
        ({"engine.model": "fake:speed=1"}, "fake engine setting 'speed=1'"),
        ({"engine.backend": "numpy", "engine.model": "tiny", "memory.budget_bytes": 1_000_000}, "budget"),
        ({"control.deadline_ms": 40.0}, "control.deadline_ms is 40 and control.period_ms is 33.333"),
        ({"control.record_path": "/nowhere/run.jsonl"}, "/nowhere/run.jsonl"),
    ]
    for bad, words in cases:
        before = len(errors_of(robot))
        assert robot.set(**good | bad) == ""
        assert not robot.change("configure"), f"{bad} was taken"
        assert robot.state() == "unconfigured"
        [line] = robot.until(lambda before=before: errors_of(robot)[before:])
        assert words in line
        assert "Traceback" not in robot.log()
    assert robot.set(**good) == ""
    robot.picture = noise
    robot.bring_to("active")
    robot.until_tick(decision="FRESH")


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("camera.max_age_ms", 1e6, "1000000.0 is not allowed, it must be a number from 1 to 10000, in ms"),
        ("memory.policy", "lru", "'lru' is not allowed, it must be one of fifo, sliding_window, semantic"),
    ],
)
def test_a_bad_value_in_the_parameter_file_ends_it_at_once_in_one_line(start_edge, name, value, line):
    robot = start_edge(parameters={name: value})
    robot.until(lambda: not robot.edge.is_running)
    assert robot.edge.stop() == 2
    assert robot.edge.log_lines() == [f"vla_edge_node: {name}: {line}"]


def test_a_misspelt_parameter_is_warned_of_and_those_of_other_nodes_are_not(start_edge):
    robot = start_edge(parameters={"camera.max_agems": 5, "arm_controller.rate_hz": 100})
    assert "did you mean camera.max_age_ms?" in robot.until_logged("camera.max_agems: there is no parameter")
    assert robot.state() == "unconfigured"
    assert "arm_controller" not in robot.log()


def test_two_arms_live_in_namespaces_of_their_own(start_edge):
    robot = start_edge(remappings={"__ns": "/left_arm", "image": "wrist/image_raw"})
    robot.replace_camera(Image, "wrist/image_raw")
    robot.picture = noise
    robot.bring_to("active")
    robot.move()
    assert robot.until_tick(decision="FRESH")["is_enabled"] == "True"
    robot.tell("stack the cups")
    robot.until_event("instruction")
    robot.reset_memory()
    robot.until_event("reset_memory")
    topics = {name for name, _ in robot.node.get_topic_names_and_types()}
    assert {"/left_arm/vla_edge_node/telemetry/pass_ms", "/left_arm/instruction", "/diagnostics"} <= topics
    assert "/left_arm/image" not in topics
    assert not any(name.startswith("/vla_edge_node") for name in topics)
    robot.until(lambda: "left_arm/vla_edge_node: camera" in robot.statuses)


def test_the_shipped_parameter_file_starts_and_configures_the_node(start_edge):
    shipped = yaml.safe_load((share_directory() / "config/edge.yaml").read_text())["/**"]["ros__parameters"]
    flat = {f"{group}.{name}": value for group, values in shipped.items() for name, value in values.items()}
    changes = {"engine.backend": "fake", "engine.model": "fake", "control.bare_loop": True}
    robot = start_edge(parameters=flat | changes)
    robot.picture = noise
    robot.bring_to("active")
    robot.until_tick(decision="FRESH")
    assert "there is no parameter" not in robot.log()
    bare_loop = robot.child_pid("vla_edge_ros.control.bare_loop")
    robot.bring_to("inactive")
    assert not Path(f"/proc/{bare_loop}").exists()
