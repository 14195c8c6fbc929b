"""What a pass takes at least stops it as soon as it cannot end in time, never sooner, and not for ever."""

from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_edge_ros.engine.interface import FrameWork, StageTimes, WorkResult, WorkStatus
from vla_edge_ros.engine.pace import CLASS_TOKENS, STEP, CannotEnd, Countdown, Pace

BEFORE = ("vision", "prefill")
N_STEPS = 7


def work(deadline_ns: int = 0, n_context: int = 100) -> FrameWork:
    slots = np.zeros(n_context, np.int32)
    return FrameWork(1, slots, slots[:32], slots[:N_STEPS], deadline_ns)


def run(pace: Pace, durations: list[int], deadline_ns: int, n_context: int = 100) -> WorkResult:
    """A pass that begins at 0, whose parts take these times, and that looks at every boundary."""
    countdown, result = (
        Countdown(pace, work(deadline_ns, n_context), BEFORE, 0),
        WorkResult(1, WorkStatus.DONE),
    )
    now = 0
    for duration in durations:
        try:
            countdown.look(now)
        except CannotEnd:
            countdown.stop(now, result)
            return result
        now += duration
        countdown.part_ended(now)
    countdown.tell(result)
    return result


def a_pass(vision: int, prefill: int, step: int) -> list[int]:
    return [vision, prefill, *[step] * N_STEPS]


positive = st.integers(1, 10**9)


def test_without_a_deadline_nothing_is_stopped():
    pace = Pace()
    for _ in range(3):
        assert run(pace, a_pass(10**12, 10**12, 10**12), 0).status is WorkStatus.DONE


def test_what_was_never_seen_stops_a_pass_only_once_its_deadline_is_past():
    result = run(Pace(), a_pass(10, 50, 20), deadline_ns=100)
    assert result.status is WorkStatus.ABORTED
    assert (result.steps_done, result.stages) == (3, StageTimes(vision_ns=10, prefill_ns=50, decode_ns=60))
    # The three steps were measured after this pass had begun: what it began with counts.
    assert result.remaining == StageTimes()


@pytest.mark.parametrize(
    ("slow", "steps_done", "stages"),
    [
        (a_pass(0, 0, 0), 0, StageTimes()),
        (a_pass(61, 50, 10), 0, StageTimes(vision_ns=61)),
        (a_pass(10, 101, 10), 0, StageTimes(vision_ns=10, prefill_ns=101)),
        ([10, 50, 10, 51, *[10] * 5], 2, StageTimes(vision_ns=10, prefill_ns=50, decode_ns=61)),
        ([10, 50, *[10] * 5, 51, 10], 6, StageTimes(vision_ns=10, prefill_ns=50, decode_ns=101)),
    ],
    ids=["before vision", "before prefill", "before decoding", "amid decoding", "before the last step"],
)
def test_a_pass_is_stopped_at_the_first_boundary_from_which_it_cannot_end(slow, steps_done, stages):
    pace = Pace()
    run(pace, a_pass(10, 50, 10), 0)
    deadline_ns = 129 if slow == a_pass(0, 0, 0) else 170
    result = run(pace, slow, deadline_ns)
    assert result.status is WorkStatus.ABORTED
    assert (result.steps_done, result.stages) == (steps_done, stages)
    assert result.stages.total_ns + result.remaining.total_ns > deadline_ns


def test_a_pass_that_just_fits_is_not_stopped():
    pace = Pace()
    run(pace, a_pass(10, 50, 10), 0)
    result = run(pace, a_pass(10, 50, 10), deadline_ns=130)
    assert (result.status, result.steps_done) == (WorkStatus.DONE, N_STEPS)


@settings(deadline=None, max_examples=200)
@given(
    seen=st.lists(st.tuples(positive, positive, positive), max_size=5),
    now=st.tuples(positive, positive, positive),
    slack=st.integers(0, 10**9),
)
def test_a_pass_no_faster_than_those_before_that_fits_is_never_stopped(seen, now, slack):
    pace = Pace()
    for other in seen:
        run(pace, a_pass(*(max(a, b) for a, b in zip(other, now, strict=True))), 0)
    run(pace, a_pass(*now), 0)
    parts = a_pass(*now)
    assert run(pace, parts, sum(parts) + slack).status is WorkStatus.DONE


@settings(deadline=None, max_examples=200)
@given(
    seen=st.tuples(positive, positive, positive), now=st.tuples(positive, positive, positive), slack=positive
)
def test_a_stopped_pass_would_have_taken_longer_than_it_had(seen, now, slack):
    pace = Pace()
    run(pace, a_pass(*seen), 0)
    result = run(pace, a_pass(*now), slack)
    if result.status is WorkStatus.ABORTED:
        assert result.stages.total_ns + result.remaining.total_ns > slack
        assert result.tokens is result.frame is result.embedding is None


@settings(deadline=None, max_examples=100)
@given(slow=st.tuples(positive, positive, positive), fast=st.tuples(positive, positive, positive))
def test_a_machine_that_has_become_faster_is_found_out(slow, fast):
    """Each stop halves what it did not come to: 30 of them bring 1e9 ns down to 1."""
    pace = Pace()
    run(pace, a_pass(*slow), 0)
    parts = a_pass(*fast)
    n_stopped = next(n for n in count() if run(pace, parts, sum(parts)).status is WorkStatus.DONE)
    assert n_stopped <= 3 * 31


def test_the_estimate_falls_at_once_and_rises_slowly():
    pace = Pace()
    for duration in (100, 40):
        pace.observe(STEP, 0, duration)
    assert pace.least_ns(STEP, 0) == 40
    pace.observe(STEP, 0, 104)
    assert pace.least_ns(STEP, 0) == 41
    for _ in range(1000):
        pace.observe(STEP, 0, 104)
    assert pace.least_ns(STEP, 0) in (103, 104)


def test_contexts_of_another_length_have_a_pace_of_their_own():
    pace = Pace()
    pace.observe(STEP, CLASS_TOKENS - 1, 100)
    assert [pace.least_ns(STEP, n) for n in (0, CLASS_TOKENS - 1, CLASS_TOKENS)] == [100, 100, 0]


def test_within_a_part_its_share_is_still_to_come():
    pace = Pace()
    run(pace, a_pass(10, 40, 10), 0)
    countdown = Countdown(pace, work(deadline_ns=120), BEFORE, 0)
    countdown.part_ended(10)
    countdown.look(10)
    countdown.look(30, share_done=0.5)
    with pytest.raises(CannotEnd):
        countdown.look(31, share_done=0.5)
    result = WorkResult(1, WorkStatus.DONE)
    countdown.stop(31, result)
    assert result.stages == StageTimes(vision_ns=10, prefill_ns=21)
    assert result.remaining == StageTimes(prefill_ns=19, decode_ns=70)
