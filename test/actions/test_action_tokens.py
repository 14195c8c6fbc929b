import numpy as np
import pytest

from vla_edge_ros.actions.tokens import detokenise


def openvla_decode(ids, vocabulary_size):
    """ActionTokenizer.decode_token_ids_to_actions as OpenVLA publishes it."""
    bins = np.linspace(-1, 1, 256)
    centres = (bins[:-1] + bins[1:]) / 2.0
    discretised = np.clip(vocabulary_size - ids - 1, a_min=0, a_max=centres.shape[0] - 1)
    return centres[discretised]


def openvla_encode(actions, vocabulary_size):
    return vocabulary_size - np.digitize(np.clip(actions, -1, 1), np.linspace(-1, 1, 256))


@pytest.mark.parametrize("vocabulary_size", [256, 513, 32000, 151936])
def test_all_256_rows_decode_as_openvla_decodes_them(vocabulary_size):
    ids = np.arange(vocabulary_size - 256, vocabulary_size)
    assert np.array_equal(detokenise(ids, vocabulary_size), openvla_decode(ids, vocabulary_size))


def test_the_rows_at_both_ends():
    # Half a bin inside: 1 - (2 / 255) / 2.
    assert detokenise(np.array([151935]), 151936)[0] == pytest.approx(-0.99608, abs=5e-6)
    first_two = detokenise(np.array([151680, 151681]), 151936)
    assert first_two == pytest.approx([0.99608, 0.99608], abs=5e-6)
    assert detokenise(np.array([151682]), 151936)[0] < first_two[0]


def test_an_encoded_action_decodes_to_within_half_a_bin():
    actions = np.linspace(-1, 1, 1001)
    decoded = detokenise(openvla_encode(actions, 32000), 32000)
    assert np.abs(decoded - actions).max() <= 1 / 255 + 1e-12


def test_the_shape_is_kept_and_small_integer_types_do_not_wrap():
    ids = np.full((8, 7), 255, np.uint8)
    values = detokenise(ids, 300)
    assert values.shape == (8, 7)
    assert np.array_equal(values, np.full((8, 7), openvla_decode(255, 300)))


@pytest.mark.parametrize("bad", [743, 1000, 0, -1, 2**31 - 1])
def test_an_id_outside_the_last_256_rows_is_refused(bad):
    ids = np.array([[999, bad, 744]])
    with pytest.raises(ValueError, match=rf"token {bad} is no action: wanted 744 to 999"):
        detokenise(ids, 1000)


def test_ids_that_are_not_integers_are_refused():
    with pytest.raises(ValueError, match="float64"):
        detokenise(np.array([999.0]), 1000)
