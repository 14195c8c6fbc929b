"""The record of forgetting that the documentation speaks of."""

import json
from pathlib import Path

from vla_edge_ros.memory.policies import POLICIES
from vla_edge_ros.parameters import defaults

RECORD = json.loads((Path(__file__).resolve().parents[3] / "docs/benchmarks/forgetting.json").read_text())


def test_it_has_every_policy_s_success_at_each_of_three_capacities():
    remember = RECORD["remember"]
    assert set(POLICIES) <= set(remember["policies"])
    assert len(remember["capacities"]) == 3
    for name in POLICIES:
        by_capacity = remember["policies"][name]["remember_success_by_capacity"]
        assert list(by_capacity) == [str(capacity) for capacity in remember["capacities"]]
        assert {found["episodes"] for found in by_capacity.values()} == {remember["seeds"]}


def test_no_policy_does_better_than_the_default_both_with_early_and_with_late_cues():
    success = {name: RECORD["remember"]["policies"][name]["remember_success"] for name in POLICIES}
    assert RECORD["default_policy"] == defaults()["memory.policy"] == "semantic"
    late = RECORD["remember_late"]["policies"]
    # Where the cue is at the beginning, sinks_recent may be level with it; with late cues it is not.
    better = [name for name in POLICIES if success[name] > success["semantic"]]
    assert all(late[name]["remember_success"] < late["semantic"]["remember_success"] for name in better)


def test_an_evaluated_policy_has_its_success_beside_its_regret():
    for name, figures in RECORD["policies"].items():
        assert figures["remember_success"] == RECORD["remember"]["policies"][name]["remember_success"]
        assert {"regret_mean", "regret_ci95", "needle_recall", "victim_us_p99"} <= figures.keys()
