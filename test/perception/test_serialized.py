from contextlib import closing

import numpy as np
import pytest
from camera_messages import compressed, image, jpeg, random_image, smooth_picture
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_edge_ros.evaluation.message_types import COMPRESSED_IMAGE, IMAGE, ros2_types
from vla_edge_ros.perception.camera import CameraPipeline
from vla_edge_ros.perception.decode import decode
from vla_edge_ros.perception.frame_buffer import FrameBuffer
from vla_edge_ros.perception.message import header_stamp_ns
from vla_edge_ros.perception.refusal import ImageRefused, RefusalKind
from vla_edge_ros.perception.resize import Resizer
from vla_edge_ros.perception.serialized import read_compressed_image, read_image
from vla_edge_ros.perception.stamps import StampWatch

STAMP = 1_700_000_000_123_456_789


def serialised(message, kind=IMAGE, frame_id="camera", is_little_endian=True) -> bytes:
    """By another library's arithmetic."""
    types = ros2_types().types
    stamp = types["builtin_interfaces/msg/Time"](message.header.stamp.sec, message.header.stamp.nanosec)
    fields = vars(message) | {
        "header": types["std_msgs/msg/Header"](stamp, frame_id),
        "data": np.frombuffer(bytes(message.data), np.uint8),
    }
    return bytes(ros2_types().serialize_cdr(types[kind](**fields), kind, little_endian=is_little_endian))


@given(
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    padding=st.integers(0, 5),
    stamp_ns=st.integers(0, 2**31 * 10**9 - 1),
    frame_id=st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=9),
    is_little_endian=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_an_image_has_the_fields_that_were_sent(height, width, padding, stamp_ns, frame_id, is_little_endian):
    sent = random_image("bgr8", height, width, padding)
    sent.header.stamp.sec, sent.header.stamp.nanosec = divmod(stamp_ns, 10**9)
    found = read_image(serialised(sent, IMAGE, frame_id, is_little_endian), "/image")
    assert (found.height, found.width, found.encoding) == (height, width, "bgr8")
    assert (found.step, found.is_bigendian, bytes(found.data)) == (sent.step, 0, bytes(sent.data))
    assert (header_stamp_ns(found), found.header.frame_id) == (stamp_ns, frame_id)
    np.testing.assert_array_equal(decode(found, "/image"), decode(sent, "/image"))


@pytest.mark.parametrize("format_text", ["", "jpeg", "rgb8; jpeg compressed bgr8"])
def test_a_compressed_image_has_the_fields_that_were_sent(format_text):
    sent = compressed(jpeg(smooth_picture(48, 64)), format_text, STAMP)
    found = read_compressed_image(serialised(sent, COMPRESSED_IMAGE), "/image")
    assert (found.format, bytes(found.data), header_stamp_ns(found)) == (format_text, sent.data, STAMP)
    np.testing.assert_array_equal(decode(found, "/image"), decode(sent, "/image"))


def test_the_pixels_are_not_copied():
    message = serialised(random_image("rgb8", 48, 64))
    pixels = decode(read_image(message, "/image"), "/image")
    assert np.shares_memory(pixels, np.frombuffer(message, np.uint8))


@pytest.mark.parametrize(("kind", "read"), [(IMAGE, read_image), (COMPRESSED_IMAGE, read_compressed_image)])
def test_a_message_cut_short_anywhere_is_refused_in_one_line(kind, read):
    sent = {IMAGE: random_image("rgb8", 2, 3), COMPRESSED_IMAGE: compressed(b"\xff\xd8\xff", "jpeg")}[kind]
    message = serialised(sent, kind)
    whole = message.rindex(bytes(sent.data)) + len(sent.data)
    read(message[:whole], "/image")
    for n in range(whole):
        with pytest.raises(ImageRefused, match=f"^/image: {n} bytes are no sensor_msgs/.*") as refused:
            read(message[:n], "/image")
        assert refused.value.kind is RefusalKind.TRUNCATED and "\n" not in str(refused.value)


def test_an_unknown_encapsulation_is_told():
    message = b"\x00\x02" + serialised(random_image("rgb8", 2, 3))[2:]
    with pytest.raises(ImageRefused, match="encapsulation 0002, wanted 0000 or 0001"):
        read_image(message, "/image")


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_a_frame_or_a_counted_refusal(noise):
    with closing(FrameBuffer.create()) as buffer:
        camera = CameraPipeline(buffer, Resizer(), StampWatch(), "/image", read=read_image)
        for message in (noise, b"\x00\x01\x00\x00" + noise):
            camera.on_image(message, 1, 1)
        assert camera.received == 2 == camera.published + sum(camera.refused.values())
        assert not camera.refused[RefusalKind.FAULT]


def test_a_camera_that_is_given_bytes_writes_the_frame_that_the_message_has():
    sent = image("rgb8", 64, 128, smooth_picture(64, 128).tobytes(), stamp_ns=STAMP)
    with closing(FrameBuffer.create()) as buffer:
        camera = CameraPipeline(buffer, Resizer(), StampWatch(), "/image", read=read_image)
        assert camera.on_image(serialised(sent), 1, STAMP).is_new
        frame = np.zeros((64, 128, 3), np.uint8)
        assert buffer.read_into(frame).stamp_ns == STAMP
    np.testing.assert_array_equal(frame, smooth_picture(64, 128))
