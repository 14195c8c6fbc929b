"""What the sections of /diagnostics say, without a node around them."""

from collections import Counter
from contextlib import closing
from types import SimpleNamespace

import pytest
from robot import noise

from vla_edge_ros.control.admission import Admission, AdmissionConfig
from vla_edge_ros.control.controller import Totals
from vla_edge_ros.control.decision import Decision
from vla_edge_ros.control.promise import Promise
from vla_edge_ros.control.record import TickRecord, WorkTimes
from vla_edge_ros.engine.interface import StageTimes
from vla_edge_ros.nodes import diagnostics
from vla_edge_ros.perception.camera import CameraPipeline
from vla_edge_ros.perception.frame_buffer import FrameBuffer
from vla_edge_ros.perception.resize import Resizer
from vla_edge_ros.perception.stamps import StampWatch

MS = 1_000_000
ROS_NOW = 1_700_000_000_000_000_000
RECEIPT = 5_000_000_000


@pytest.fixture
def frames():
    with closing(FrameBuffer.create()) as buffer:
        yield buffer


@pytest.fixture
def camera(frames):
    return CameraPipeline(frames, Resizer(), StampWatch(), "/image")


@pytest.fixture
def look(camera, frames):
    """Looks at a section: (level, summary, values)."""
    controller = SimpleNamespace(
        totals=Totals(ticks=30),
        admission=Admission(AdmissionConfig(0.2, 0.9, 8)),
        promise=Promise(),
        planner=SimpleNamespace(steps_dropped=5, joint_states_refused=3),
        is_enabled=True,
        decision_counts=Counter(),
        last_record=TickRecord(0, 0, 0, 0, Decision.FRESH),
    )
    controller.admission.probes = 2
    sections = diagnostics.sections(controller, camera, frames, None, None, None, 0, None)

    def look(name, promise=None):
        controller.promise = promise or controller.promise
        return sections[name]()

    return look


def show(camera, age_ms):
    message = noise()
    message.header.stamp.sec, message.header.stamp.nanosec = divmod(ROS_NOW - age_ms * MS, 1_000_000_000)
    assert camera.on_image(message, RECEIPT, ROS_NOW).is_new


def test_the_delay_of_the_newest_stamp_is_named(camera, look):
    assert look("camera")[2]["stamp_delay_ms"] == ""
    show(camera, age_ms=180)
    level, _, values = look("camera")
    assert (level, values["stamp_delay_ms"]) == (diagnostics.OK, "180.0")


def test_reads_of_the_frame_buffer_that_met_a_writer_are_counted(camera, frames, look):
    show(camera, age_ms=8)
    frames.retries, frames.contended = 4, 1
    values = look("camera")[2]
    assert (values["buffer_retries"], values["buffer_contended"]) == (4, 1)


def test_a_frame_buffer_that_may_be_swapped_out_is_warned_of(camera, frames, look):
    frames.is_locked = False
    show(camera, age_ms=8)
    level, summary, values = look("camera")
    assert level == diagnostics.WARN and "memlock" in summary
    assert values["buffer_is_locked"] is False


def test_probes_dropped_steps_and_refused_joint_states_are_counted(look):
    level, _, values = look("control")
    assert level == diagnostics.OK
    assert values["probes"] == 2
    assert values["steps_dropped"] == 5
    assert values["joint_states_refused"] == 3


def promise_of(misses, ticks):
    """Passes of 50 ms, of which decode took 30 and was predicted to take 10."""
    promise = Promise()
    stages = StageTimes(prefill_ns=15 * MS, decode_ns=30 * MS)
    for tick in range(ticks):
        record = TickRecord(tick, 0, 0, 0, Decision.FRESH, submitted_work=tick)
        if tick < misses:
            record.decision = Decision.HOLD_LATE
            record.predicted_by_stage = {"prefill": 14 * MS, "decode": 10 * MS, "transfer": MS}
        record.work.append(WorkTimes(tick, "frame", 0, 0, 50 * MS, 50 * MS, stages))
        promise.count(record, 0.001)
    return promise


def test_a_kept_promise_says_its_rate_its_interval_and_its_goodput(look):
    level, summary, values = look("promise", promise_of(2, 4000))
    assert level == diagnostics.OK
    assert summary.startswith("2 misses in 4,000 ticks: 0.050 % (95 % Wilson interval 0.014 to 0.182 %)")
    assert (values["goodput"], values["estimator"]) == ("0.999500", "conformal")
    assert values["hold_streak_ticks"] == 0 and values["longest_hold_ticks"] == 2


def test_a_broken_promise_is_an_error_that_names_the_stage(look):
    level, summary, values = look("promise", promise_of(40, 4000))
    assert level == diagnostics.ERROR
    assert summary.endswith("target 0.1 %, most by decode")
    assert values["blamed_on_decode"] == 40
