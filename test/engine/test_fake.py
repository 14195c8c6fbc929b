"""The engine without a model: fixed answers, fixed duration, and settings that are read strictly."""

from dataclasses import replace

import numpy as np
import pytest

from vla_edge_ros.engine.fake import (
    VOCABULARY_SIZE,
    FakeEngine,
    FakeSettings,
    fake_tokens,
    parse_settings,
)
from vla_edge_ros.engine.interface import (
    EngineBusy,
    EngineError,
    EngineSpec,
    FrameWork,
    PromptWork,
    StageTimes,
    WorkStatus,
)
from vla_edge_ros.perception.frame_buffer import FrameBuffer

SLOTS = np.arange(8, dtype=np.int32)
MS = 1_000_000


class VirtualClock:
    def __init__(self):
        self.now = 5 * MS

    def now_ns(self):
        return self.now

    def sleep_until(self, until_ns):
        self.now = max(self.now, until_ns)


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def frames():
    buffer = FrameBuffer.create()
    buffer.write(np.zeros((64, 128, 3), np.uint8), 1, 2, 3)
    yield buffer
    buffer.close()


@pytest.fixture
def make(clock, frames):
    return lambda model, frames=frames: FakeEngine(
        EngineSpec(backend="fake", model=model), frames, clock.now_ns, clock.sleep_until
    )


def frame_work(work_id, deadline_ns=0):
    return FrameWork(work_id, SLOTS, SLOTS, SLOTS[:7], deadline_ns)


def test_work_is_done_when_its_time_has_passed_and_not_before(make, clock):
    engine = make("fake:service_ms=10")
    engine.submit(frame_work(1))
    assert engine.wait(14 * MS) is None
    assert clock.now == 14 * MS
    result = engine.wait(40 * MS)
    assert clock.now == 15 * MS
    assert (result.started_ns, result.finished_ns) == (5 * MS, 15 * MS)
    assert result.stages.prefill_ns + result.stages.decode_ns == 10 * MS
    assert engine.wait(40 * MS) is None


def test_a_pass_is_stopped_at_its_deadline_and_says_how_far_it_came(make, clock):
    engine = make("fake:service_ms=14")
    for deadline_ms, steps_done, prefill_ms, decode_ms in ((4, 0, 0, 0), (8, 0, 3, 0), (15, 3, 7, 3)):
        clock.now = 5 * MS
        engine.submit(frame_work(1, deadline_ms * MS))
        result = engine.wait(40 * MS)
        assert clock.now == result.finished_ns == max(5, deadline_ms) * MS
        assert (result.status, result.steps_done) == (WorkStatus.ABORTED, steps_done)
        assert result.tokens is result.frame is result.embedding is None
        assert result.stages == StageTimes(prefill_ns=prefill_ms * MS, decode_ns=decode_ms * MS)
        assert result.stages.total_ns + result.remaining.total_ns == 14 * MS


def test_a_pass_that_ends_by_its_deadline_is_whole(make, clock):
    engine = make("fake:service_ms=10")
    engine.submit(frame_work(1, deadline_ns=15 * MS))
    result = engine.wait(40 * MS)
    assert (result.status, result.steps_done) == (WorkStatus.DONE, 7)
    assert result.tokens.shape == (1, 7)


def test_tokens_depend_on_the_frame_alone_and_are_action_rows(make, frames):
    engine = make("fake:steps=8")
    seen = []
    for work_id in range(2):
        engine.submit(frame_work(work_id))
        seen.append(engine.wait(0) or engine.wait(5 * MS))
    assert seen[0].tokens.shape == (8, 7)
    np.testing.assert_array_equal(seen[0].tokens, seen[1].tokens)
    assert not np.array_equal(fake_tokens(1, 8, 7), fake_tokens(2, 8, 7))
    for index in (1, 255, 256, 10**12):
        tokens = fake_tokens(index, 16, 8)
        assert tokens.min() >= VOCABULARY_SIZE - 256 and tokens.max() < VOCABULARY_SIZE


def test_fewer_action_slots_give_the_first_tokens_in_less_time(make, clock):
    engine = make("fake:service_ms=14,steps=2")
    engine.submit(frame_work(1))
    whole = engine.wait(100 * MS)
    engine.submit(replace(frame_work(2), action_slots=SLOTS[:3]))
    part = engine.wait(100 * MS)
    assert part.tokens.shape == part.entropy.shape == (2, 3) and part.steps_done == 3
    assert (part.tokens == whole.tokens[:, :3]).all()
    assert part.stages == StageTimes(prefill_ns=7 * MS, decode_ns=3 * MS)
    stopped = replace(frame_work(3, clock.now + 8 * MS), action_slots=SLOTS[:3])
    engine.submit(stopped)
    result = engine.wait(200 * MS)
    assert (result.status, result.steps_done) == (WorkStatus.ABORTED, 1)


def test_without_a_frame_there_is_no_frame(make):
    engine = make("fake", FrameBuffer.create())
    engine.submit(frame_work(1))
    assert engine.wait(5 * MS).status is WorkStatus.NO_FRAME


def test_it_fails_after_so_many_frames_and_for_ever(make):
    engine = make("fake:fail_after=1")
    statuses = []
    for work in (PromptWork(0, SLOTS, SLOTS), frame_work(1), frame_work(2)):
        engine.submit(work)
        statuses.append(engine.wait(5 * MS).status)
    assert statuses == [WorkStatus.DONE, WorkStatus.DONE, WorkStatus.FAILED]
    assert engine.wait(5 * MS).status is WorkStatus.FAILED


def test_it_takes_one_piece_of_work_at_a_time(make):
    engine = make("fake:service_ms=1")
    engine.submit(frame_work(1))
    with pytest.raises(EngineBusy):
        engine.submit(frame_work(2))


def test_settings_are_read_from_the_model_name():
    assert parse_settings("fake") == FakeSettings()
    assert parse_settings("fake:service_ms=2.5,steps=8,fail_after=100,hidden=1536") == FakeSettings(
        2.5, 8, 100, 1536
    )


@pytest.mark.parametrize(
    "model",
    [
        "tiny",
        "fake:",
        "fake:speed=1",
        "fake:steps",
        "fake:steps=two",
        "fake:steps=0",
        "fake:steps=17",
        "fake:steps=1,steps=2",
        "fake:service_ms=-1",
        "fake:service_ms=nan",
        "fake:service_ms=inf",
        "fake:hidden=0",
        "fake:fail_after=-2",
        "fake:steps=1,",
    ],
)
def test_settings_that_are_not_understood_are_refused(model):
    with pytest.raises(EngineError, match="fake engine"):
        parse_settings(model)
