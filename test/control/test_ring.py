"""The ring on disk: never more than its bytes, whole after a kill, and readable by everyone's MCAP reader."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest
from mcap.reader import make_reader
from mcap.writer import Writer

from vla_edge_ros.control import ring
from vla_edge_ros.control.decision import Decision
from vla_edge_ros.control.record import TickRecord, WorkTimes
from vla_edge_ros.control.record_schema import json_schema
from vla_edge_ros.control.recorder import Recorder
from vla_edge_ros.control.ring import N_SEGMENTS, Ring, n_to_delete, segments_in
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.storage_mcap import CutShort, walk
from vla_edge_ros.perception.frame import FrameMeta

MEGABYTE = 1_000_000


def a_tick(number: int, reason: str = "") -> TickRecord:
    return TickRecord(number, number, number, 10**18 + number, Decision.FRESH, reason)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def messages(file: Path) -> list[tuple[str, dict]]:
    with file.open("rb") as stream:
        reader = make_reader(stream)
        return [(channel.topic, json.loads(m.data)) for _, channel, m in reader.iter_messages()]


def ticks_of_cut(file: Path) -> list[dict]:
    """The ticks of a segment without an end."""
    found = []
    with suppress(CutShort):
        for channel, _, message in walk(file, is_sorted=False):
            if channel.topic == "/tick":
                found.append(json.loads(message.data))
    return found


def test_any_reader_finds_ticks_frames_and_the_run_with_schemas_and_ros_time(tmp_path):
    recorder = Recorder(tmp_path / "run.mcap", {"model": "tiny"}, ros_offset_ns=lambda: 7)
    recorder.put({"begin": {"at_ns": 5, "frame": 0}})
    recorder.put(FrameMeta(1, 20, 10, 11))
    recorder.put(a_tick(5))
    recorder.close()
    assert (recorder.dropped, recorder.error) == (0, None)
    with (tmp_path / "run.mcap" / "run_0.mcap").open("rb") as stream:
        found = {}
        for schema, channel, message in make_reader(stream).iter_messages():
            assert (schema.encoding, channel.message_encoding) == ("jsonschema", "json")
            found.setdefault(channel.topic, []).append((message.log_time, json.loads(message.data)))
            assert json.loads(schema.data)["type"] == "object"
    assert found["/frame"] == [(18, {"index": 1, "stamp_ns": 20, "capture_ns": 10, "receipt_ns": 11})]
    assert found["/tick"] == [(10**18 + 5, json.loads(json.dumps(a_tick(5).to_json())))]
    head, begin = [data for _, data in found["/run"]]
    assert (head["run"]["model"], head["run"]["segment"]["number"]) == ("tiny", 0)
    assert begin == {"begin": {"at_ns": 5, "frame": 0}}


def test_the_schema_names_every_field_by_a_type_that_foxglove_reads():
    def check(schema, value):
        assert schema["type"] in ("boolean", "integer", "number", "string", "object", "array")
        for name, part in schema.get("properties", {}).items():
            check(part, value[name] if isinstance(value, dict) else None)
        if schema["type"] == "array":
            check(schema["items"], None)

    record = asdict(a_tick(1))
    schema = json_schema(TickRecord)
    assert schema["properties"].keys() == record.keys()
    assert (
        schema["properties"]["work"]["items"]["properties"].keys()
        == asdict(WorkTimes(1, "", 0, 0, 0, 0)).keys()
    )
    check(schema, record)


@pytest.mark.parametrize(
    ("sizes", "room", "n"), [([], 5, 0), ([3, 4], 7, 0), ([3, 4], 6, 1), ([3, 4], 3, 2), ([3, 4, 5], 9, 1)]
)
def test_the_oldest_go_until_the_rest_fits(sizes, room, n):
    assert n_to_delete(sizes, room) == n


@pytest.mark.parametrize("noise", [0, 3000])
def test_the_ring_never_exceeds_its_bytes_however_many_ticks_and_keeps_the_newest(tmp_path, noise):
    folder = tmp_path / "run.mcap"
    writer = Ring(folder, {"model": "x" * 5000}, MEGABYTE)
    n = 1000 if noise else 12_000
    for number in range(n):
        assert writer.write(a_tick(number, os.urandom(noise).hex()))
        if number % 7 == 0:
            writer._flush()
        if number % 50 == 0:
            assert size_of(folder) <= MEGABYTE
    writer.close()
    segments = segments_in(folder)
    assert MEGABYTE * 0.7 < size_of(folder) <= MEGABYTE
    assert all(segment.path.stat().st_size <= MEGABYTE // N_SEGMENTS for segment in segments)
    assert segments[0].number > 0
    ticks = [data["tick"] for s in segments for topic, data in messages(s.path) if topic == "/tick"]
    assert ticks == list(range(ticks[0], n))


def test_a_node_that_starts_again_goes_on_in_the_ring_and_other_files_are_left_alone(tmp_path):
    folder = tmp_path / "run.mcap"
    folder.mkdir()
    others = [folder / "other_3.mcap", folder / "notes.txt", folder / "run_x.mcap", folder / "run_1.mcap.bak"]
    for other in others:
        other.write_bytes(b"x" * 2 * MEGABYTE)
    for _ in range(3):
        writer = Ring(folder, {}, MEGABYTE)
        for number in range(20):
            writer.write(a_tick(number, os.urandom(8000).hex()))
        writer.close()
    own = segments_in(folder, "run")
    assert [s.number for s in own] == list(range(own[0].number, own[-1].number + 1))
    assert sum(s.path.stat().st_size for s in own) <= MEGABYTE
    assert all(other.stat().st_size == 2 * MEGABYTE for other in others)


def test_an_item_larger_than_a_segment_is_dropped_and_counted_and_those_after_it_are_kept(tmp_path):
    recorder = Recorder(tmp_path / "run.mcap", {}, max_bytes=MEGABYTE)
    recorder.put(a_tick(1, "x" * 100_000))
    recorder.put(a_tick(2))
    recorder.close()
    assert (recorder.dropped, recorder.error) == (1, None)
    files = [s.path for s in segments_in(tmp_path / "run.mcap")]
    assert [data["tick"] for f in files for topic, data in messages(f) if topic == "/tick"] == [2]


@pytest.mark.parametrize("path", ["/proc/run.mcap", "/dev/null/run.mcap", "/work_\0/run.mcap"])
def test_a_folder_that_cannot_be_written_is_refused_at_once_by_name(path):
    with pytest.raises(UserError, match="cannot be written"):
        Recorder(Path(path), {})


def test_a_file_where_the_folder_is_to_be_is_refused(tmp_path):
    (tmp_path / "run.mcap").write_text("mine")
    with pytest.raises(UserError, match="cannot be written"):
        Recorder(tmp_path / "run.mcap", {})
    assert (tmp_path / "run.mcap").read_text() == "mine"


def test_a_ring_too_small_for_the_parameters_is_refused(tmp_path):
    with pytest.raises(UserError, match="record_bytes 1000000 is too small"):
        Ring(tmp_path / "run.mcap", {"prompt": "x" * 80_000}, MEGABYTE)


def test_a_full_disk_stops_the_recording_counts_what_is_lost_and_leaves_what_was_written(tmp_path):
    recorder = Recorder(tmp_path / "run.mcap", {})
    recorder.put(a_tick(1))
    time.sleep(1.2)
    file = tmp_path / "run.mcap" / "run_0.mcap"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size, hard))
    try:
        for number in range(2, 12):
            recorder.put(a_tick(number))
        deadline = time.monotonic() + 10
        while recorder.error is None and time.monotonic() < deadline:
            time.sleep(0.05)
        recorder.put(a_tick(12))
        recorder.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "recording stopped: " in recorder.error
    assert recorder.dropped == 11
    found = ticks_of_cut(file)
    assert [tick["tick"] for tick in found] == [1]


KILLED = """
import sys, time
from pathlib import Path
from vla_edge_ros.control.record import TickRecord
from vla_edge_ros.control.recorder import Recorder
recorder = Recorder(Path(sys.argv[1]), {})
number = 0
while True:
    number += 1
    recorder.put(TickRecord(number, number, number, time.time_ns()))
    print(number, time.time_ns(), flush=True)
    time.sleep(0.01)
