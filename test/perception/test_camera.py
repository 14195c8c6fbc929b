import tracemalloc
from array import array
from contextlib import closing

import numpy as np
import pytest
from camera_messages import compressed, image, jpeg, random_image, smooth_picture
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_edge_ros.perception.camera import CameraPipeline
from vla_edge_ros.perception.frame import FrameMeta
from vla_edge_ros.perception.frame_buffer import FrameBuffer
from vla_edge_ros.perception.frame_log import FrameLog
from vla_edge_ros.perception.raw_image import ENCODINGS
from vla_edge_ros.perception.refusal import Refusal, RefusalKind
from vla_edge_ros.perception.resize import Resizer
from vla_edge_ros.perception.signature import patch_signature
from vla_edge_ros.perception.stamps import StampKind, StampVerdict, StampWatch

MS = 1_000_000
STAMP = 1_700_000_000_123_456_789
RECEIPT = 77_000_000_000


@pytest.fixture
def buffer():
    with closing(FrameBuffer.create()) as new:
        yield new


@pytest.fixture
def camera(buffer):
    return CameraPipeline(buffer, Resizer(), StampWatch(), "/camera/image_raw")


def newest(buffer):
    out = np.zeros((64, 128, 3), np.uint8)
    return buffer.read_into(out), out


def received(camera):
    assert camera.received == camera.published + camera.withheld + sum(camera.refused.values())
    return camera.received


def picture_message(encoding="rgb8", stamp_ns=STAMP, level=0):
    picture = np.roll(smooth_picture(480, 640), level, axis=1)
    pixels = {"rgb8": picture, "bgr8": picture[..., ::-1]}[encoding]
    return image(encoding, 480, 640, array("B", pixels.tobytes()), stamp_ns=stamp_ns)


def test_a_frame_goes_to_the_buffer_with_its_own_stamp_and_its_age(camera, buffer):
    verdict = camera.on_image(picture_message(), RECEIPT, STAMP + 8 * MS)
    assert verdict.kind is StampKind.OK
    meta, pixels = newest(buffer)
    assert meta == FrameMeta(1, stamp_ns=STAMP, capture_ns=RECEIPT - 8 * MS, receipt_ns=RECEIPT)
    resized = Resizer().resize(smooth_picture(480, 640), np.empty((64, 128, 3), np.uint8))
    assert np.array_equal(pixels, resized)


def test_rgb8_bgr8_and_jpeg_of_one_picture_give_one_frame(camera, buffer):
    frames = []
    messages = [
        picture_message("rgb8"),
        picture_message("bgr8", STAMP + 1),
        compressed(jpeg(smooth_picture(480, 640)), "jpeg", STAMP + 2),
    ]
    for message in messages:
        camera.on_image(message, RECEIPT, STAMP)
        frames.append(newest(buffer)[1].astype(int))
    assert np.array_equal(frames[0], frames[1])
    assert np.abs(frames[0] - frames[2]).max() <= 3


def test_a_foreign_stamp_is_passed_on_unchanged_while_age_counts_from_receipt(camera, buffer):
    verdict = camera.on_image(picture_message(stamp_ns=8_000_000_000), RECEIPT, STAMP)
    assert verdict.kind is StampKind.FOREIGN
    assert newest(buffer)[0] == FrameMeta(1, 8_000_000_000, capture_ns=RECEIPT, receipt_ns=RECEIPT)


def test_a_refusal_is_a_line_of_bounded_length_whatever_the_message_says(camera):
    for message in (
        image("\x1b[31m" + "x" * 100_000, 2, 2, bytes(12)),
        compressed(b"no picture", "y\r\n" * 100_000),
    ):
        reason = camera.on_image(message, RECEIPT, STAMP).reason
        assert reason.isprintable()
        assert len(reason) <= 1000


