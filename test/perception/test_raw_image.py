from array import array

import numpy as np
import pytest
from camera_messages import BYTES_PER_PIXEL, image, random_image
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_edge_ros.perception.raw_image import DEPTH_ENCODINGS, ENCODINGS, decode_image
from vla_edge_ros.perception.refusal import ImageRefused, RefusalKind

TOPIC = "/camera/image_raw"


def samples(message):
    """The bytes of a message without padding, (rows, bytes of a row)."""
    rows = np.frombuffer(message.data, np.uint8).reshape(-1, message.step)
    return rows[:, : message.width * BYTES_PER_PIXEL[message.encoding]]


def bt601(y, u, v):
    """ITU-R BT.601, limited range: Y 16..235, U and V 16..240 around 128; less than black counts as black."""
    y, u, v = (np.asarray(plane, np.float64) for plane in (y, u, v))
    y = 1.164 * np.maximum(y - 16, 0)
    u, v = u - 128, v - 128
    return np.clip(np.stack([y + 1.596 * v, y - 0.813 * v - 0.391 * u, y + 2.018 * u], axis=-1), 0, 255)


def refusal(message):
    with pytest.raises(ImageRefused) as caught:
        decode_image(message, TOPIC)
    assert TOPIC in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("encoding", "channels"),
    [
        ("rgb8", [0, 1, 2]),
        ("bgr8", [2, 1, 0]),
        ("rgba8", [0, 1, 2]),
        ("bgra8", [2, 1, 0]),
        ("mono8", [0, 0, 0]),
        ("8UC1", [0, 0, 0]),
    ],
)
@pytest.mark.parametrize("padding", [0, 5])
def test_each_channel_lands_where_rgb_wants_it(encoding, channels, padding):
    message = random_image(encoding, 6, 10, padding)
    wanted = samples(message).reshape(6, 10, -1)[..., channels]
    assert np.array_equal(decode_image(message, TOPIC), wanted)


@pytest.mark.parametrize(
    ("encoding", "y", "u", "v"),
    [
        ("yuv422", slice(1, None, 2), slice(0, None, 4), slice(2, None, 4)),
        ("uyvy", slice(1, None, 2), slice(0, None, 4), slice(2, None, 4)),
        ("yuv422_yuy2", slice(0, None, 2), slice(1, None, 4), slice(3, None, 4)),
        ("yuyv", slice(0, None, 2), slice(1, None, 4), slice(3, None, 4)),
    ],
)
@pytest.mark.parametrize("padding", [0, 6])
def test_two_pixels_in_a_row_share_their_chroma_in_yuv422(encoding, y, u, v, padding):
    message = random_image(encoding, 6, 10, padding)
    rows = samples(message)
    wanted = bt601(rows[:, y], rows[:, u].repeat(2, axis=1), rows[:, v].repeat(2, axis=1))
    assert np.abs(decode_image(message, TOPIC) - wanted).max() <= 1


@pytest.mark.parametrize(("encoding", "u", "v"), [("nv12", 0, 1), ("nv21", 1, 0)])
@pytest.mark.parametrize("padding", [0, 6])
def test_four_pixels_share_their_chroma_in_nv12_and_nv21(encoding, u, v, padding):
    message = random_image(encoding, 6, 10, padding)
    luma, chroma = samples(message)[:6], samples(message)[6:].reshape(3, 5, 2).repeat(2, 0).repeat(2, 1)
    wanted = bt601(luma, chroma[..., u], chroma[..., v])
    assert np.abs(decode_image(message, TOPIC) - wanted).max() <= 1


@pytest.mark.parametrize("pattern", ["rggb", "bggr", "gbrg", "grbg"])
def test_a_bayer_mosaic_of_one_colour_gives_that_colour_everywhere(pattern):
    colour = {"r": 200, "g": 100, "b": 50}
    mosaic = np.tile(np.array([colour[c] for c in pattern], np.uint8).reshape(2, 2), (4, 6))
    rgb = decode_image(image(f"bayer_{pattern}8", 8, 12, mosaic.tobytes()), TOPIC)
    assert np.array_equal(rgb, np.full((8, 12, 3), (200, 100, 50), np.uint8))


def test_mono16_big_endian_01_00_is_256_and_so_1_in_8_bit():
    # 256 * 255 / 65535 = 0.996; read in the wrong order it would be 1 and so 0.
    message = image("mono16", 1, 1, bytes([1, 0]), is_bigendian=1)
    assert decode_image(message, TOPIC).tolist() == [[[1, 1, 1]]]


@pytest.mark.parametrize(("is_bigendian", "order"), [(0, "<u2"), (1, ">u2")])
@pytest.mark.parametrize("padding", [0, 3])
def test_every_value_of_mono16_is_scaled_to_the_nearest_of_8_bit(is_bigendian, order, padding):
    values = np.arange(65536).reshape(256, 256)
    rows = np.hstack([values.astype(order).view(np.uint8), np.full((256, padding), 77, np.uint8)])
    message = image("mono16", 256, 256, rows.tobytes(), step=rows.shape[1], is_bigendian=is_bigendian)
    wanted = np.floor(values * 255 / 65535 + 0.5)
    assert np.array_equal(decode_image(message, TOPIC), wanted[..., None].repeat(3, axis=2))


