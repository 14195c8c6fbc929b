"""Success at a task that needs memory, from rows, by hand."""

import json
from copy import deepcopy

import pytest

from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.forgetting.remembered import read_remembered, summary, with_remembered
from vla_edge_ros.figures import proportion, wilson_interval


def rows_of(policy: str, capacity: int, successes: list[int]) -> list[dict]:
    return [
        {
            "policy": policy,
            "capacity": capacity,
            "seed": seed,
            "has_succeeded": bool(success),
            "is_cue_held": not success,
        }
        for seed, success in enumerate(successes)
    ]


def test_success_is_told_by_capacity_with_wilson_s_interval_and_over_all():
    rows = rows_of("fifo", 4, [1, 0, 0, 0]) + rows_of("fifo", 8, [1, 1, 1, 0])
    figures = summary(rows, ["fifo"], [4, 8])["policies"]["fifo"]
    assert figures["remember_success_by_capacity"]["8"] == {
        "value": 0.75,
        "episodes": 4,
        "ci95": list(wilson_interval(3, 4)),
    }
    assert figures["remember_success"] == 0.5
    assert figures["remember_cue_held_by_capacity"] == {"4": 0.75, "8": 0.25}
    assert "remember_minus_fifo" not in figures


def test_differences_are_paired_by_seed():
    # Two in three episodes are lost by both; only the pairing tells that the policies never differ.
    rows = rows_of("fifo", 4, [1, 0, 0] * 4) + rows_of("novelty", 4, [1, 0, 0] * 4)
    assert summary(rows, ["fifo", "novelty"], [4])["policies"]["novelty"]["remember_minus_fifo"] == {
        "mean": 0.0,
        "ci95": [0.0, 0.0],
    }


def test_only_seeds_that_all_policies_have_count():
    rows = rows_of("fifo", 4, [0, 0, 0, 0, 0]) + rows_of("semantic", 4, [1, 1])
    found = summary(rows, ["fifo", "semantic"], [4])
    assert (found["seeds"], found["seed_list"]) == (2, [0, 1])
    assert found["policies"]["fifo"]["remember_success_by_capacity"]["4"]["episodes"] == 2
    assert found["policies"]["semantic"]["remember_minus_fifo"]["mean"] == pytest.approx(1.0)


def test_a_run_that_has_nothing_whole_yet_says_so_in_plain_json():
    found = summary(rows_of("fifo", 4, [1]), ["fifo", "semantic"], [4])
    assert found["seeds"] == 0
    assert found["policies"]["fifo"]["remember_success"] is None
    json.dumps(found, allow_nan=False)


def test_an_evaluation_takes_the_success_of_its_policies_up():
    evaluated = {"policies": {"fifo": {"regret_mean": 0.1}, "random": {"regret_mean": 0.2}}, "seeds": 20}
    both = with_remembered(evaluated, summary(rows_of("fifo", 4, [1, 1]), ["fifo"], [4]))
    assert both["policies"]["fifo"]["regret_mean"] == 0.1
    assert both["policies"]["fifo"]["remember_success"] == 1.0
    assert both["policies"]["random"] == {"regret_mean": 0.2}
    assert (both["seeds"], both["remember"]["seeds"]) == (20, 2)


def test_the_success_with_late_cues_is_kept_apart():
    evaluated = {"policies": {"fifo": {"remember_success": 0.5}}}
    late = summary(rows_of("fifo", 4, [0, 0]), ["fifo"], [4]) | {"cue_later_s": [4.0, 8.0]}
    both = with_remembered(evaluated, late)
    assert both["policies"] == evaluated["policies"]
    assert both["remember_late"]["policies"]["fifo"]["remember_success"] == 0.0


def whole() -> dict:
    rows = rows_of("fifo", 4, [1, 0]) + rows_of("novelty", 4, [1, 1])
    references = {"full": proportion([True]), "at_once": proportion([])}
    return summary(rows, ["fifo", "novelty"], [4]) | references | {"chance": 0.25}


def test_figures_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "remember.json"
    path.write_text(json.dumps(whole()))
    assert read_remembered(path) == json.loads(json.dumps(whole()))


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (("chance",), None, "chance is None, wanted a finite number"),
        (("full",), {}, "full.value is missing"),
        (("at_once", "ci95"), [0.1], "an interval is [0.1], wanted two numbers"),
        (("policies", "fifo"), 3, "policies.fifo is 3, wanted an object"),
        (("policies", "novelty", "remember_success"), "1", "wanted a finite number"),
        (("policies", "novelty", "remember_success_ci95"), [1.0] * 3, "wanted two numbers"),
        (
            ("policies", "novelty", "remember_minus_fifo"),
            {"mean": 0.5},
            "remember_minus_fifo.ci95 is missing",
        ),
        (("policies", "fifo", "remember_success_by_capacity"), {}, "fifo has capacities , wanted [4]"),
        (("capacities",), 4, "capacities is 4, wanted a list"),
    ],
)
def test_figures_of_a_wrong_inner_shape_are_refused_with_the_place(tmp_path, place, value, reason):
    found = deepcopy(whole())
    part = found
    for name in place[:-1]:
        part = part[name]
    part[place[-1]] = value
    path = tmp_path / "remember.json"
    path.write_text(json.dumps(found))
    with pytest.raises(UserError, match="it has no figures of remember_study") as refusal:
        read_remembered(path)
    assert reason in str(refusal.value)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"[" * 100_000])
def test_a_file_without_figures_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "remember.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match="it has no figures of remember_study"):
        read_remembered(path)
    with pytest.raises(UserError, match="No such file or directory; name the remember"):
        read_remembered(tmp_path / "gone.json")
