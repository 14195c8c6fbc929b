"""What the sections of /diagnostics say, without a node around them."""

from collections import Counter
from contextlib import closing
from types import SimpleNamespace

import pytest
from robot import noise

from vla_edge_ros.control.controller import Totals
from vla_edge_ros.control.decision import Decision
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
        admission=SimpleNamespace(refusals=9, longest_refusal=8, probes=2),
        planner=SimpleNamespace(steps_dropped=5, joint_states_refused=3),
        is_enabled=True,
        decision_counts=Counter(),
        last_record=SimpleNamespace(decision=Decision.FRESH, reason=""),
    )
    sections = diagnostics.sections(controller, camera, frames, None, None, None, 0, None)
    return lambda name: sections[name]()


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
