"""Every kind of recording that users have opens, or is refused in one line that says why."""

import shutil
import sqlite3
import tracemalloc
from pathlib import Path

import cv2
import numpy as np
import pytest
import recorded
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from mcap.writer import CompressionType, IndexType
from recorded import TOPIC, image_payloads, pixels, write_mcap, write_rosbag1, write_rosbag2
from rosbags.rosbag2 import CompressionMode, StoragePlugin

from vla_edge_ros.evaluation.bags import Bag, BagRefused, open_bag
from vla_edge_ros.evaluation.message_types import IMAGE, image_message, ros2_types


def read(path: Path) -> tuple[list, Bag]:
    with open_bag(path) as bag:
        return list(bag.images(bag.pick_image_topic().name)), bag


def assert_holds(path: Path, n_images: int = 12) -> None:
    images, bag = read(path)
    assert len(images) == n_images == bag.image_topics()[0].count
    for index, image in enumerate(images):
        assert image.log_ns == recorded.log_ns(index)
        assert image.stamp_ns == recorded.BASE_NS + index * recorded.PERIOD_NS
        message = image.message
        assert (message.height, message.width, message.step, message.encoding) == (4, 6, 18, "rgb8")
        assert message.data.dtype == np.uint8
        assert np.array_equal(message.data.reshape(4, 6, 3), pixels(index))


def refusal(path: Path) -> str:
    with pytest.raises(BagRefused) as refused:
        read(path)
    text = str(refused.value)
    assert "\n" not in text
    assert str(path) in text or path.name in text
    return text


@pytest.mark.parametrize("has_metadata", [True, False])
@pytest.mark.parametrize(
    ("plugin", "compression"),
    [
        (StoragePlugin.SQLITE3, CompressionMode.NONE),
        (StoragePlugin.SQLITE3, CompressionMode.FILE),
        (StoragePlugin.SQLITE3, CompressionMode.MESSAGE),
        (StoragePlugin.MCAP, CompressionMode.NONE),
        (StoragePlugin.MCAP, CompressionMode.FILE),
        (StoragePlugin.MCAP, CompressionMode.MESSAGE),
        (StoragePlugin.MCAP, CompressionMode.STORAGE),
    ],
)
def test_every_storage_and_compression_reads_the_same(tmp_path, plugin, compression, has_metadata):
    folder = write_rosbag2(tmp_path / "bag", plugin=plugin, compression=compression)
    if not has_metadata:
        (folder / "metadata.yaml").unlink()
    assert_holds(folder)
    (file,) = (f for f in folder.iterdir() if f.name != "metadata.yaml")
    assert_holds(file)


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.LZ4, CompressionType.ZSTD])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_chunking": False},
        {"use_chunking": False, "use_statistics": False},
        {"use_statistics": False},
        {"index_types": IndexType.NONE, "repeat_channels": False, "repeat_schemas": False},
    ],
    ids=["full", "no chunks", "no chunks, no statistics", "no statistics", "no indexes"],
)
def test_every_layout_of_an_mcap_file_reads_the_same(tmp_path, compression, options):
    assert_holds(write_mcap(tmp_path / "a.mcap", image_payloads(), compression, **options))


def test_a_ros1_bag_reads_the_same(tmp_path):
    assert_holds(write_rosbag1(tmp_path / "a.bag"))
    assert_holds((tmp_path / "a.bag").rename(tmp_path / "a.bag.active"))


def test_ros1_messages_in_an_mcap_file_read_the_same(tmp_path):
    with open_bag(write_rosbag1(tmp_path / "a.bag")) as bag:
        (storage,) = bag._storages
        payloads = [raw.payload for raw in storage.messages([TOPIC])]
    assert_holds(write_mcap(tmp_path / "a.mcap", payloads, type_name="sensor_msgs/Image", encoding="ros1"))


@pytest.mark.parametrize("plugin", list(StoragePlugin))
def test_a_type_name_without_msg_is_the_same_type(tmp_path, plugin):
    folder = write_rosbag2(tmp_path / "bag", plugin=plugin)
    if plugin == StoragePlugin.SQLITE3:
        with sqlite3.connect(folder / "bag.db3") as connection:
            connection.execute("UPDATE topics SET type = 'sensor_msgs/Image'")
        connection.close()
        file = folder / "bag.db3"
    else:
        file = write_mcap(tmp_path / "a.mcap", image_payloads(), type_name="sensor_msgs/Image")
    with open_bag(file) as bag:
        assert [topic.type for topic in bag.image_topics()] == [IMAGE]
    assert_holds(file)


