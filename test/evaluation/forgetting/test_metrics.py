"""The label-free figures, on cases worked out by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_edge_ros.evaluation.forgetting import metrics
from vla_edge_ros.evaluation.forgetting.trial_model import log_softmax


def peaked(*bins: int) -> np.ndarray:
    """(A, 256) log-probabilities whose likeliest bins are `bins`."""
    logits = np.zeros((len(bins), 256))
    logits[np.arange(len(bins)), bins] = 5.0
    return log_softmax(logits)


def test_kl_of_two_coins():
    # KL((3/4, 1/4) || (1/2, 1/2)) = 3/4 ln(3/2) + 1/4 ln(1/2), and a second token without a difference.
    reference, other = np.log([[0.75, 0.25], [0.5, 0.5]]), np.log([[0.5, 0.5], [0.5, 0.5]])
    wanted = (0.75 * np.log(1.5) + 0.25 * np.log(0.5)) / 2
    assert metrics.kl_nats(reference, other) == pytest.approx(wanted)
    assert metrics.kl_nats(reference, reference) == 0.0


@given(st.lists(st.floats(-9, 9), min_size=4, max_size=4), st.lists(st.floats(-9, 9), min_size=4, max_size=4))
@settings(max_examples=50, deadline=None)
def test_kl_is_never_below_zero(first, second):
    assert metrics.kl_nats(log_softmax(np.array([first])), log_softmax(np.array([second]))) >= -1e-12


def test_action_l1_counts_in_shares_of_a_range():
    # Bins lie 2/255 apart in a range of 2: ten bins are 10/255 of it, on average over two tokens half.
    assert metrics.action_l1(peaked(100, 7), peaked(110, 7)) == pytest.approx(10 / 255 / 2)
    # Rows 0 and 1 both stand for the highest bin.
    assert metrics.action_l1(peaked(0), peaked(1)) == 0.0


def test_regret_is_the_distance_to_the_best_choice():
    assert metrics.regret([0.5, 0.2, 0.9], chosen=2) == pytest.approx(0.7)
    assert metrics.regret([0.5, 0.2, 0.9], chosen=1) == 0.0


@pytest.mark.parametrize(("chosen", "rank"), [(0, 1 / 3), (1, 0.0), (2, 5 / 6), (3, 5 / 6)])
def test_the_rank_of_a_choice_counts_better_ones_and_half_of_its_equals(chosen, rank):
    assert metrics.regret_rank([0.5, 0.2, 0.9, 0.9], chosen) == pytest.approx(rank)


def test_there_is_no_rank_among_one():
    assert metrics.regret_rank([3.0], 0) == 0.0


@given(st.lists(st.floats(0, 9), min_size=2, max_size=9))
@settings(max_examples=50, deadline=None)
def test_chance_has_a_mean_rank_of_one_half(losses):
    assert np.mean([metrics.regret_rank(losses, c) for c in range(len(losses))]) == pytest.approx(0.5)


def test_coverage_is_the_share_of_stretches_with_a_frame():
    # Ten seconds in five stretches: 0, 1 and 2 s fill two of them, 10 s the last.
    assert metrics.temporal_coverage([0, 1, 2, 10], 0, 10, 5) == pytest.approx(3 / 5)
    assert metrics.temporal_coverage([9.5, 10], 0, 10, 4) == pytest.approx(1 / 4)
    with pytest.raises(ValueError, match="no stretches"):
        metrics.temporal_coverage([1], 1, 1, 4)


def test_recall_is_the_share_of_needles_that_are_held():
    assert metrics.recall([True, False, False, True]) == 0.5
    assert metrics.recall([]) is None


def test_the_interval_of_a_mean_holds_it_and_needs_two_values():
    values = np.arange(20.0)
    low, high = metrics.bootstrap_ci95(values)
    assert low < 9.5 < high
    # 1.96 standard errors of the mean, within what 10,000 draws leave open.
    assert high - low == pytest.approx(2 * 1.96 * values.std() / np.sqrt(20), rel=0.05)
    assert metrics.bootstrap_ci95([1.0]) is None
    assert metrics.bootstrap_ci95([2.0, 2.0]) == [2.0, 2.0]
