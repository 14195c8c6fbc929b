"""How the node is started: parameter files, namespaces and remapped topics."""

from pathlib import Path

import yaml
from robot import noise
from sensor_msgs.msg import Image

from vla_edge_ros.share import share_directory


def test_a_bad_value_in_the_parameter_file_ends_it_at_once_in_one_line(start_edge):
    robot = start_edge(parameters={"camera.max_age_ms": 1e6})
    robot.until(lambda: not robot.edge.is_running)
    assert robot.edge.stop() == 2
    [line] = robot.edge.log_lines()
    assert line.startswith("vla_edge_node: camera.max_age_ms: 1000000.0 is not allowed")
    assert line.endswith("it must be a number from 1 to 10000, in ms")


def test_the_shipped_parameter_file_works_and_only_names_like_ours_are_called_misspelt(start_edge):
    shipped = yaml.safe_load((share_directory() / "config/edge.yaml").read_text())["/**"]["ros__parameters"]
    flat = {f"{group}.{name}": value for group, values in shipped.items() for name, value in values.items()}
    changes = {"engine.backend": "fake", "engine.model": "fake", "control.bare_loop": True}
    others = {"camera.max_agems": 5, "arm_controller.rate_hz": 100}
    robot = start_edge(parameters=flat | changes | others)
    assert "did you mean camera.max_age_ms?" in robot.until_logged("camera.max_agems: there is no parameter")
    assert robot.log().count("there is no parameter") == 1
    robot.picture = noise
    robot.bring_to("active")
    robot.until_tick(decision="FRESH")
    bare_loop = robot.child_pid("vla_edge_ros.control.bare_loop")
    robot.bring_to("inactive")
    assert not Path(f"/proc/{bare_loop}").exists()


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


def test_a_deadline_that_no_pass_can_keep_fails_the_configuring_in_one_line(start_edge):
    tight = {"control.deadline_ms": 2.0, "control.margin_ms": 1.95, "control.period_ms": 5.0}
    robot = start_edge(parameters={"engine.backend": "numpy", "engine.model": "tiny"} | tight)
    assert not robot.change("configure")
    assert "set it and control.period_ms above" in robot.until_logged("control.deadline_ms is 2")
    assert robot.state() == "unconfigured"