def test_parts_of_a_split_recording_follow_one_another(tmp_path):
    folder = tmp_path / "split"
    folder.mkdir()
    payloads = image_payloads(11)
    for index, payload in enumerate(payloads):
        write_mcap(folder / f"part_{index}.mcap", [payload])
    images, bag = read(folder)
    # part_10 comes after part_9, not after part_1
    assert [np.array_equal(i.message.data, pixels(n).ravel()) for n, i in enumerate(images)] == [True] * 11
    assert bag.pick_image_topic() == (TOPIC, IMAGE, 11, False)


@pytest.mark.parametrize(
    "text", ["", "\0", "- a", "a: *b", "x: !!timestamp y", "[" * 5000, "rosbag2_bagfile_information: []"]
)
def test_metadata_that_says_nothing_of_use_is_passed_over(tmp_path, text):
    folder = write_rosbag2(tmp_path / "bag")
    (folder / "metadata.yaml").write_text(text)
    assert len(read(folder)[0]) == 12


def test_metadata_that_names_a_missing_part_is_refused(tmp_path):
    folder = write_rosbag2(tmp_path / "bag")
    metadata = folder / "metadata.yaml"
    text = metadata.read_text()
    assert "  - bag.mcap" in text
    metadata.write_text(text.replace("  - bag.mcap", "  - bag.mcap\n  - bag_1.mcap"))
    assert "bag_1.mcap" in refusal(folder)


def test_metadata_from_before_compression_still_finds_the_file(tmp_path):
    folder = write_rosbag2(tmp_path / "bag")
    file = folder / "bag.mcap"
    (folder / "bag.mcap.zstd").write_bytes(zstandard.compress(file.read_bytes()))
    file.unlink()
    assert_holds(folder)


@pytest.mark.parametrize("broken", [b"", b"{", b"[1, 2]", b"rosbag2_bagfile_information: 3", b"\xff\xfe\x00"])
def test_broken_metadata_does_not_hide_the_recording(tmp_path, broken):
    folder = write_rosbag2(tmp_path / "bag")
    (folder / "metadata.yaml").write_bytes(broken)
    assert_holds(folder)


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.LZ4, CompressionType.ZSTD])
@pytest.mark.parametrize("part", [0.2, 0.4, 0.6])
def test_a_cut_mcap_gives_whole_messages_only_and_counts_them(tmp_path, compression, part):
    path = write_mcap(tmp_path / "a.mcap", image_payloads(200), compression, chunk_bytes=3000)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])
    images, bag = read(path)
    assert 0 < len(images) < 200
    assert bag.truncated_after == len(images) == bag.pick_image_topic().count
    for index, image in enumerate(images):
        assert np.array_equal(image.message.data, pixels(index).ravel())


def test_a_cut_inside_an_uncompressed_chunk_loses_only_the_message_that_is_cut(tmp_path):
    payloads = image_payloads(40)
    path = write_mcap(tmp_path / "a.mcap", payloads, CompressionType.NONE, chunk_bytes=1 << 20)
    content = path.read_bytes()
    cut_in_message_30 = content.index(payloads[30]) + 10
    path.write_bytes(content[:cut_in_message_30])
    images, bag = read(path)
    assert len(images) == bag.truncated_after == 30


def test_an_mcap_that_lacks_only_its_end_says_that_it_is_cut(tmp_path):
    path = write_mcap(tmp_path / "a.mcap", image_payloads())
    path.write_bytes(path.read_bytes()[:-8])
    images, bag = read(path)
    assert len(images) == bag.truncated_after == 12


def test_a_damaged_chunk_ends_the_reading_and_is_told(tmp_path):
    payloads = image_payloads(40)
    path = write_mcap(tmp_path / "a.mcap", payloads, CompressionType.NONE, chunk_bytes=1000)
    content = bytearray(path.read_bytes())
    content[content.index(payloads[20]) + 60] ^= 0xFF
    path.write_bytes(content)
    with open_bag(path) as bag:
        assert bag.truncated_after is None
        images = list(bag.images(TOPIC))
        assert 0 < len(images) <= 20
        assert bag.truncated_after == len(images)


