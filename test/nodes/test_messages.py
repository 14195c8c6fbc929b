"""The figures of a tick as messages."""

import math

from vla_edge_ros.control.promise import Promise
from vla_edge_ros.control.record import TickRecord, WorkTimes
from vla_edge_ros.engine.interface import STAGES, StageTimes
from vla_edge_ros.nodes.messages import TickMessage, telemetry

MS = 1_000_000


def test_a_stage_has_one_name_and_one_meaning_on_the_tick_and_in_telemetry():
    stages = StageTimes(copy_ns=1 * MS, vision_ns=2 * MS, prefill_ns=3 * MS, decode_ns=4 * MS)
    record = TickRecord(0, 0, 0, 0, submitted_work=7)
    record.work.append(WorkTimes(7, "frame", 0, 0, 10 * MS, 10 * MS, stages))
    wanted = {"copy_ms": 1.0, "vision_ms": 2.0, "prefill_ms": 3.0, "decode_ms": 4.0}
    assert wanted.items() <= telemetry(record, Promise()).items()
    tick = {value.key: value.value for value in TickMessage("node", "cuda-1").fill(record).values}
    assert {name: float(tick[name]) for name in wanted} == wanted
    assert tick["plan_id"] == "cuda-1"


def test_a_tick_without_a_pass_leaves_a_gap_in_each_stage():
    figures = telemetry(TickRecord(0, 0, 0, 0), Promise())
    assert all(math.isnan(figures[f"{stage}_ms"]) for stage in STAGES)
