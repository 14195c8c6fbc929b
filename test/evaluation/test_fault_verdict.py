"""The table of faults and the judgement: each promise that is broken is found, and named alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from vla_edge_ros.control.decision import Decision
from vla_edge_ros.evaluation.fault_page import COVERED, main
from vla_edge_ros.evaluation.fault_verdict import Injection, ToldTick, broken, judge
from vla_edge_ros.evaluation.faults import FAULTS

ROOT = Path(__file__).resolve().parents[2]
PERIOD_NS = 33_333_000
BEGAN, ENDED, N_TICKS = 10, 20, 40
"""The fault lasts from tick 10 to tick 20 of 40."""


def told(tick: int) -> ToldTick:
    is_held = BEGAN <= tick < ENDED
    hold_ms = (tick - BEGAN + 1) * 33.333 if is_held else 0.0
    decision = Decision.SAFE_STOP if hold_ms > 300 else Decision.HOLD_NO_FRAME if is_held else Decision.FRESH
    frame = None if is_held else 2 * tick + 1
    return ToldTick(
        received_ns=tick * PERIOD_NS,
        tick=tick,
        decision=decision,
        effect_stamp_ns=0,
        is_enabled=True,
        frame_index=frame,
        frame_stamp_ns=frame,
        frame_age_ms=None if is_held else 10.0,
        retained_frames=tick,
        hold_ms=hold_ms,
        skipped_ticks=0,
        events=(),
    )


def verdict(name="camera-unplugged", observed=None, missing=(), **changes: dict):
    """Of an unplugged camera as it should be, but for `changes` of ticks (`t12={...}`)."""
    ticks = [
        replace(told(tick), **changes.get(f"t{tick}", {})) for tick in range(N_TICKS) if tick not in missing
    ]
    fault = replace(FAULTS[name], recovery_s=0.5)
    injection = Injection(fault, ticks, BEGAN * PERIOD_NS, ENDED * PERIOD_NS, observed or {})
    return judge(injection, max_hold_ms=300.0)


def not_kept(**keywords) -> list[str]:
    found = verdict(**keywords)
    failed = [what for what, is_kept in found["checks"].items() if not is_kept]
    assert found["is_kept"] is (not failed)
    return failed


def test_what_the_table_says_is_kept_and_counted_in_its_parts():
    found = verdict()
    assert found["is_kept"] and all(found["checks"].values())
    assert found["before"] == {"FRESH": 10}
    assert found["during"] == {"HOLD_NO_FRAME": 9, "SAFE_STOP": 1}
    assert found["after"] == {"FRESH": 20}
    assert (found["longest_without_fresh"], found["recovery_ticks"]) == (10, 0)


NEVER = {f"t{tick}": {"is_enabled": False} for tick in range(ENDED, N_TICKS)}
LATE = {f"t{tick}": {"is_enabled": False} for tick in range(ENDED, ENDED + 16)}


@pytest.mark.parametrize(
    ("keywords", "what"),
    [
        ({"missing": (15,)}, "every tick was told once, or counted as skipped"),
        ({"t5": {"skipped_ticks": 1}}, "every tick was told once, or counted as skipped"),
        ({"t15": {"hold_ms": 300.1}}, "no hold beyond 300 ms"),
        ({"t30": {"frame_index": 59}}, "no frame used twice or after a later one"),
        ({"t30": {"frame_stamp_ns": 59}}, "no frame used twice or after a later one"),
        (NEVER, "FRESH again within 0.5 s"),
        (LATE, "FRESH again within 0.5 s"),
        ({"t19": {"decision": Decision.HOLD_NO_FRAME, "hold_ms": 0.0}}, "SAFE_STOP seen"),
        ({"t10": {"decision": Decision.SAFE_STOP}}, "first HOLD_NO_FRAME, then SAFE_STOP"),
        ({"t15": {"decision": Decision.FAULT}}, "no FAULT"),
        ({"name": "node-stopped"}, "skipped ticks counted"),
        ({"observed": {"said so": False}}, "said so"),
    ],
)
def test_each_promise_that_is_broken_is_named_alone(keywords, what):
    assert not_kept(**keywords) == [what]


def fresh(*ticks: int, age_ms: float = 10.0) -> dict[str, dict]:
    """Changes that make these ticks FRESH, each with a picture of its own."""
    given = {"decision": Decision.FRESH, "hold_ms": 0.0, "frame_age_ms": age_ms}
    return {f"t{tick}": given | {"frame_index": 2 * tick, "frame_stamp_ns": 2 * tick} for tick in ticks}


def test_where_fresh_is_to_go_on_its_share_during_the_fault_counts_and_skipped_ticks_with_it():
    five = fresh(*range(BEGAN, ENDED, 2))
    wrong = ["FRESH in 50 % of the ticks"]
    assert not_kept(name="subscriber-stops", **five) == []
    assert not_kept(name="subscriber-stops", **five | {"t12": {}}) == wrong
    skipped = {"missing": (11, 12), "t13": {"skipped_ticks": 2}}
    assert not_kept(name="subscriber-stops", **five | skipped) == wrong
    ten_times = {"events": ("reset_memory",) * 10}
    assert not_kept(name="memory-reset", t11=ten_times) == ["FRESH in 25 % of the ticks"]


@pytest.mark.parametrize("times", [1, 9, 11])
def test_an_event_takes_effect_as_often_as_it_was_sent_in_whichever_ticks(times):
    goes_on = fresh(*range(BEGAN, ENDED, 2))
    two_ticks = {"t11": {"events": ("instruction",) * 4}, "t13": {"events": ("instruction",) * 6}}
    assert not_kept(name="instruction-change", **goes_on | two_ticks) == []
    other = {"t11": {"events": ("instruction",) * times}}
    assert not_kept(name="instruction-change", **goes_on | other) == ["instruction took effect 10 times"]


def test_under_a_slow_camera_all_pictures_but_two_give_a_fresh_tick():
    # 15 Hz bring 5 within the 10 ticks.
    assert not_kept(name="camera-15hz", **fresh(11, 13, 15)) == []
    assert not_kept(name="camera-15hz", **fresh(11, 13)) == ["FRESH 15 times a second, but for 2"]


def test_under_a_fast_camera_the_pictures_used_are_of_the_last_tick():
    newest, older = fresh(10, 12, 14), fresh(11, 13, age_ms=33.4)
    wrong = ["median age of the pictures used at most 33.3 ms"]
    assert not_kept(name="camera-60hz", **newest | older) == []
    assert not_kept(name="camera-60hz", **newest | older | fresh(15, 17, age_ms=33.4)) == wrong


@pytest.mark.parametrize(("n_late", "is_kept"), [(3, True), (4, True), (5, False)])
def test_a_slow_stage_is_late_four_times_at_most_before_passes_are_refused(n_late, is_kept):
    late = {f"t{t}": {"decision": Decision.HOLD_LATE} for t in range(BEGAN, BEGAN + n_late)}
    refused = {f"t{t}": {"decision": Decision.HOLD_REFUSED} for t in range(BEGAN + n_late, ENDED - 1)}
    wrong = [] if is_kept else ["HOLD_LATE at most 4 times before HOLD_REFUSED"]
    assert not_kept(name="stage-slow", **late | refused) == wrong


def test_an_event_counts_where_it_took_effect_under_the_fault():
    wrong = ["HOLD_STALE_FRAME seen"]
    twice = {"events": ("retune", "retune")}
    assert not_kept(name="parameter-change", t11=twice) == wrong
    assert not_kept(name="parameter-change", t5=twice) == [*wrong, "retune took effect 2 times"]


def test_ticks_that_were_wholly_missed_may_be_missing_where_the_next_one_counts_them():
    assert not_kept(name="node-stopped", missing=(15, 16), t17={"skipped_ticks": 2}) == []


def test_a_node_that_was_started_again_begins_to_count_again():
    restarted = {f"t{tick}": {"tick": tick - 25, "frame_index": tick - 24} for tick in range(25, N_TICKS)}
    assert not_kept(**restarted) == []


def test_a_node_that_could_not_be_watched_to_the_end_is_broken_in_the_same_shape():
    found = broken(FAULTS["engine-killed"], "the node ended")
    assert found.keys() == verdict().keys()
    assert found["checks"] == {"the node ended": False} and not found["is_kept"]


def test_the_values_of_a_tick_message_are_read():
    values = {
        "tick": "7",
        "decision": "HOLD_BUSY",
        "effect_stamp_ns": "33",
        "is_enabled": "False",
        "frame_index": "",
        "hold_ms": "",
    }
    values |= {
        "frame_stamp_ns": "",
        "frame_age_ms": "",
        "retained_frames": "2",
        "skipped_ticks": "1",
        "events": "a b",
    }
    tick = ToldTick.from_values(values, 5)
    assert (tick.tick, tick.decision, tick.frame_index, tick.events) == (
        7,
        Decision.HOLD_BUSY,
        None,
        ("a", "b"),
    )
    assert not tick.is_enabled and tick.received_ns == 5


def test_the_page_is_current_and_every_test_that_it_cites_exists(capsys):
    assert main([]) == 0, "python -m vla_edge_ros.evaluation.fault_page --write"
    for row in COVERED:
        file, _, name = row.test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(), row.test
