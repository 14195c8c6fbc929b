"""From rows to figures by policy, by hand."""

import json

import pytest

from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.forgetting import results


def row(policy="fifo", seed=0, bag="a", capacity=4, **figures) -> dict:
    plain = dict.fromkeys(results.FIGURES, 0.5)
    return {
        "bag": bag,
        "footage_digest": "0123",
        "policy": policy,
        "embedding": "pooled",
        "capacity": capacity,
        "seed": seed,
        "plan_model": "tiny",
        "plan_frames": 9,
        "plan_oracle_every": 1,
        "plan_has_positions": True,
        "plan_weights": "seeded",
        "frames": 9,
        "evictions": 1,
        "needles": [1],
        "needle_life": [3],
        "eviction_us": [3.0],
        "evicted": [[4, 0]],
        "retained": [1, 2, 3, 4],
        **plain,
        **figures,
    }


def test_a_seed_counts_once_whatever_the_number_of_bags():
    rows = [row(seed=0, bag="a", kl_nats=1.0), row(seed=0, bag="b", kl_nats=3.0), row(seed=1, kl_nats=6.0)]
    assert results.by_seed(rows, "kl_nats") == {0: 2.0, 1: 6.0}
    assert results.summary_of(rows)["kl_mean"] == 4.0


def test_a_trial_that_has_nothing_to_say_is_left_out():
    rows = [row(seed=0, needle_recall=None), row(seed=1, needle_recall=1.0)]
    assert results.summary_of(rows)["needle_recall"] == 1.0
    assert results.summary_of(rows[:1])["needle_recall"] is None


def test_a_difference_is_paired_by_seed():
    # Seeds differ by 10 and more, the policies by 1 in each: only the pairing sees it.
    rows = [row("fifo", seed, regret_rank=10.0 * seed) for seed in range(5)]
    rows += [row("novelty", seed, regret_rank=10.0 * seed + 1.0) for seed in range(5)]
    told = results.difference(rows, "fifo", "novelty", "regret_rank")
    assert told == {"mean": -1.0, "ci95": [-1.0, -1.0], "is_significant": True, "seeds": 5}


def test_a_difference_of_either_sign_is_not_significant():
    rows = [row("fifo", seed) for seed in range(4)]
    rows += [row("novelty", seed, regret_rank=0.5 + (-1) ** seed) for seed in range(4)]
    assert not results.difference(rows, "fifo", "novelty", "regret_rank")["is_significant"]


def test_the_document_names_the_policy_of_least_regret_and_is_plain_json():
    rows = [row("fifo", seed, regret_rank=0.4) for seed in range(3)]
    rows += [row("novelty", seed, regret_rank=0.2) for seed in range(3)]
    document = json.loads(json.dumps(results.document(rows), allow_nan=False))
    assert document["least_regret"] == "novelty"
    assert document["least_regret_minus_others"]["fifo"]["regret_rank"]["mean"] == pytest.approx(-0.2)
    assert (document["bags"], document["seeds"], document["capacities"]) == (["a"], 3, [4])
    assert document["policies"]["fifo"]["eviction_us_p99"] == 3.0


def test_every_policy_has_its_paired_differences_to_three_of_them():
    names = ("fifo", "semantic", "novelty", "random")
    rows = [row(name, seed, kl_nats=1.0 * place) for seed in range(3) for place, name in enumerate(names)]
    policies = json.loads(json.dumps(results.document(rows), allow_nan=False))["policies"]
    for place, name in enumerate(names):
        for other in ("fifo", "semantic", "novelty"):
            if other == name:
                assert f"minus_{other}" not in policies[name]
                continue
            apart = policies[name][f"minus_{other}"]
            assert set(apart) == set(results.FIGURES)
            assert apart["kl_nats"]["mean"] == place - names.index(other)
            assert apart["kl_nats"]["is_significant"]
    assert "minus_novelty" not in results.document([row("fifo")])["policies"]["fifo"]


def test_the_plans_are_rows_of_their_fields():
    rows = [row(), row(plan_weights="0123456789ab")]
    assert results.document(rows)["plans"] == [
        ["tiny", 9, 1, True, "0123456789ab"],
        ["tiny", 9, 1, True, "seeded"],
    ]


def test_one_seed_has_a_mean_and_no_interval():
    document = json.loads(json.dumps(results.document([row(), row("novelty")]), allow_nan=False))
    assert document["policies"]["fifo"]["kl_ci95"] is None
    assert not document["least_regret_minus_others"]["novelty"]["kl_nats"]["is_significant"]


def seeds_in(path) -> list[int]:
    with results.RowFile(path) as file:
        return [entry["seed"] for entry in file.rows]


def test_rows_are_read_again_and_a_cut_last_line_is_dropped(tmp_path):
    path = tmp_path / "rows.jsonl"
    with results.RowFile(path) as file:
        file.append([row(seed=0, bag="ä"), row(seed=1)])
    with path.open("a") as cut:
        cut.write('{"bag": "a", "pol')
    with results.RowFile(path) as file:
        assert [entry["seed"] for entry in file.rows] == [0, 1]
        file.append([row(seed=2)])
    assert seeds_in(path) == [0, 1, 2]


def test_a_file_that_was_cut_in_its_first_line_begins_anew(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"bag"')
    with results.RowFile(path) as file:
        file.append([row(seed=5)])
    assert seeds_in(path) == [5]


def test_two_evaluations_do_not_write_into_one_folder(tmp_path):
    path = tmp_path / "rows.jsonl"
    with results.RowFile(path), pytest.raises(UserError, match="another evaluation writes there"):
        results.RowFile(path)
    assert seeds_in(path) == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"seed": 1}', "bag is missing"),
        (b"\xff\xfe", "'utf-8' codec can't decode"),
        (b"[1]", "it is [1], wanted an object"),
        (json.dumps(row(seed=[1])).encode(), "seed is [1], wanted a whole number"),
        (json.dumps(row(kl_nats="x")).encode(), "kl_nats is 'x', wanted a finite number"),
        (json.dumps({k: v for k, v in row().items() if k != "needles"}).encode(), "needles is missing"),
    ],
)
def test_a_file_of_something_else_is_refused_with_the_line_and_the_reason(tmp_path, line, reason):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(json.dumps(row()).encode() + b"\n" + line + b"\n")
    with pytest.raises(UserError) as refusal:
        results.RowFile(path)
    said = str(refusal.value)
    assert f"rows.jsonl: line 2 is no row of an evaluation: {reason}" in said
    assert said.endswith("name another --out folder")


def test_a_last_line_that_was_cut_within_a_letter_is_dropped_too(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(json.dumps(row(seed=3)).encode() + b'\n{"bag": "\xc3')
    assert seeds_in(path) == [3]
    assert path.read_text().count("\n") == 1 and path.read_text().endswith("}\n")


def test_a_key_of_another_kind_of_row_has_to_be_hashable(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"name": ["a"]}\n')
    with pytest.raises(UserError, match="line 1 is no row of an evaluation"):
        results.RowFile(path, lambda entry: (entry["name"],))


def test_parquet_has_every_row_with_every_column(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    rows = [row(seed=seed, needles=[1, 2], evicted=[[3, 4]]) for seed in (10, 9)]
    results.write_parquet(tmp_path / "rows.parquet", rows)
    table = parquet.read_table(tmp_path / "rows.parquet").to_pylist()
    assert table == sorted(rows, key=lambda entry: entry["seed"])
