"""What a real node recorded is what admission is tried on."""

from vla_edge_ros.evaluation.recorded_trace import main, read_passes

ENGINE = {"engine.backend": "numpy", "engine.model": "tiny", "memory.slots": 256}


def test_the_rule_is_tried_on_the_passes_of_a_node_that_ran(start_edge, tmp_path, capsys):
    ring = tmp_path / "run.mcap"
    robot = start_edge(parameters=ENGINE | {"control.record_path": str(ring)})
    robot.bring_to("active")
    robot.move()
    robot.next_ticks(40)
    assert robot.edge.stop() == 0
    passes = read_passes(ring)
    assert len(passes.service_ms) >= 20 and passes.service_ms.min() > 0
    assert main([str(ring), "--ticks", "2000"]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"{ring}: {len(passes.service_ms)} passes, p50 ")
    # At the median half of the passes would be late.
    assert told.count("every pass begun") >= 4
