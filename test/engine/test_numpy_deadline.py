"""The NumPy engine stops at every boundary, and no later pass is another one for it."""

import numpy as np
import pytest

from vla_edge_ros.engine import numpy_engine
from vla_edge_ros.engine.interface import (
    EngineSpec,
    FrameWork,
    PromptWork,
    StageTimes,
    WorkResult,
    WorkStatus,
)
from vla_edge_ros.engine.numpy_engine import NumpyEngine
from vla_edge_ros.engine.pace import STEP, Pace
from vla_edge_ros.perception.frame import FrameMeta

N_SLOTS, PROMPT, A = 256, 20, 7
SLOTS = np.random.default_rng(3).permutation(N_SLOTS).astype(np.int32)


class ShownFrame:
    """A camera whose frame is what `index` says."""

    index = 1

    def read_into(self, out):
        out[:] = np.random.default_rng(self.index).integers(0, 256, out.shape)
        return FrameMeta(self.index, 0, 0, 0)


class CountingClock:
    """Every look at it is one nanosecond later."""

    def __init__(self):
        self.now = 0

    def monotonic_ns(self):
        self.now += 1
        return self.now


class Robot:
    def __init__(self, monkeypatch):
        self.frames = ShownFrame()
        self.engine = NumpyEngine(EngineSpec(n_slots=N_SLOTS, action_tokens=A), self.frames)
        self.engine.configure()
        self.run(PromptWork(0, np.arange(PROMPT, dtype=np.int32), SLOTS[:PROMPT]))
        self.n_retained = 0
        self.clock = CountingClock()
        monkeypatch.setattr(numpy_engine, "time", self.clock)

    def run(self, work) -> WorkResult:
        self.engine.submit(work)
        return self.engine.wait(0)

    def look(self, index: int, looks_left: int | None = None) -> WorkResult:
        """A pass over frame `index`; its deadline is `looks_left` looks at the clock away."""
        self.frames.index = index
        n = PROMPT + 32 * self.n_retained
        deadline_ns = 0 if looks_left is None else self.clock.now + looks_left
        work = FrameWork(index, SLOTS[:n], SLOTS[n : n + 32], SLOTS[-A:], deadline_ns)
        result = self.run(work)
        self.n_retained += result.status is WorkStatus.DONE
        return result


def outputs(result: WorkResult) -> tuple:
    parts = (result.tokens, result.top_probability, result.entropy, result.embedding)
    return tuple(part.tobytes() for part in parts)


@pytest.fixture
def robot(monkeypatch):
    return Robot(monkeypatch)


def test_a_pass_stopped_anywhere_leaves_the_next_one_bit_identical(robot, monkeypatch):
    undisturbed = Robot(monkeypatch)
    robot.clock = undisturbed.clock
    wanted = [outputs(undisturbed.look(index)) for index in (1, 2, 3)]
    assert outputs(robot.look(1)) == wanted[0]

    came_to, looks_left = set(), 0
    while True:
        robot.engine._pace = Pace()
        result = robot.look(99, looks_left)
        if result.status is WorkStatus.DONE:
            break
        assert result.status is WorkStatus.ABORTED
        assert (
            result.frame
            is result.tokens
            is result.entropy
            is result.top_probability
            is result.embedding
            is None
        )
        has = [bool(getattr(result.stages, f"{stage}_ns")) for stage in ("vision", "prefill", "decode")]
        came_to.add((sum(has), result.steps_done))
        robot.n_retained = 1
        assert outputs(robot.look(2)) == wanted[1]
        robot.n_retained = 1
        looks_left += 1
    robot.n_retained = 1
    assert came_to == {(1, 0), (2, 0), *((3, step) for step in range(A))}
    assert looks_left > 4 * (1 + A), "it looks after layers too"

    assert outputs(robot.look(2)) == wanted[1]
    assert outputs(robot.look(3)) == wanted[2]


def test_what_a_stopped_pass_has_half_written_shows_itself_if_it_is_read(robot):
    assert robot.look(1, looks_left=10).status is WorkStatus.ABORTED
    decoder = robot.engine.decoder
    for slots in (SLOTS[PROMPT : PROMPT + 32], SLOTS[-A:]):
        assert np.isnan(decoder.cached_keys[:, slots]).all()
        assert np.isnan(decoder.cached_values[:, slots]).all()
    assert np.isfinite(decoder.cached_keys[:, SLOTS[:PROMPT]]).all()


def test_from_the_least_that_passes_took_it_knows_before_vision_and_says_what_was_to_come(robot):
    whole = robot.look(1)
    least = robot.engine._pace
    n = PROMPT
    known = StageTimes(
        0, least.least_ns("vision", n), least.least_ns("prefill", n), A * least.least_ns(STEP, n)
    )
    assert 0 < known.total_ns <= whole.stages.total_ns
    robot.n_retained = 0
    result = robot.look(2, looks_left=known.total_ns)
    assert (result.status, result.steps_done) == (WorkStatus.ABORTED, 0)
    assert result.stages.prefill_ns == result.stages.decode_ns == 0
    assert result.remaining.prefill_ns == known.prefill_ns
    assert result.remaining.decode_ns == known.decode_ns


def test_a_pass_that_ends_in_time_has_done_all_its_steps(robot):
    result = robot.look(1, looks_left=10_000)
    assert (result.status, result.steps_done, result.remaining) == (WorkStatus.DONE, A, StageTimes())


def test_a_cold_start_is_not_taken_for_the_least_that_a_pass_takes():
    engine = NumpyEngine(EngineSpec(n_slots=64, action_tokens=A), ShownFrame())
    engine.configure()
    assert engine._pace.least_ns("prefill", 0) == engine._pace.least_ns(STEP, 0) == 0
