"""Misses per tick as they are reported: what counts, how sure it is, and who is to blame."""

import pytest

from vla_edge_ros.control.decision import Decision
from vla_edge_ros.control.promise import Promise
from vla_edge_ros.control.record import TickRecord, WorkTimes
from vla_edge_ros.engine.interface import StageTimes

MS = 1_000_000


def record(tick: int, decision: Decision, begins: bool = False, ended_ms: float | None = None) -> TickRecord:
    made = TickRecord(tick, 0, 0, 0, decision, submitted_work=tick if begins else None)
    if ended_ms is not None:
        made.work.append(work(tick, ended_ms))
    return made


def work(work_id: int, ms: float, **stages: int) -> WorkTimes:
    end = round(ms * MS)
    return WorkTimes(work_id, "frame", 0, 0, end, end, StageTimes(**stages))


def counted(*records: TickRecord, target: float = 0.001) -> Promise:
    promise = Promise()
    for made in records:
        promise.count(made, target)
    return promise


@pytest.mark.parametrize(
    ("made", "is_miss"),
    [
        (record(1, Decision.FRESH, True, 20.0), False),
        (record(1, Decision.HOLD_LATE, True), True),
        (record(1, Decision.FRESH_LATE, True), True),
        (record(1, Decision.SAFE_STOP, True), True),
        (record(1, Decision.FAULT, True), True),
        (record(1, Decision.HOLD_LATE, True, 32.0), True),
        (record(1, Decision.HOLD_REFUSED), False),
        (record(1, Decision.HOLD_BUSY), False),
        (record(1, Decision.SAFE_STOP, True, 20.0), False),
        (record(1, Decision.HOLD_NO_FRAME, True, 1.0), False),
    ],
    ids=lambda value: f"{value.decision} {value.work != []}" if isinstance(value, TickRecord) else "",
)
def test_a_miss_is_a_pass_that_was_late_aborted_or_failed(made, is_miss):
    assert made.is_miss is is_miss
    assert counted(made).misses == is_miss


def test_a_pass_that_was_stopped_is_a_miss_whatever_was_decided():
    for decision in (Decision.HOLD_LATE, Decision.SAFE_STOP, Decision.HOLD_NO_FRAME):
        made = record(1, decision, True, 30.0)
        made.work[0].is_aborted = True
        assert made.is_miss


def test_a_stopped_pass_is_blamed_on_what_it_had_still_to_take():
    made = record(1, Decision.HOLD_LATE, True)
    made.predicted_by_stage = {"prefill": 20 * MS, "decode": 5 * MS}
    made.work.append(work(1, 25.0, prefill_ns=24 * MS))
    made.work[0].is_aborted = True
    made.work[0].remaining = StageTimes(decode_ns=12 * MS)
    assert counted(made).blame == {"decode": 1}


def test_rates_are_per_tick_whatever_was_decided():
    kinds = [Decision.FRESH, Decision.HOLD_REFUSED, Decision.HOLD_REFUSED, Decision.HOLD_BUSY, Decision.FRESH]
    promise = counted(*(record(tick, kind) for tick, kind in enumerate(kinds)))
    assert (promise.goodput, promise.refusal_rate, promise.miss_rate) == (0.4, 0.4, 0.0)
    assert (promise.longest_refusal, promise.longest_hold, promise.hold_streak) == (2, 3, 0)


def test_another_target_begins_another_account():
    promise = counted(record(0, Decision.HOLD_LATE, True))
    promise.count(record(1, Decision.FRESH), 0.01)
    assert (promise.ticks, promise.misses, promise.target) == (1, 0, 0.01)


def test_a_late_pass_is_blamed_when_it_ends_on_the_stage_that_took_longer_than_predicted():
    late = record(0, Decision.HOLD_LATE, True)
    late.predicted_by_stage = {"prefill": 5 * MS, "decode": 30 * MS}
    busy = record(1, Decision.HOLD_BUSY)
    ended = record(2, Decision.FRESH, True, 20.0)
    ended.work.insert(0, work(0, 60.0, prefill_ns=25 * MS, decode_ns=33 * MS))
    promise = counted(late, busy)
    assert not promise.blame
    promise.count(ended, 0.001)
    assert promise.blame == {"prefill": 1}


def test_an_engine_that_dies_is_blamed_itself():
    promise = counted(record(0, Decision.HOLD_LATE, True), record(1, Decision.FAULT))
    assert promise.blame == {"engine": 1}
    assert counted(record(0, Decision.FAULT, True)).blame == {"engine": 1}


def test_the_promise_is_broken_by_more_misses_than_the_account_can_hold():
    late = [record(tick, Decision.HOLD_LATE, True, 50.0) for tick in range(20)]
    assert not counted(*late[:19]).is_broken
    assert counted(*late).is_broken
