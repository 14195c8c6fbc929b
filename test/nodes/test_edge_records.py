"""What the node leaves on disk in a ring: enough to run its ticks again, after a kill too."""

import os
import signal

import pytest

from vla_edge_ros.cli import main
from vla_edge_ros.evaluation.recorded_run import RecordedRun


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_the_ticks_in_the_ring_of_a_node_that_ended_are_run_again(start_edge, tmp_path, capsys, number):
    ring = tmp_path / "run.mcap"
    robot = start_edge(parameters={"control.record_path": str(ring), "control.record_bytes": 20_000_000})
    robot.bring_to("active")
    robot.move()
    robot.next_ticks(60)
    last = int(robot.next_ticks(1)[0]["tick"])
    os.kill(robot.edge.pid, number)
    robot.until(lambda: not robot.edge.is_running)
    recorded = RecordedRun.load(ring)
    assert recorded.ticks[-1]["tick"] > last - 30
    assert bool(recorded.end) == (number == signal.SIGTERM)
    assert recorded.vocabulary_size > 0
    capsys.readouterr()
    assert main(["replay", "--ticks", str(ring)]) == 0
    n = len(recorded.ticks)
    assert capsys.readouterr().out.startswith(f"{n} ticks run again, {n} equal bit for bit\n")