@pytest.mark.parametrize("is_cut", [True, False])
def test_reading_an_mcap_without_an_index_takes_the_memory_of_a_chunk(tmp_path, is_cut):
    large = image_message(np.zeros((200, 200, 3), np.uint8), "rgb8", recorded.BASE_NS, "cam")
    payloads = [bytes(ros2_types().serialize_cdr(large, IMAGE))] * 300
    no_compression = CompressionType.NONE
    path = tmp_path / "a.mcap"
    write_mcap(path, payloads, no_compression, chunk_bytes=1_000_000, use_statistics=False)
    if is_cut:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    tracemalloc.start()
    with open_bag(path) as bag:
        n_images = sum(1 for _ in bag.images(TOPIC))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert n_images > 100
    assert peak_bytes < 6_000_000


def test_a_recording_cut_before_its_first_message_is_refused(tmp_path):
    path = write_mcap(tmp_path / "a.mcap", image_payloads(), use_chunking=False)
    path.write_bytes(path.read_bytes()[:200])
    assert "before its first message" in refusal(path)


@pytest.mark.parametrize("n_bytes", [60, 5000, 30_000])
def test_a_cut_sqlite_file_is_refused(tmp_path, n_bytes):
    folder = write_rosbag2(tmp_path / "bag", n_images=300, plugin=StoragePlugin.SQLITE3)
    file = folder / "bag.db3"
    assert file.stat().st_size > 30_000
    file.write_bytes(file.read_bytes()[:n_bytes])
    assert "cut short" in refusal(file)


def test_a_damaged_sqlite_file_is_refused(tmp_path):
    folder = write_rosbag2(tmp_path / "bag", n_images=300, plugin=StoragePlugin.SQLITE3)
    file = folder / "bag.db3"
    content = bytearray(file.read_bytes())
    content[12_000:] = b"\xaa" * (len(content) - 12_000)
    file.write_bytes(content)
    assert "damaged" in refusal(file)


def test_messages_in_the_write_ahead_log_of_a_killed_recorder_are_read(tmp_path):
    folder = write_rosbag2(tmp_path / "bag", plugin=StoragePlugin.SQLITE3)
    recorder = sqlite3.connect(folder / "bag.db3", isolation_level=None)
    recorder.execute("PRAGMA journal_mode = WAL")
    (data,) = recorder.execute("SELECT data FROM messages LIMIT 1").fetchone()
    recorder.execute("INSERT INTO messages (topic_id, timestamp, data) VALUES (1, ?, ?)", (2**62, data))
    killed = tmp_path / "killed"
    shutil.copytree(folder, killed)
    recorder.close()
    images, _ = read(killed)
    assert len(images) == 13
    assert images[-1].log_ns == 2**62


def test_a_folder_name_with_sql_uri_characters_is_no_problem(tmp_path):
    folder = write_rosbag2(tmp_path / "bag", plugin=StoragePlugin.SQLITE3)
    assert_holds(folder.rename(tmp_path / "50%20 of #1?mode=x"))


@pytest.mark.parametrize("n_bytes", [100, 1000])
def test_a_cut_ros1_bag_is_refused(tmp_path, n_bytes):
    path = write_rosbag1(tmp_path / "a.bag")
    path.write_bytes(path.read_bytes()[:n_bytes])
    assert "reindex" in refusal(path)


