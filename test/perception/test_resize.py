import tracemalloc

import numpy as np
import pytest

from vla_edge_ros.perception.resize import Resizer


def grey(rows):
    """(h, w, 3) uint8 with the given values in all three channels."""
    return np.repeat(np.array(rows, np.uint8)[:, :, None], 3, axis=2)


def resized(rgb, **options):
    resizer = Resizer(**options)
    out = np.full((resizer.height, resizer.width, 3), 99, np.uint8)
    assert resizer.resize(rgb, out) is out
    return out


def random_picture(height, width):
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def area_mean(rgb, height, width):
    """The mean of the source area that each pixel covers, in float64."""

    def weights(n_out, n_in):
        edges = np.arange(n_out + 1) * n_in / n_out
        left, right = np.arange(n_in), np.arange(n_in) + 1
        covered = np.minimum(edges[1:, None], right) - np.maximum(edges[:-1, None], left)
        return np.clip(covered, 0, None) * n_out / n_in

    rows, columns = weights(height, rgb.shape[0]), weights(width, rgb.shape[1])
    return np.einsum("yi,ijc,xj->yxc", rows, rgb.astype(np.float64), columns, optimize=True)


def test_shrinking_by_two_gives_the_mean_of_each_block_of_four():
    # (0 + 4 + 8 + 12) / 4 = 6; (100 + 104 + 108 + 112) / 4 = 106
    source = grey([[0, 4, 100, 104], [8, 12, 108, 112]])
    assert np.array_equal(resized(source, width=2, height=1), grey([[6, 106]]))


def test_a_half_covered_row_counts_half():
    # 3 rows to 2: each takes 1.5 rows, so (10 + 0.5 * 40) / 1.5 = 20 and (0.5 * 40 + 100) / 1.5 = 80.
    assert np.array_equal(resized(grey([[10], [40], [100]]), width=1, height=2), grey([[20], [80]]))


@pytest.mark.parametrize("size", [(480, 640), (720, 1280), (102, 240), (64, 128)])
def test_area_is_the_mean_of_the_covered_area_to_the_nearest_value(size):
    source = random_picture(*size)
    error = resized(source).astype(np.float64) - area_mean(source, 64, 128)
    assert np.abs(error).max() <= 0.5 + 1e-3


def test_growing_interpolates_linearly_between_pixel_centres():
    # Four centres at -0.25, 0.25, 0.75, 1.25 of the two source pixels; outside the edge pixel holds.
    assert np.array_equal(resized(grey([[0, 100]]), width=4, height=1), grey([[0, 25, 75, 100]]))


@pytest.mark.parametrize("size", [(64, 64), (480, 100), (32, 640)])
def test_area_turns_linear_where_an_axis_grows(size):
    source = random_picture(*size)
    assert np.array_equal(resized(source), resized(source, interpolation="linear"))


def test_linear_shrinking_samples_between_the_middle_pixels():
    # 4 to 1: the centre lies between the second and the third pixel: (20 + 40) / 2; the ends are not seen.
    source = grey([[255, 20, 40, 255]])
    assert np.array_equal(resized(source, width=1, height=1, interpolation="linear"), grey([[30]]))


@pytest.mark.parametrize("policy", ["stretch", "letterbox", "center_crop"])
@pytest.mark.parametrize("interpolation", ["area", "linear"])
def test_channels_keep_their_order(policy, interpolation):
    source = np.full((100, 200, 3), (250, 100, 3), np.uint8)
    out = resized(source, policy=policy, interpolation=interpolation)
    assert np.array_equal(out, np.full((64, 128, 3), (250, 100, 3), np.uint8))


def test_letterbox_puts_black_beside_a_picture_that_is_too_tall():
    # 640x480 into 128x64: 640 * 64 / 480 = 85.3 -> 85 columns, from (128 - 85) // 2 = 21 to 106.
    source = random_picture(480, 640)
    out = resized(source, policy="letterbox")
    assert not out[:, :21].any()
    assert not out[:, 106:].any()
    assert np.array_equal(out[:, 21:106], resized(source, width=85))


def test_letterbox_puts_black_above_and_below_a_picture_that_is_too_wide():
    # 240x102 into 128x64: 102 * 128 / 240 = 54.4 -> 54 rows, from (64 - 54) // 2 = 5 to 59.
    source = random_picture(102, 240)
    out = resized(source, policy="letterbox")
    assert not out[:5].any()
    assert not out[59:].any()
    assert np.array_equal(out[5:59], resized(source, height=54))


def test_center_crop_cuts_the_same_from_both_sides():
    # 640x480 at aspect 2: 640 * 64 / 128 = 320 rows, from (480 - 320) // 2 = 80 to 400.
    source = random_picture(480, 640)
    assert np.array_equal(resized(source, policy="center_crop"), resized(source[80:400]))
    # 300x102: 102 * 128 / 64 = 204 columns, from (300 - 204) // 2 = 48 to 252.
    source = random_picture(102, 300)
    assert np.array_equal(resized(source, policy="center_crop"), resized(source[:, 48:252]))


@pytest.mark.parametrize("policy", ["stretch", "letterbox", "center_crop"])
@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (5000, 1), (1, 2), (63, 127), (65, 129)])
def test_a_picture_of_one_value_stays_it_at_any_shape(policy, size):
    out = resized(np.full((*size, 3), 200, np.uint8), policy=policy)
    if policy == "letterbox":
        assert set(np.unique(out)) <= {0, 200}
        assert (out == 200).any()
    else:
        assert (out == 200).all()


def test_a_padded_view_resizes_like_its_copy():
    view = random_picture(480, 700)[:, 20:660]
    assert np.array_equal(resized(view), resized(view.copy()))


@pytest.mark.parametrize("policy", ["stretch", "letterbox", "center_crop"])
def test_resizing_allocates_no_array(policy):
    resizer, source, out = Resizer(policy=policy), random_picture(480, 640), np.empty((64, 128, 3), np.uint8)
    resizer.resize(source, out)
    tracemalloc.start()
    try:
        resizer.resize(source, out)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "crop"}, "'crop', wanted one of stretch, letterbox, center_crop"),
        ({"interpolation": "cubic"}, "'cubic', wanted one of area, linear"),
        ({"width": 0}, "0x64 pixels"),
    ],
)
def test_a_wrong_option_is_refused_with_what_is_allowed(options, message):
    with pytest.raises(ValueError, match=message):
        Resizer(**options)
