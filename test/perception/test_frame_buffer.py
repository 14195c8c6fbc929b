import mmap
import os
import struct
import tracemalloc
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_edge_ros.perception import frame_buffer
from vla_edge_ros.perception.frame import FrameMeta
from vla_edge_ros.perception.frame_buffer import FrameBuffer


@pytest.fixture
def buffer():
    with closing(FrameBuffer.create()) as new:
        yield new


def random_pixels(seed, height=64, width=128):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_there_is_no_frame_before_the_first_write(buffer):
    out = random_pixels(0)
    assert buffer.read_into(out) is None
    assert buffer.peek() is None
    assert np.array_equal(out, random_pixels(0))


def test_a_read_gives_the_pixels_and_the_times_of_the_newest_frame(buffer):
    assert buffer.write(random_pixels(1), 10, 20, 30) == 1
    assert buffer.write(random_pixels(2), -40, 50, 2**62) == 2
    out = np.empty((64, 128, 3), np.uint8)
    newest = FrameMeta(index=2, stamp_ns=-40, capture_ns=50, receipt_ns=2**62)
    assert buffer.peek() == newest
    assert buffer.read_into(out) == newest
    assert np.array_equal(out, random_pixels(2))
    assert (buffer.reads, buffer.retries, buffer.contended) == (2, 0, 0)


@settings(max_examples=60, deadline=None)
@given(
    size=st.tuples(st.integers(1, 40), st.integers(1, 70)),
    operations=st.lists(st.sampled_from(["write", "write attached", "read", "read attached"]), max_size=20),
)
def test_every_read_gives_the_last_write_at_any_size_from_any_mapping(size, operations):
    with closing(FrameBuffer.create(*size)) as owner, closing(FrameBuffer.attach(owner.fd)) as attached:
        assert (attached.height, attached.width) == size
        written = 0
        out = np.empty((*size, 3), np.uint8)
        for operation in operations:
            side = attached if operation.endswith("attached") else owner
            if operation.startswith("write"):
                written += 1
                assert side.write(random_pixels(written, *size), written, written, written) == written
            elif written == 0:
                assert side.read_into(out) is None
            else:
                assert side.read_into(out) == FrameMeta(written, written, written, written)
                assert np.array_equal(out, random_pixels(written, *size))


def test_the_bytes_lie_where_the_layout_says(buffer):
    for index in (1, 2, 3):
        buffer.write(random_pixels(index), 10 * index, 20 * index, 30 * index)
    memory = os.pread(buffer.fd, buffer.size_bytes, 0)
    magic, layout, height, width, second = struct.unpack_from("=8sQQQQ", memory, 0)
    assert (magic, layout, height, width, second) == (b"VLAFRAME", 1, 64, 128, 4096 + 24576)
    assert struct.unpack_from("=Q", memory, 128) == (3,)
    assert struct.unpack_from("=4q", memory, 256) == (2, 20, 40, 60)
    assert struct.unpack_from("=4q", memory, 384) == (3, 30, 60, 90)
    assert memory[4096 : 4096 + 24576] == random_pixels(2).tobytes()
    assert memory[second : second + 24576] == random_pixels(3).tobytes()


def test_the_mapping_is_whole_pages_so_that_all_of_it_can_be_page_locked(buffer):
    assert buffer.address % mmap.PAGESIZE == 0
    assert buffer.size_bytes % mmap.PAGESIZE == 0


def locked_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmLck:")[1].split()[0])


def test_it_says_whether_its_pages_are_locked():
    before = locked_kib()
    with closing(FrameBuffer.create()) as buffer:
        assert locked_kib() - before == (buffer.size_bytes // 1024 if buffer.is_locked else 0)


def test_a_refused_lock_is_reported_and_the_buffer_still_works(monkeypatch):
    assert not frame_buffer._lock_pages(0, mmap.PAGESIZE)  # nothing is mapped there: ENOMEM
    monkeypatch.setattr(frame_buffer, "_lock_pages", lambda address, size_bytes: False)
    with closing(FrameBuffer.create()) as buffer:
        assert not buffer.is_locked
        assert buffer.write(random_pixels(1), 0, 0, 0) == 1


def test_the_memory_has_no_name_and_cannot_be_cut_short(buffer):
    assert os.readlink(f"/proc/self/fd/{buffer.fd}").startswith("/memfd:")
    with pytest.raises(PermissionError):
        os.ftruncate(buffer.fd, 0)


def test_reading_allocates_no_array(buffer):
    buffer.write(random_pixels(1), 0, 0, 0)
    out = np.empty((64, 128, 3), np.uint8)
    buffer.read_into(out)
    tracemalloc.start()
    try:
        buffer.read_into(out)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2_000


@pytest.mark.parametrize("wrong", [np.zeros((64, 128), np.uint8), np.zeros((64, 128, 3), np.float32)])
def test_a_frame_of_another_shape_or_type_is_refused_and_not_published(buffer, wrong):
    for call in (lambda: buffer.write(wrong, 0, 0, 0), lambda: buffer.read_into(wrong)):
        with pytest.raises(ValueError, match=r"the buffer holds uint8 \(64, 128, 3\)"):
            call()
    assert buffer.peek() is None


def test_the_writer_closing_leaves_the_last_frame_to_an_attached_reader():
    owner = FrameBuffer.create()
    owner.write(random_pixels(5), 1, 2, 3)
    with closing(FrameBuffer.attach(owner.fd)) as reader:
        owner.close()
        out = np.empty((64, 128, 3), np.uint8)
        assert reader.read_into(out) == FrameMeta(1, 1, 2, 3)
        assert np.array_equal(out, random_pixels(5))


def test_a_closed_buffer_refuses_politely_and_closes_twice(buffer):
    buffer.close()
    buffer.close()
    out = random_pixels(0)
    for call in (buffer.peek, lambda: buffer.read_into(out), lambda: buffer.write(out, 0, 0, 0)):
        with pytest.raises(ValueError, match="the frame buffer is closed"):
            call()


def test_a_size_below_one_pixel_is_refused():
    with pytest.raises(ValueError, match="128x0 pixels"):
        FrameBuffer.create(height=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a frame buffer"),
        (b"JUSTFILE" + bytes(5000), "is not a frame buffer"),
        (struct.pack("=8sQQQQ", b"VLAFRAME", 9, 64, 128, 28672) + bytes(60000), "layout 9, wanted 1"),
        (struct.pack("=8sQQQQ", b"VLAFRAME", 1, 64, 128, 28672) + bytes(9000), "too small for two frames"),
        (struct.pack("=8sQQQQ", b"VLAFRAME", 1, 64, 128, 4096) + bytes(60000), "too small for two frames"),
    ],
)
def test_attaching_to_anything_else_is_refused_in_one_line(tmp_path, content, message):
    (tmp_path / "file").write_bytes(content)
    with (tmp_path / "file").open("r+b") as file, pytest.raises(ValueError, match=message):
        FrameBuffer.attach(file.fileno())
