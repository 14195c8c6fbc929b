"""The life cycle, and what stands in the way of configuring: bad files, bad names, too little memory."""

from pathlib import Path

import pytest
import yaml
from diagnostic_msgs.msg import DiagnosticStatus
from robot import noise

from vla_edge_ros.share import share_directory

WARN = DiagnosticStatus.WARN


def errors_of(robot) -> list[str]:
    return [line for line in robot.edge.log_lines() if "[ERROR]" in line]


def test_it_configures_activates_deactivates_cleans_up_and_does_so_again(shared_robot):
    robot = shared_robot
    robot.picture = noise
    for _ in range(2):
        assert robot.state() == "unconfigured"
        assert robot.change("configure")
        assert robot.state() == "inactive"
        assert "not active" in robot.enable().message
        for _ in range(2):
            assert robot.change("activate")
            assert robot.state() == "active"
            robot.until_tick(decision="FRESH")
            assert int(robot.ticks[0]["tick"]) < 5, "counted from each activation"
            assert {tick["is_enabled"] for tick in robot.ticks} == {"False"}
            assert robot.change("deactivate")
            robot.ticks.clear()
        pid = robot.engine_pid()
        assert robot.change("cleanup")
        assert robot.ticks == []
        assert not Path(f"/proc/{pid}").exists(), "the engine process has ended"
        assert robot.node.count_publishers(f"{robot.name}/tick") == 0
    assert robot.change("configure")
    robot.until_status("control", WARN, "not active")


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


def test_what_cannot_be_configured_fails_in_one_line_and_may_be_put_right(shared_robot, wrong_statistics):
    robot = shared_robot
    robot.bring_to("unconfigured")
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
