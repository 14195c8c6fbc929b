"""A deadline that no pass can keep is refused before the first frame."""

from contextlib import closing

import numpy as np
import pytest
from control_rig import MS, Aborts, ScriptedEngine

from vla_edge_ros.control.clock import VirtualClock
from vla_edge_ros.control.floor import PASSES, DeadlineTooTight, require_time
from vla_edge_ros.control.schedule import TickSchedule
from vla_edge_ros.engine.interface import EngineError
from vla_edge_ros.perception.frame_buffer import FrameBuffer

SCHEDULE = TickSchedule(0, 20 * MS, 12 * MS, 2 * MS)


@pytest.fixture
def frames():
    with closing(FrameBuffer.create()) as buffer:
        yield buffer


def engine_of(frames, service_ms, script=()):
    engine = ScriptedEngine(VirtualClock(iter(())), frames, service_ms)
    engine.script.update(dict(script))
    return engine


def require(engine, frames, **keywords):
    require_time(engine, frames, 7, SCHEDULE, engine.clock, **keywords)


def test_a_deadline_below_the_shortest_pass_is_refused_with_one_that_works(frames):
    engine = engine_of(frames, 15.0, {3: 14.55})
    with pytest.raises(DeadlineTooTight) as refused:
        require(engine, frames)
    line = str(refused.value)
    assert "control.deadline_ms is 12" in line and "leaves a pass 10 ms" in line
    assert "took 14.6 ms" in line and "above 16.6" in line
    assert len(engine.submitted) == PASSES
    again = engine_of(frames, 14.55)
    require_time(again, frames, 7, TickSchedule(0, 20 * MS, round(16.6 * MS), 2 * MS), again.clock)


def test_one_pass_that_fits_is_enough_and_a_cold_first_one_refuses_nothing(frames):
    engine = engine_of(frames, 10.0, {0: 80.0})
    require(engine, frames)
    assert len(engine.submitted) == 2


def test_the_frame_buffer_is_as_it_was_whatever_came_of_it(frames):
    require(engine_of(frames, 5.0), frames)
    assert frames.peek() is None and frames.next_index == 1
    with pytest.raises(DeadlineTooTight):
        require(engine_of(frames, 50.0), frames)
    assert frames.peek() is None
    assert frames.write(np.zeros((64, 128, 3), np.uint8), 1, 1, 1) == 1


@pytest.mark.parametrize("does", ["fail", "no_frame", Aborts(MS, MS)])
def test_an_engine_that_fails_fails_the_configuring(frames, does):
    with pytest.raises(EngineError):
        require(engine_of(frames, 5.0, {0: does}), frames)


def test_an_engine_that_never_answers_is_given_up_and_an_ending_node_does_not_wait(frames):
    with pytest.raises(EngineError, match="did not end within 60 s"):
        require(engine_of(frames, 5.0, {0: "hang"}), frames)
    with pytest.raises(EngineError, match="was closed"):
        require(engine_of(frames, 5.0, {0: "hang"}), frames, should_abandon=lambda: True)
