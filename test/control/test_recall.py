"""When the control loop brings a forgotten frame back: in ticks with time for it, and in no others."""

from dataclasses import replace

import numpy as np
import pytest
from control_rig import MS, Rig

from vla_edge_ros.control.admission import Admission
from vla_edge_ros.control.ladder import Step

AWAY_TICKS = range(5, 60)
"""The robot looks at something, away, and back."""


class Scenes:
    """Stands in for the log of signatures: what frame `index` shows is the rig's own decision."""

    shape = (64,)

    def __init__(self):
        self.shown = 0

    def of(self, index):
        return np.random.default_rng(self.shown).standard_normal(64).astype(np.float32)


def looks_away_and_back(until_tick: int = 80, **given):
    scenes = Scenes()
    rig = Rig(signatures=scenes, n_slots=10 + 8 + 8 * 32, ring_blocks=4, **given)

    def each(tick):
        scenes.shown = int(tick in AWAY_TICKS)

    return rig, rig.run(until_tick, each=each)


def recalls(records) -> list[int]:
    return [r.tick for r in records for line in r.journal if "resembles again" in line["reason"]]


def test_a_frame_comes_back_in_the_tick_after_the_one_that_resembles_it():
    rig, records = looks_away_and_back(block_bytes=1_000_000)
    assert recalls(records) == [AWAY_TICKS.stop + 1]
    assert len(rig.engine.restored) == 1
    first, *others = [frame.meta.capture_ns for frame in rig.controller.memory.frames]
    assert first < rig.schedule.times(AWAY_TICKS.start).start_ns
    assert min(others) > rig.schedule.times(AWAY_TICKS.stop - 10).start_ns
    assert len(rig.engine.submitted[-1].context_slots) == 10 + 7 * 32


@pytest.mark.parametrize(("spare_ms", "n_recalls"), [(1.9, 0), (2.1, 1)])
def test_it_comes_back_only_where_the_pass_is_predicted_to_leave_the_time_of_two_copies(spare_ms, n_recalls):
    # One to the host and one from it, of 1 MB at 1 GB/s each.
    rig, records = looks_away_and_back(block_bytes=1_000_000, service_ms=31.0 - spare_ms)
    assert {record.predicted_ns for record in records[-5:]} == {round((31.0 - spare_ms) * MS)}
    assert len(recalls(records)) == len(rig.engine.restored) == n_recalls


def test_an_engine_without_a_ring_keeps_nothing_and_brings_nothing_back():
    scenes = Scenes()
    rig = Rig(signatures=scenes, n_slots=10 + 8 + 8 * 32)
    rig.run(60)
    assert rig.engine.stashed == rig.engine.restored == []


@pytest.mark.parametrize("given_up", [{"step": Step.FEWER_FRAMES, "forgets_frames": 1}, {"is_probe": True}])
def test_nothing_comes_back_in_a_tick_that_is_short_of_time_or_may_be(given_up, monkeypatch):
    ask = Admission.ask
    monkeypatch.setattr(Admission, "ask", lambda *given: replace(ask(*given), **given_up))
    rig, records = looks_away_and_back()
    assert len(rig.engine.submitted) > 60
    assert recalls(records) == rig.engine.restored == []
