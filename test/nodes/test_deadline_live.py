"""The node under CPU hogs: what the record of the deadline needs to know of it."""

import json
import subprocess
import sys

COMMAND = (sys.executable, "-m", "vla_edge_ros.nodes.deadline_live")


def test_a_short_stretch_counts_the_node_and_the_bare_loop_beside_it(ros_environment, tmp_path):
    path = tmp_path / "live.json"
    words = "--param", "engine.backend=fake", "--param", "engine.model=fake:service_ms=5"
    command = [*COMMAND, "--seconds", "1", "--json", str(path), *words]
    done = subprocess.run(command, env=ros_environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(path.read_text())
    # A second under hogs, and some ticks before and after.
    assert figures["ticks"] >= 28 and figures["bare_loop"]["ticks"] >= 28
    assert figures["ticks"] == sum(figures["decision_counts"].values())
    assert figures["hogs"] >= 1 and 0 <= figures["fifo_priority"] < 99
    assert len(figures["late_ticks"]) == min(100, figures["late_publishes"]) <= figures["ticks"]


def test_a_node_that_cannot_be_measured_ends_it_in_one_line(ros_environment, tmp_path):
    path = tmp_path / "live.json"
    command = [*COMMAND, "--json", str(path), "--param", "engine.model=none"]
    done = subprocess.run(command, env=ros_environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and not path.exists()
    assert done.stderr.startswith("deadline_live: ") and done.stderr.count("\n") == 1
