"""Percentiles are values that occurred, by nearest rank."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_edge_ros.figures import counted, in_words, percentiles, proportion, wilson_interval


def test_nearest_rank_of_a_thousand_values():
    assert percentiles(range(1, 1001)) == {"n": 1000, "p50": 500, "p99": 990, "p999": 999, "max": 1000}


def test_with_few_values_the_tail_is_the_largest():
    assert percentiles([3.0, 1.0, 2.0]) == {"n": 3, "p50": 2.0, "p99": 3.0, "p999": 3.0, "max": 3.0}


def test_nothing_gives_no_figures_and_gaps_are_left_out():
    assert percentiles([]) == {"n": 0, "p50": None, "p99": None, "p999": None, "max": None}
    assert percentiles([None, math.nan, math.inf, 4.0])["n"] == 1


@given(st.lists(st.floats(-1e9, 1e9), min_size=1))
def test_a_share_of_at_least_q_lies_at_or_below_its_percentile(values):
    figures = percentiles(values)
    for key, q in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)):
        assert figures[key] in values
        at_or_below = sum(value <= figures[key] for value in values)
        below = sum(value < figures[key] for value in values)
        assert at_or_below >= q * len(values) - 1e-6
        assert below < q * len(values)


@pytest.mark.parametrize(
    ("value", "digits", "unit", "text"),
    [
        (None, 1, "ms", "–"),
        (math.nan, 1, "ms", "–"),
        (12345, 0, "", "12,345"),
        (2.345, 1, "ms", "2.3 ms"),
        ("?", 1, "", "?"),
    ],
)
def test_numbers_in_words(value, digits, unit, text):
    assert in_words(value, digits, unit) == text


def test_a_proportion_comes_with_wilsons_interval():
    """40 of 50: Wilson's score interval at 95 % is 0.670 to 0.888 (Brown, Cai, DasGupta 2001, formula 4)."""
    found = proportion([True] * 40 + [False] * 10)
    assert found["value"] == 0.8
    assert found["episodes"] == 50
    assert found["ci95"] == pytest.approx([0.6696, 0.8876], abs=1e-4)
    assert proportion([True] * 20)["ci95"][1] == 1.0
    assert proportion([]) == {"value": None, "episodes": 0, "ci95": None}


def test_the_interval_is_wilsons():
    # z^2 / (n + z^2) is its upper end where nothing was found.
    assert wilson_interval(0, 3000) == pytest.approx((0.0, 3.8415 / 3003.8415), abs=1e-7)
    low, high = wilson_interval(50, 100)
    assert (low, high) == pytest.approx((0.40383, 0.59617), abs=1e-5)
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("n", "text"), [(0, "0 ticks"), (1, "1 tick"), (2, "2 ticks"), (1024, "1,024 ticks")]
)
def test_what_is_counted_has_its_plural(n, text):
    assert counted(n, "tick") == text
