import struct
import zlib
from array import array

import cv2
import numpy as np
import pytest
from camera_messages import compressed, jpeg, png, smooth_picture
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_edge_ros.perception.compressed_image import decode_compressed
from vla_edge_ros.perception.refusal import ImageRefused, RefusalKind

TOPIC = "/camera/image_raw/compressed"
PICTURE = smooth_picture(48, 64)
JPEG = jpeg(PICTURE)
FORMATS = ["jpeg", "jpg", "JPEG", "", "rgb8; jpeg compressed bgr8", "png", "16UC1; compressedDepth"]


def rgb_of(data, format_text=""):
    return decode_compressed(compressed(data, format_text), TOPIC)


def refusal(data, format_text=""):
    with pytest.raises(ImageRefused) as caught:
        rgb_of(data, format_text)
    assert TOPIC in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


def with_segment(data, marker, payload):
    """A JPEG with one more segment right after its start."""
    return data[:2] + struct.pack(">BBH", 0xFF, marker, len(payload) + 2) + payload + data[2:]


def png_chunk(kind, payload):
    return struct.pack(">I", len(payload)) + kind + payload + struct.pack(">I", zlib.crc32(kind + payload))


def png_file(width, height, bit_depth, colour_type, rows, *more):
    header = struct.pack(">IIBBBBB", width, height, bit_depth, colour_type, 0, 0, 0)
    raw = b"".join(b"\0" + row for row in rows)
    chunks = [
        png_chunk(b"IHDR", header),
        *more,
        png_chunk(b"IDAT", zlib.compress(raw)),
        png_chunk(b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize("format_text", FORMATS)
def test_a_jpeg_is_a_jpeg_under_any_format(format_text):
    assert np.array_equal(rgb_of(JPEG, format_text), rgb_of(JPEG))
    assert np.abs(rgb_of(JPEG, format_text).astype(int) - PICTURE).max() <= 6


@pytest.mark.parametrize("convert", [bytes, list, lambda data: array("B", data)])
def test_the_type_of_data_makes_no_difference(convert):
    assert np.array_equal(rgb_of(convert(JPEG)), rgb_of(JPEG))


@pytest.mark.parametrize("data", [JPEG, png(PICTURE)])
def test_a_fitting_out_is_used(data):
    out = np.zeros((48, 64, 3), np.uint8)
    assert decode_compressed(compressed(data), TOPIC, out=out) is out
    assert np.array_equal(out, rgb_of(data))


def test_a_grey_jpeg_has_three_equal_channels():
    data = cv2.imencode(".jpg", PICTURE[..., 0])[1].tobytes()
    rgb = rgb_of(data)
    assert np.array_equal(rgb[..., 0], rgb[..., 1])
    assert np.array_equal(rgb[..., 0], rgb[..., 2])
    assert np.abs(rgb[..., 0].astype(int) - PICTURE[..., 0]).max() <= 6


def test_an_exif_orientation_is_ignored():
    # TIFF, big endian, one entry: tag 0x0112 (orientation), SHORT, count 1, value 6 (a quarter turn).
    exif = b"Exif\0\0MM\0\x2a" + struct.pack(">IHHHIHHI", 8, 1, 0x0112, 3, 1, 6, 0, 0)
    turned = with_segment(JPEG, 0xE1, exif)
    assert cv2.imdecode(np.frombuffer(turned, np.uint8), cv2.IMREAD_COLOR).shape == (64, 48, 3)
    assert np.array_equal(rgb_of(turned), rgb_of(JPEG))


def test_a_motion_jpeg_without_huffman_tables_decodes_like_the_whole_one():
    bare, position = JPEG[:2], 2
    while JPEG[position + 1] != 0xDA:
        end = position + 2 + int.from_bytes(JPEG[position + 2 : position + 4], "big")
        if JPEG[position + 1] != 0xC4:
            bare += JPEG[position:end]
        position = end
    assert np.array_equal(rgb_of(bare + JPEG[position:]), rgb_of(JPEG))


def test_padding_after_the_end_of_a_jpeg_is_allowed():
    assert np.array_equal(rgb_of(JPEG + bytes(1000)), rgb_of(JPEG))


@pytest.mark.parametrize("kept", [4, 20, 200, len(JPEG) // 2, len(JPEG) - 2, len(JPEG) - 1])
def test_a_jpeg_cut_short_is_refused(kept):
    refused = refusal(JPEG[:kept], "jpeg")
    assert refused.kind is RefusalKind.TRUNCATED
    assert "format 'jpeg'" in refused.reason


def test_the_end_of_a_thumbnail_is_not_taken_for_the_end_of_the_picture():
    with_thumbnail = with_segment(JPEG, 0xE1, b"Exif\0\0" + jpeg(PICTURE[::8, ::8]))
    assert np.array_equal(rgb_of(with_thumbnail), rgb_of(JPEG))
    assert refusal(with_thumbnail[:-100]).kind is RefusalKind.TRUNCATED


@pytest.mark.parametrize(
    "image",
    [
        pytest.param(PICTURE[..., ::-1], id="colour"),
        pytest.param(np.dstack([PICTURE[..., ::-1], PICTURE[..., 0]]), id="colour with alpha"),
        pytest.param(PICTURE[..., 0], id="grey"),
    ],
)
@pytest.mark.parametrize("scale", [1, 257])
def test_a_png_of_8_or_16_bit_decodes_exactly_and_drops_alpha(image, scale):
    # 257 = 65535 / 255: 16 bit holds the same picture, and the rule for mono16 gives it back.
    data = png(image.astype(np.uint16) * scale if scale > 1 else image)
    wanted = PICTURE if image.ndim == 3 else PICTURE[..., :1].repeat(3, axis=2)
    assert np.array_equal(rgb_of(data), wanted)


def test_16_bit_png_is_rounded_and_not_cut_off():
    # Over 257 they are 0.992, 0.498, 0.502 and 254.502; their upper bytes are 0, 0, 0 and 255.
    assert rgb_of(png(np.array([[255, 128, 129, 65407]], np.uint16)))[0, :, 0].tolist() == [1, 0, 1, 255]


def test_a_png_with_a_palette_gives_its_colours():
    palette = bytes([10, 20, 30, 40, 50, 60])
    data = png_file(2, 1, 8, 3, [bytes([1, 0])], png_chunk(b"PLTE", palette))
    assert rgb_of(data).tolist() == [[[40, 50, 60], [10, 20, 30]]]


def test_a_png_of_grey_with_alpha_drops_the_alpha():
    data = png_file(2, 1, 8, 4, [bytes([10, 0, 200, 255])])
    assert rgb_of(data).tolist() == [[[10] * 3, [200] * 3]]


@pytest.mark.parametrize("kept", [8, 20, 40, -1, -12])
def test_a_png_cut_short_is_refused(kept):
    assert refusal(png(PICTURE)[:kept]).kind is RefusalKind.TRUNCATED


def test_a_png_with_a_damaged_length_is_refused_before_a_decoder_believes_it(monkeypatch):
    monkeypatch.setattr(cv2, "imdecode", None)
    whole = png_file(2, 1, 8, 3, [bytes([1, 0])], png_chunk(b"PLTE", bytes(6)))
    for kind in (b"IHDR", b"PLTE", b"IDAT", b"IEND"):
        data = bytearray(whole)
        start = data.index(kind) - 4
        data[start : start + 4] = struct.pack(">I", 2_000_000_000)
        refused = refusal(bytes(data))
        assert refused.kind is RefusalKind.TRUNCATED
        assert "wanted whole chunks" in str(refused)


def test_a_png_damaged_inside_is_refused():
    data = bytearray(png(PICTURE))
    data[len(data) // 2] ^= 0xFF
    assert refusal(bytes(data)).kind is RefusalKind.UNDECODABLE


@pytest.mark.parametrize(
    ("size", "kind"), [((65535, 65535), RefusalKind.DIMENSIONS), ((0, 64), RefusalKind.UNDECODABLE)]
)
def test_the_size_in_a_jpeg_header_is_checked_before_decoding(size, kind):
    frame = JPEG.index(b"\xff\xc0")
    refused = refusal(JPEG[: frame + 5] + struct.pack(">HH", *size) + JPEG[frame + 9 :])
    assert refused.kind is kind
    assert f"its header says {size[1]}x{size[0]}" in refused.reason


def test_the_size_in_a_png_header_is_checked_before_decoding():
    refused = refusal(png_file(2_000_000_000, 2_000_000_000, 8, 0, [b""]))
    assert refused.kind is RefusalKind.DIMENSIONS


def test_a_compressed_depth_image_and_nothing_else_is_refused_as_one():
    depth = png(np.full((4, 4), 1500, np.uint16))
    assert refusal(bytes(12) + depth, "16UC1; compressedDepth png").kind is RefusalKind.DEPTH
    assert refusal(bytes(12) + depth).kind is RefusalKind.DEPTH
    assert refusal(bytes(40), "16UC1; compressedDepth rvl").kind is RefusalKind.DEPTH
    assert refusal(depth, "16UC1; png compressed ").kind is RefusalKind.DEPTH
    grey, colour = png(PICTURE[..., 0]), png(PICTURE[..., ::-1].astype(np.uint16) * 257)
    assert np.array_equal(rgb_of(grey, "16UC1; png compressed ")[..., 0], PICTURE[..., 0])
    assert np.array_equal(rgb_of(colour, "16UC1; png compressed "), PICTURE)
    assert (rgb_of(depth, "mono16; png compressed ") == 6).all()  # 1500 / 257 = 5.8


@pytest.mark.parametrize(
    "data", [b"RIFF....WEBPVP8 ", b"\x28\xb5\x2f\xfd....", b"\0\0\0\1\x67\x42 h264", b"\xff\xd8", b"x"]
)
def test_anything_else_is_refused_with_its_first_bytes(data):
    refused = refusal(data, "some text")
    assert refused.kind is RefusalKind.UNDECODABLE
    assert f"begins with {data[:4].hex(' ')}" in refused.reason
    assert "format 'some text'" in refused.reason


def test_an_empty_message_is_refused():
    assert refusal(b"").kind is RefusalKind.EMPTY


@settings(max_examples=150, deadline=None)
@given(data=st.data(), whole=st.sampled_from([JPEG, png(PICTURE)]))
def test_damage_gives_a_picture_or_a_refusal_and_nothing_else(data, whole):
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        rgb = rgb_of(bytes(damaged[: data.draw(st.integers(0, len(whole)))]))
    except ImageRefused:
        return
    assert rgb.dtype == np.uint8
    assert rgb.ndim == 3
    assert rgb.shape[2] == 3