def test_step_12_of_a_row_of_9_bytes_is_padding():
    data = bytes([*range(9), 255, 255, 255, *range(9, 18), 255, 255, 255])
    rgb = decode_image(image("rgb8", 2, 3, data, step=12), TOPIC)
    assert rgb.reshape(2, 9).tolist() == [list(range(9)), list(range(9, 18))]


@settings(max_examples=100, deadline=None)
@given(
    encoding=st.sampled_from(sorted(ENCODINGS)),
    half_size=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    padding=st.integers(1, 20),
)
def test_padding_never_shows_in_any_encoding(encoding, half_size, padding):
    height, width = 2 * half_size[0], 2 * half_size[1]
    padded = random_image(encoding, height, width, padding)
    packed = image(encoding, height, width, samples(padded).tobytes())
    rgb = decode_image(padded, TOPIC)
    assert rgb.shape == (height, width, 3)
    assert np.array_equal(rgb, decode_image(packed, TOPIC))


@pytest.mark.parametrize("encoding", ["rgb8", "bgr8", "mono16", "nv12"])
@pytest.mark.parametrize(
    "convert",
    [
        bytes,
        bytearray,
        memoryview,
        list,
        lambda data: array("B", data),
        lambda data: np.frombuffer(data, np.uint8),
    ],
)
def test_the_type_of_data_makes_no_difference(encoding, convert):
    message = random_image(encoding, 4, 6)
    wanted = decode_image(message, TOPIC).copy()
    message.data = convert(message.data)
    assert np.array_equal(decode_image(message, TOPIC), wanted)


def test_rgb8_is_not_copied_and_the_message_cannot_be_changed_through_it():
    message = random_image("rgb8", 4, 6)
    message.data = array("B", message.data)
    rgb = decode_image(message, TOPIC)
    assert np.shares_memory(rgb, np.frombuffer(message.data, np.uint8))
    with pytest.raises(ValueError, match="read-only"):
        rgb[0, 0, 0] = 1


@pytest.mark.parametrize("encoding", sorted(set(ENCODINGS) - {"rgb8"}))
def test_a_fitting_out_is_used_and_another_is_left_alone(encoding):
    message = random_image(encoding, 4, 6)
    fitting, other = np.zeros((4, 6, 3), np.uint8), np.zeros((8, 6, 3), np.uint8)
    assert decode_image(message, TOPIC, out=fitting) is fitting
    assert np.array_equal(decode_image(message, TOPIC, out=other), fitting)
    assert not other.any()


def test_a_step_of_yuv_bytes_under_rgb8_is_refused_with_encoding_width_and_step():
    refused = refusal(image("rgb8", 480, 640, bytes(480 * 1280), step=1280))
    assert refused.kind is RefusalKind.STEP
    assert "rgb8 640x480, step 1280" in refused.reason
    assert "at least 1920" in refused.reason


@pytest.mark.parametrize("encoding", sorted(ENCODINGS))
@pytest.mark.parametrize("difference", [-1, 1])
def test_a_byte_too_few_or_too_many_is_refused(encoding, difference):
    message = random_image(encoding, 4, 6)
    wanted = len(message.data)
    message.data = bytes(wanted + difference)
    refused = refusal(message)
    assert refused.kind is RefusalKind.SIZE
    assert f"{encoding} 6x4" in refused.reason
    assert f"{wanted + difference} bytes of data, wanted {wanted}" in refused.reason


@pytest.mark.parametrize("encoding", sorted(DEPTH_ENCODINGS))
def test_a_depth_image_is_refused_as_one(encoding):
    refused = refusal(image(encoding, 2, 2, bytes(16), step=8))
    assert refused.kind is RefusalKind.DEPTH
    assert f"{encoding} is a depth image" in refused.reason


@pytest.mark.parametrize("encoding", ["", "RGB8", "rgb16", "8UC3", "bayer_rggb16", "h264"])
def test_an_encoding_without_a_sure_meaning_is_refused_with_what_is_wanted(encoding):
    refused = refusal(image(encoding, 2, 2, bytes(12), step=6))
    assert refused.kind is RefusalKind.ENCODING
    assert encoding in refused.reason
    assert "wanted" in refused.reason
    assert "bgr8" in refused.reason


@pytest.mark.parametrize(
    ("height", "width", "data"), [(0, 4, b"123"), (4, 0, b"123"), (0, 0, b""), (4, 4, b"")]
)
def test_an_empty_image_is_refused(height, width, data):
    assert refusal(image("rgb8", height, width, data)).kind is RefusalKind.EMPTY


def test_an_absurd_size_is_refused_before_anything_is_allocated():
    refused = refusal(image("mono8", 2**32 - 1, 2**32 - 1, b"1"))
    assert refused.kind is RefusalKind.DIMENSIONS


@pytest.mark.parametrize(
    ("encoding", "height", "width"),
    [("yuv422", 4, 5), ("yuyv", 4, 5), ("nv12", 4, 5), ("nv12", 5, 4), ("nv21", 5, 4)],
)
def test_half_a_chroma_sample_is_refused(encoding, height, width):
    assert refusal(random_image(encoding, height, width)).kind is RefusalKind.DIMENSIONS
