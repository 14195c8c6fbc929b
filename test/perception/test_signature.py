import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_edge_ros.perception.signature import patch_signature


def scene(seed: int) -> np.ndarray:
    """Smooth seeded noise with grey levels from 20 to 200, which +20 % does not saturate."""
    coarse = np.random.default_rng(seed).integers(20, 200, (8, 16, 3))
    return np.kron(coarse, np.ones((8, 8, 1), np.int64)).astype(np.uint8)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = patch_signature(a), patch_signature(b)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def with_ball(frame: np.ndarray, left: int) -> np.ndarray:
    drawn = frame.copy()
    drawn[24:40, left : left + 16] = (250, 30, 30)
    return drawn


@given(st.integers(0, 1000), st.floats(0.8, 1.25))
@settings(max_examples=40, deadline=None)
def test_exposure_is_not_seen(seed, factor):
    frame = scene(seed)
    assert cosine(frame, np.rint(frame * factor).astype(np.uint8)) >= 0.99


@given(st.integers(0, 1000), st.integers(0, 96))
@settings(max_examples=40, deadline=None)
def test_an_object_that_moves_by_a_patch_is_seen(seed, left):
    frame = scene(seed)
    assert cosine(with_ball(frame, left), with_ball(frame, left + 16)) < 0.98


def test_the_same_patches_in_another_order_are_another_picture():
    frame = scene(1)
    assert cosine(frame, frame[:, ::-1]) < 0.5


def test_a_flat_frame_has_a_signature_of_zero():
    np.testing.assert_allclose(patch_signature(np.full((64, 128, 3), 90, np.uint8)), 0.0, atol=1e-6)


def test_a_signature_by_hand():
    # Left half 42 grey, right half 92: with 8 added their logarithms are ln 50 and ln 100, ln 2 apart. No
    # patch has contrast or colour inside; each is ln(2) / 2 darker or brighter than the frame, and is divided
    # by the square root of 1 + (ln(2) / 2)^2.
    frame = np.full((64, 128, 3), 42, np.uint8)
    frame[:, 64:] = 92
    half = np.log(2) / 2
    wanted = np.zeros((4, 8, 7))
    wanted[:, :4, 4], wanted[:, 4:, 4] = -half, half
    wanted /= np.sqrt(1 + half**2)
    np.testing.assert_allclose(patch_signature(frame), wanted.reshape(-1), atol=1e-6)