"""


def test_a_kill_loses_at_most_a_second(tmp_path):
    folder = tmp_path / "run.mcap"
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(folder)], stdout=subprocess.PIPE, text=True)
    for line in child.stdout:
        if int(line.split()[0]) == 250:
            break
    killed_ns = time.time_ns()
    child.send_signal(signal.SIGKILL)
    child.wait()
    ticks = ticks_of_cut(folder / "run_0.mcap")
    assert [tick["tick"] for tick in ticks] == list(range(1, len(ticks) + 1))
    assert killed_ns - ticks[-1]["effect_stamp_ns"] < 1_000_000_000


def test_what_is_not_due_is_not_flushed_and_what_is_due_is(tmp_path, monkeypatch):
    writer = Ring(tmp_path / "run.mcap", {}, MEGABYTE)
    writer.write(a_tick(1))
    writer.flush()
    assert writer.n_unsure == 1
    monkeypatch.setattr(ring, "FLUSH_NS", 0)
    writer.flush()
    assert writer.n_unsure == 0
    assert [tick["tick"] for tick in ticks_of_cut(tmp_path / "run.mcap" / "run_0.mcap")] == [1]
    writer.close()


def test_of_a_burst_that_fills_the_disk_only_what_is_not_there_counts_as_dropped(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MEGABYTE, hard))
    try:
        recorder = Recorder(tmp_path / "run.mcap", {}, max_bytes=100 * MEGABYTE)
        for number in range(300):
            recorder.put(a_tick(number, os.urandom(5000).hex()))
        recorder.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "recording stopped: " in recorder.error
    n_read = len(ticks_of_cut(tmp_path / "run.mcap" / "run_0.mcap"))
    n_in_a_chunk = 256_000 // 10_000 + 1
    assert 300 <= n_read + recorder.dropped <= 300 + n_in_a_chunk  # what is read of the torn chunk


def test_a_bag_with_files_of_the_rings_names_is_left_alone_and_its_numbers_are_not_used(tmp_path):
    folder = tmp_path / "run.mcap"
    folder.mkdir()
    bag = folder / "run_3.mcap"
    with bag.open("wb") as stream:
        writer = Writer(stream)
        writer.start(library="libmcap 1.3.0")
        writer.finish()
        stream.write(bytes(2 * MEGABYTE))
    (folder / "run_0.mcap").touch()
    (folder / "run_1.mcap").symlink_to(bag)
    writer = Ring(folder, {}, MEGABYTE)
    for number in range(400):
        writer.write(a_tick(number, os.urandom(8000).hex()))
    writer.close()
    own = segments_in(folder, "run")[3:]
    assert {"run_0.mcap", "run_1.mcap", "run_3.mcap"} < {path.name for path in folder.iterdir()}
    assert own[0].number > 4
    assert sum(segment.path.stat().st_size for segment in own) <= MEGABYTE


def test_a_second_node_is_refused_while_the_first_records_and_not_after_it(tmp_path):
    first = Ring(tmp_path / "run.mcap", {}, MEGABYTE)
    with pytest.raises(UserError, match="another node records into it"):
        Ring(tmp_path / "run.mcap", {}, MEGABYTE)
    first.close()
    Ring(tmp_path / "run.mcap", {}, MEGABYTE).close()
    assert [s.number for s in segments_in(tmp_path / "run.mcap")] == [0, 1]


def test_a_refused_size_deletes_nothing(tmp_path):
    folder = tmp_path / "run.mcap"
    writer = Ring(folder, {}, 100 * MEGABYTE)
    for number in range(100):
        writer.write(a_tick(number, os.urandom(8000).hex()))
    writer.close()
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(UserError, match="too small"):
        Ring(folder, {"prompt": "x" * 80_000}, MEGABYTE)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_items_too_large_for_a_segment_push_nothing_out_of_the_ring(tmp_path):
    folder = tmp_path / "run.mcap"
    writer = Ring(folder, {}, MEGABYTE)
    writer.write(a_tick(1))
    for number in range(1000):
        assert not writer.write(a_tick(number, "x" * 70_000))
    writer.close()
    assert [s.number for s in segments_in(folder)] == [0]


@pytest.mark.parametrize("number", [999_999, 10**18 - 1])
def test_numbers_go_on_and_the_oldest_is_still_told(tmp_path, number):
    folder = tmp_path / "run.mcap"
    Ring(folder, {}, MEGABYTE).close()
    (folder / "run_0.mcap").rename(folder / f"run_{number}.mcap")
    for _ in range(2):
        Ring(folder, {}, MEGABYTE).close()
    assert [s.number for s in segments_in(folder)] == [number, number + 1, number + 2]


def test_a_large_ring_has_segments_that_can_be_read_one_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(ring, "_SEGMENT_BYTES", 100_000)
    writer = Ring(tmp_path / "run.mcap", {}, 100 * MEGABYTE)
    for number in range(50):
        writer.write(a_tick(number, os.urandom(5000).hex()))
    writer.close()
    sizes = [s.path.stat().st_size for s in segments_in(tmp_path / "run.mcap")]
    assert len(sizes) > 2
    assert max(sizes) <= 100_000


def test_segments_that_a_user_moves_away_while_it_records_are_not_missed(tmp_path):
    folder = tmp_path / "run.mcap"
    writer = Ring(folder, {}, MEGABYTE)
    for number in range(300):
        writer.write(a_tick(number, os.urandom(8000).hex()))
        if number % 30 == 29:
            oldest = segments_in(folder)[0].path
            oldest.rename(tmp_path / oldest.name)
    writer.close()
    numbers = [s.number for s in segments_in(folder)]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))


def test_a_disk_that_is_full_from_the_start_refuses_and_leaves_no_file(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(UserError, match="cannot be written: File too large"):
            Ring(tmp_path / "run.mcap", {}, MEGABYTE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list((tmp_path / "run.mcap").iterdir()) == []
    Ring(tmp_path / "run.mcap", {}, MEGABYTE).close()
