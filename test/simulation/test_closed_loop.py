"""The loop of node and arm on a virtual clock, and what is done while a pass is late."""

import json

import pytest

from vla_edge_ros.share import share_directory
from vla_edge_ros.simulation import latency_study
from vla_edge_ros.simulation.closed_loop import ClosedLoop
from vla_edge_ros.simulation.latency_study import (
    LATENCIES_MS,
    RULES,
    constant,
    figures,
    main,
    spells,
    table,
)

PARAMETERS = {
    "engine.backend": "fake",
    "engine.model": "fake",
    "actions.policy_file": str(share_directory() / "config/policies/tiny_vla.yaml"),
}
pytestmark = pytest.mark.usefixtures("has_renderer")


def run(rule: str, latency_ms: float, seeds=(0,)):
    how = RULES[rule]
    loop = ClosedLoop(PARAMETERS | how.parameters, constant(latency_ms), how.has_admission, how.repeats)
    try:
        return loop.run("reach", seeds)
    finally:
        loop.close()


def test_where_every_pass_is_in_time_every_tick_after_the_prompts_is_fresh():
    first, second = run("hold, admission", 0, (0, 1))
    for episode in (first, second):
        assert episode.misses == episode.refused == 0
        assert episode.fresh >= episode.ticks - 3


def test_equal_seeds_give_equal_episodes():
    assert run("late action, every pass", 50) == run("late action, every pass", 50)


def test_an_arm_whose_passes_are_all_late_stays_where_it_is():
    (episode,) = run("hold, every pass", 50)
    assert episode.fresh == 0 and episode.misses >= episode.ticks - 3
    assert episode.blind_m < 0.001


def test_admission_refuses_what_is_always_late():
    (episode,) = run("hold, admission", 50)
    assert episode.fresh == 0 and episode.misses < 10 and episode.refused > 0.9 * episode.ticks - 10


def test_late_actions_are_used_at_the_rate_at_which_passes_end():
    # 65 ms are within the second tick: every other tick begins a pass, and the next but one has its action.
    (episode,) = run("late action, every pass", 50)
    assert episode.ticks / 2 - 4 <= episode.fresh <= episode.ticks / 2


def test_repeating_goes_on_without_a_fresh_action_and_a_hold_does_not():
    (held,), (repeated,) = run("late action, every pass", 200), run("repeat, every pass", 200)
    # 215 ms are more than an action may live, unless nothing asks for its age.
    assert held.fresh == 0 and held.blind_m < 0.001
    assert repeated.fresh > 0 and repeated.blind_m > 0.05


def test_spells_are_the_same_in_every_call_and_as_long_as_is_said():
    some, same = spells(100), spells(100)
    times_ms = [some(now) // 1_000_000 for now in range(0, 3600 * 10**9, 10**7)]
    assert times_ms[:10_000] == [same(now) // 1_000_000 for now in range(0, 100 * 10**9, 10**7)]
    assert set(times_ms) == {15, 115}
    assert abs(times_ms.count(115) / len(times_ms) - 0.5 / 3.5) < 0.02


def test_a_call_goes_on_from_the_points_that_are_there(tmp_path, capsys, monkeypatch):
    episodes = run("hold, every pass", 200)
    known = {
        f"reach | constant | {latency} | {rule}": figures(episodes)
        for latency in LATENCIES_MS
        for rule in RULES
    }
    path = tmp_path / "latency.json"
    path.write_text(json.dumps(known))
    monkeypatch.setattr(latency_study, "measure", None)
    assert main(["--episodes", "1", "--processes", "1", "--json", str(path)]) == 0
    assert capsys.readouterr().out.strip() == table(known)
    assert "| reach | constant | 50 | hold, every pass | 0.00 (0.00 to 0.79) | 1 |" in table(known)


def test_another_text_is_run_to_its_end_and_has_a_confidence():
    loop = ClosedLoop(PARAMETERS, constant(0))
    try:
        (episode,) = loop.run("reach", [0], "make me a cup of tea")
    finally:
        loop.close()
    assert not episode.has_succeeded and episode.ticks >= 180
    assert episode.fresh >= episode.ticks - 3 and 0 < episode.confidence <= 1