def test_after_a_refused_message_the_next_good_one_is_used(camera, buffer):
    refusal = camera.on_image(image("rgb8", 480, 640, bytes(480 * 1280), step=1280), RECEIPT, STAMP)
    assert isinstance(refusal, Refusal)
    assert refusal.kind is RefusalKind.STEP
    assert "/camera/image_raw: rgb8 640x480, step 1280" in refusal.reason
    assert buffer.peek() is None
    assert camera.on_image(picture_message(), RECEIPT, STAMP).is_new
    assert buffer.peek().index == 1
    assert (received(camera), camera.published, camera.refused[RefusalKind.STEP]) == (2, 1, 1)
    assert camera.last_refusal == refusal


def test_a_duplicate_is_withheld_and_counted(camera, buffer):
    for _ in range(3):
        verdict = camera.on_image(picture_message(), RECEIPT, STAMP)
    assert verdict.kind is StampKind.SAME_STAMP
    assert (received(camera), camera.published, camera.withheld) == (3, 1, 2)
    assert buffer.peek().index == 1


def test_a_frozen_picture_leaves_the_buffer_to_grow_old(camera, buffer):
    for i in range(20):
        verdict = camera.on_image(picture_message(stamp_ns=STAMP + i), RECEIPT + i, STAMP + i)
    assert verdict.is_frozen
    assert "frozen" in verdict.reason
    assert (received(camera), camera.published, camera.withheld) == (20, 10, 10)
    assert buffer.peek().receipt_ns == RECEIPT + 9


@pytest.mark.parametrize("encoding", sorted(ENCODINGS))
def test_every_encoding_reaches_the_buffer(camera, buffer, encoding):
    assert camera.on_image(random_image(encoding, 96, 160, padding=4), RECEIPT, 0).is_new
    assert buffer.peek().index == 1