def test_a_cut_compressed_file_is_read_as_far_as_it_goes_or_refused(tmp_path):
    def cut(source: Path, n_bytes: int | None = None) -> Path:
        packed = zstandard.ZstdCompressor(level=1).compress(source.read_bytes())
        target = tmp_path / f"{source.name}.zstd"
        target.write_bytes(packed[: n_bytes or len(packed) // 2])
        return target

    # zstd gives whole blocks of 128 KiB
    mcap = write_mcap(tmp_path / "a.mcap", image_payloads(3000), CompressionType.NONE)
    images, bag = read(cut(mcap))
    assert 0 < bag.truncated_after == len(images) < 3000
    assert "nothing can be decompressed" in refusal(cut(mcap, 40))
    folder = write_rosbag2(tmp_path / "bag", n_images=3000, plugin=StoragePlugin.SQLITE3)
    assert "cut short" in refusal(cut(folder / "bag.db3"))


def test_what_is_no_recording_is_refused_with_the_reason(tmp_path):
    text = tmp_path / "text.mcap"
    text.write_text("not a bag\n")
    assert "begins with b'not a bag" in refusal(text)
    empty = tmp_path / "empty.db3"
    empty.touch()
    assert "empty" in refusal(empty)
    packed = tmp_path / "a.bag.gz"
    packed.write_bytes(b"\x1f\x8b\x08\x00" + bytes(20))
    assert "gzip" in refusal(packed)
    packed = tmp_path / "a.db3.lz4"
    packed.write_bytes(b"\x04\x22\x4d\x18" + bytes(20))
    assert "lz4" in refusal(packed)
    folder = tmp_path / "folder"
    folder.mkdir()
    assert "no recording in this folder" in refusal(folder)
    write_rosbag2(folder / "inner")
    assert "inner" in refusal(folder)
    assert "no such file" in refusal(tmp_path / "nowhere")
    assert "regular file" in refusal(Path("/dev/null"))
    other = tmp_path / "other.db3"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE cats (name)")
    connection.close()
    assert "topics and messages" in refusal(other)
    video = tmp_path / "video.mp4"
    video.write_bytes(b"\0\0\0\x18ftypmp42" + bytes(100))
    assert "video" in refusal(video)


def test_several_recordings_in_a_folder_are_listed(tmp_path):
    for name in ("monday.mcap", "tuesday.mcap"):
        write_mcap(tmp_path / name, image_payloads(1))
    text = refusal(tmp_path)
    assert "monday.mcap" in text and "tuesday.mcap" in text


def test_one_image_topic_of_several_has_to_be_named(tmp_path):
    folder = write_rosbag2(tmp_path / "bag", topics=("/left", "/right"))
    text = refusal(folder)
    assert f"/left ({IMAGE}, 12)" in text and f"/right ({IMAGE}, 12)" in text
    with open_bag(folder) as bag:
        assert bag.pick_image_topic("/right").name == "/right"
        assert bag.pick_image_topic("left").name == "/left"
        with pytest.raises(BagRefused, match="no topic /middle; its topics are /left"):
            bag.pick_image_topic("/middle")


def test_a_recording_without_images_lists_what_there_is(tmp_path):
    folder = write_rosbag2(tmp_path / "bag", n_images=1, topics=(), instructions=("go",))
    assert "no image topic; its topics are /instruction (std_msgs/msg/String, 1)" in refusal(folder)
    with (
        open_bag(folder) as bag,
        pytest.raises(BagRefused, match=r"/instruction is no image topic but std_msgs"),
    ):
        bag.pick_image_topic("/instruction")


@pytest.mark.parametrize("plugin", list(StoragePlugin))
def test_a_recording_without_messages_is_refused(tmp_path, plugin):
    folder = write_rosbag2(tmp_path / "bag", n_images=0, plugin=plugin)
    assert "no message on /cam/image_raw" in refusal(folder)


def test_the_only_image_topic_with_messages_is_taken(tmp_path):
    folder = write_rosbag2(tmp_path / "bag", plugin=StoragePlugin.SQLITE3)
    with sqlite3.connect(folder / "bag.db3") as connection:
        connection.execute("INSERT INTO topics SELECT 2, '/idle', type, 'cdr', '', '' FROM topics")
    connection.close()
    with open_bag(folder / "bag.db3") as bag:
        assert [topic.name for topic in bag.image_topics()] == [TOPIC, "/idle"]
        assert bag.pick_image_topic().name == TOPIC


def test_unreadable_messages_are_counted_and_the_others_read(tmp_path):
    payloads = image_payloads(10)
    payloads[3] = payloads[3][:20]
    payloads[5] = b"\x28\xb5\x2f\xfd garbage"
    payloads[7] = b""
    images, bag = read(write_mcap(tmp_path / "a.mcap", payloads))
    assert len(images) == 7
    assert bag.unreadable_messages == 3


@pytest.mark.parametrize(
    ("encoding", "payload", "reason"),
    [
        ("cdr", b"\x04\x22\x4d\x18" + bytes(99), "compressed with lz4"),
        ("protobuf", bytes(99), "serialised as 'protobuf'"),
        ("cdr", b"\x00\x01\x00\x00", "not a sensor_msgs/msg/Image"),
    ],
)
def test_no_readable_message_at_all_is_an_error_not_zero_frames(tmp_path, encoding, payload, reason):
    path = write_mcap(tmp_path / "a.mcap", [payload] * 4, encoding=encoding)
    text = refusal(path)
    assert "none of 4 messages" in text and reason in text


def test_an_unknown_chunk_compression_is_named(tmp_path):
    path = write_mcap(tmp_path / "a.mcap", image_payloads())
    path.write_bytes(path.read_bytes().replace(b"\x04\0\0\0zstd", b"\x04\0\0\0rar5"))
    assert "rar5" in refusal(path)


def test_names_in_a_recording_cannot_write_to_the_terminal(tmp_path):
    folder = write_rosbag2(tmp_path / "bag", topics=("/a\x1b[31m\n", "/b"))
    text = refusal(folder)
    assert "\x1b" not in text


@pytest.mark.parametrize("stamp_ns", [0, -5_000_000_000, 8_297_777_777, 2**31 * 10**9 - 1])
def test_stamps_are_passed_on_unchanged(tmp_path, stamp_ns):
    payload = bytes(ros2_types().serialize_cdr(recorded.image(0, stamp_ns), IMAGE))
    (image,), _ = read(write_mcap(tmp_path / "a.mcap", [payload]))
    assert image.stamp_ns == stamp_ns
    assert image.log_ns == recorded.log_ns(0)


def test_images_and_instructions_play_together_in_log_order(tmp_path):
    folder = write_rosbag2(tmp_path / "bag", n_images=3, instructions=("pick the cup", "put it down"))
    with open_bag(folder) as bag:
        assert bag.instruction_topic() == "/instruction"
        assert [said.text for said in bag.strings("/instruction")] == ["pick the cup", "put it down"]
        order = [topic for topic, _ in bag.play([TOPIC, "/instruction"])]
        assert order == ["/instruction", TOPIC, "/instruction", TOPIC, TOPIC]
        assert len(list(bag.images(TOPIC))) == len(list(bag.images(TOPIC))) == 3


def test_a_bag_without_instructions_says_so(tmp_path):
    with open_bag(write_rosbag2(tmp_path / "bag")) as bag:
        assert bag.instruction_topic() is None


@pytest.mark.parametrize(("suffix", "codec"), [("avi", "MJPG"), ("mp4", "mp4v")])
def test_a_video_is_a_recording_with_one_topic(tmp_path, suffix, codec):
    path = tmp_path / f"clip.{suffix}"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*codec), 25.0, (64, 48))
    assert writer.isOpened()
    for index in range(10):
        writer.write(np.full((48, 64, 3), (200, 20 * index, 10), np.uint8))
    writer.release()
    images, bag = read(path)
    assert [topic.name for topic in bag.topics()] == ["video"]
    assert len(images) == 10 == bag.pick_image_topic("video").count
    assert [image.stamp_ns for image in images] == [40_000_000 * (i + 1) for i in range(10)]
    message = images[4].message
    assert (message.height, message.width, message.step, message.encoding) == (48, 64, 192, "bgr8")
    assert np.abs(message.data.reshape(48, 64, 3)[24, 32].astype(int) - (200, 80, 10)).max() < 12