def test_pictures_that_change_size_and_encoding_do_not_mix(camera, buffer):
    sizes = [(48, 64), (480, 640), (48, 64), (96, 160)]
    for i, (height, width) in enumerate(sizes * 2):
        message = random_image(("bgr8", "rgb8")[i // len(sizes)], height, width, seed=i)
        camera.on_image(message, RECEIPT, 0)
        rgb = np.frombuffer(message.data, np.uint8).reshape(height, width, 3)
        rgb = rgb[..., ::-1] if message.encoding == "bgr8" else rgb
        wanted = Resizer().resize(np.ascontiguousarray(rgb), np.empty((64, 128, 3), np.uint8))
        assert np.array_equal(newest(buffer)[1], wanted)


def test_a_message_is_never_written_to(camera):
    first = picture_message("rgb8")
    before = first.data.tobytes()
    camera.on_image(first, RECEIPT, 0)
    camera.on_image(picture_message("bgr8", level=100), RECEIPT, 0)
    assert first.data.tobytes() == before


@pytest.mark.parametrize("encoding", ["rgb8", "bgr8"])
def test_a_callback_allocates_no_array_once_it_has_seen_a_picture(camera, encoding):
    messages = [picture_message(encoding, STAMP + i, level=i) for i in range(3)]
    for message in messages[:2]:
        camera.on_image(message, RECEIPT, STAMP)
    tracemalloc.start()
    try:
        camera.on_image(messages[2], RECEIPT, STAMP)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 10_000


def test_a_fault_of_our_own_is_counted_and_does_not_escape(camera, buffer):
    buffer.close()
    refusal = camera.on_image(picture_message(), RECEIPT, STAMP)
    assert refusal.kind is RefusalKind.FAULT
    assert "/camera/image_raw: ValueError: the frame buffer is closed" in refusal.reason
    assert camera.on_image(object(), RECEIPT, STAMP).kind is RefusalKind.FAULT
    assert received(camera) == 2


field = st.one_of(st.integers(0, 12), st.integers(0, 2**32 - 1))


@settings(max_examples=200, deadline=None)
@given(
    encoding=st.one_of(st.sampled_from(sorted(ENCODINGS)), st.text(max_size=8)),
    fields=st.tuples(field, field, field, st.integers(0, 255)),
    data=st.binary(max_size=200),
    is_compressed=st.booleans(),
)
def test_no_message_raises_or_goes_uncounted(encoding, fields, data, is_compressed):
    height, width, step, is_bigendian = fields
    message = image(encoding, height, width, data, step, is_bigendian)
    if is_compressed:
        message = compressed(b"\xff\xd8\xff" + data, encoding)
    with closing(FrameBuffer.create()) as buffer:
        camera = CameraPipeline(buffer, Resizer(), StampWatch(), "/camera")
        outcome = camera.on_image(message, RECEIPT, STAMP)
        assert isinstance(outcome, (StampVerdict, Refusal))
        assert received(camera) == 1
        assert camera.refused[RefusalKind.FAULT] == 0


@pytest.mark.parametrize(
    ("recording", "topic", "n_messages"),
    [
        ("bridge_widowx", "/image_0", 40),
        ("wrist_so101_jpeg", "/wrist/image_raw/compressed", 40),
        ("desk_cup_jpeg", "/camera/image_raw/compressed", 40),
        ("street_raw", "/camera/image_raw", 40),
        ("street_zstd", "/front/image", 40),
        ("aruco_marker_ros1.bag", "/raspicam_node/image/compressed", 1),
    ],
)
def test_real_recordings_pass_whole(shared, camera, buffer, recording, topic, n_messages):
    highlevel = pytest.importorskip("rosbags.highlevel")
    with highlevel.AnyReader([shared / "recordings" / recording]) as bag:
        connections = [c for c in bag.connections if c.topic == topic]
        messages = bag.messages(connections)
        for _, (connection, log_ns, raw) in zip(range(n_messages), messages, strict=False):
            outcome = camera.on_image(bag.deserialize(raw, connection.msgtype), log_ns, log_ns)
            assert isinstance(outcome, StampVerdict), outcome.reason
    assert (received(camera), camera.published) == (n_messages, n_messages)
    assert newest(buffer)[1].std() > 10


def test_the_ros1_recording_is_told_apart_by_its_clock(shared, camera):
    highlevel = pytest.importorskip("rosbags.highlevel")
    with highlevel.AnyReader([shared / "recordings" / "aruco_marker_ros1.bag"]) as bag:
        connections = [c for c in bag.connections if c.topic == "/raspicam_node/image/compressed"]
        connection, log_ns, raw = next(bag.messages(connections))
        verdict = camera.on_image(bag.deserialize(raw, connection.msgtype), log_ns, log_ns)
    assert verdict.kind is StampKind.FOREIGN
    assert "3 h 41 min behind" in verdict.reason
    assert verdict.capture_ns == log_ns


def test_messages_of_rclpy_are_taken_as_they_are(camera, buffer):
    messages = pytest.importorskip("sensor_msgs.msg")
    message = messages.Image(height=2, width=3, encoding="rgb8", step=9)
    message.data = array("B", range(18))
    message.header.stamp.sec, message.header.stamp.nanosec = divmod(STAMP, 1_000_000_000)
    assert camera.on_image(message, RECEIPT, STAMP).kind is StampKind.OK
    packed = messages.CompressedImage(format="jpeg", data=array("B", jpeg(smooth_picture(48, 64))))
    assert camera.on_image(packed, RECEIPT, STAMP).kind is StampKind.ZERO
    assert buffer.peek().index == 2


def test_the_signature_of_a_frame_is_there_before_the_frame_is(buffer):
    log = FrameLog(patch_signature, (224,), np.float32)
    camera = CameraPipeline(buffer, Resizer(), StampWatch(), "/camera/image_raw", [log])
    seen_at_write, write = [], buffer.write
    buffer.write = lambda *arguments: seen_at_write.append(log.of(buffer.next_index)) or write(*arguments)
    camera.on_image(picture_message(), RECEIPT, STAMP + 8 * MS)
    camera.on_image(picture_message(stamp_ns=STAMP, level=9), RECEIPT, STAMP + 8 * MS)
    camera.place(picture_message(level=20), FrameMeta(2, STAMP + MS, RECEIPT, RECEIPT))
    assert log.missed == 0 and len(seen_at_write) == camera.published == 2, "the second image was no new one"
    _, pixels = newest(buffer)
    np.testing.assert_array_equal(log.of(2), patch_signature(pixels))
    np.testing.assert_array_equal(seen_at_write[1], log.of(2))