def test_what_was_decompressed_is_removed_on_close(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    folder = write_rosbag2(tmp_path / "bag", compression=CompressionMode.FILE)
    with open_bag(folder) as bag:
        assert list((tmp_path / "scratch").rglob("*.mcap"))
        bag.close()
    assert not list((tmp_path / "scratch").iterdir())


@pytest.fixture(scope="module")
def healthy_files(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("healthy")
    database = write_rosbag2(folder / "sqlite", plugin=StoragePlugin.SQLITE3) / "sqlite.db3"
    packed = folder / "packed.mcap.zstd"
    chunked = write_mcap(folder / "chunked.mcap", image_payloads())
    packed.write_bytes(zstandard.compress(chunked.read_bytes()))
    plain = write_mcap(folder / "plain.mcap", image_payloads(), use_chunking=False)
    return [database, packed, chunked, plain, write_rosbag1(folder / "a.bag")]


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_any_damage_gives_images_or_one_line_and_nothing_else(healthy_files, data):
    file = data.draw(st.sampled_from(healthy_files))
    content = bytearray(file.read_bytes())
    n_bytes = data.draw(st.integers(1, len(content)))
    del content[n_bytes:]
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, n_bytes - 1))] = data.draw(st.integers(0, 255))
    damaged = file.with_name("damaged" + file.suffix)
    damaged.write_bytes(content)
    try:
        images, _ = read(damaged)
    except BagRefused as refused:
        assert str(refused).isprintable()
    else:
        assert len(images) <= 12
