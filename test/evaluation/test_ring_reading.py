"""A ring of segments is read as JSON lines are: by explain, report and replay --ticks, cut or damaged too."""

import json

import numpy as np
import pytest
from mcap.writer import Writer
from test_retrace import ENABLED, live, write

from vla_edge_ros.cli import main
from vla_edge_ros.control.record import tick_record
from vla_edge_ros.control.ring import Ring, segments_in
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation import ring_reading
from vla_edge_ros.evaluation.explain.recorded_ticks import read_ticks
from vla_edge_ros.evaluation.explain.tick_list import place_of
from vla_edge_ros.evaluation.recorded_run import RecordedRun, read_run

MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def run() -> RecordedRun:
    return live(60, events=ENABLED)


def write_ring(folder, run: RecordedRun, max_bytes: int = 100 * MEGABYTE, padding: int = 0) -> list:
    """padding: bytes that compress badly in each tick's reason."""
    random = np.random.default_rng(0)
    ring = Ring(folder, run.run, max_bytes)
    for frame in run.frames:
        ring.write(frame)
    ring.write({"begin": run.begin})
    for tick in run.ticks:
        record = tick_record(tick)
        record.reason += random.bytes(padding).hex()
        ring.write(record)
    ring.close()
    return [segment.path for segment in segments_in(folder)]


def test_a_ring_is_the_run_that_json_lines_are(tmp_path, run):
    lines = RecordedRun.load(write(tmp_path / "run.jsonl", run))
    write_ring(tmp_path / "run.mcap", run)
    for path in (tmp_path / "run.mcap", tmp_path / "run.mcap" / "run_0.mcap"):
        ring = RecordedRun.load(path)
        assert (ring.frames, ring.ticks, ring.begin) == (lines.frames, lines.ticks, lines.begin)
        assert ring.run | {"segment": None} == lines.run | {"segment": None}
        assert not ring.is_start_lost
        assert RecordedRun.from_lines(path).ticks == lines.ticks


def test_every_command_reads_a_ring(capsys, tmp_path, run):
    folder = tmp_path / "run.mcap"
    write_ring(folder, run)
    assert main(["replay", "--ticks", str(folder)]) == 0
    assert capsys.readouterr().out.startswith("60 ticks run again, 60 equal bit for bit\n")
    assert main(["explain", str(folder), "--tick", "last"]) == 0
    assert "tick 59" in capsys.readouterr().out
    assert main(["report", str(folder), "--out", str(tmp_path / "page.html")]) == 0
    assert "FRESH" in (tmp_path / "page.html").read_text()


def test_a_ring_that_lost_the_start_is_told_from_its_oldest_tick_on_and_not_run_again(capsys, tmp_path, run):
    folder = tmp_path / "run.mcap"
    files = write_ring(folder, run, MEGABYTE, padding=20_000)
    assert files[0].name != "run_0.mcap"
    ticks = read_ticks(folder).ticks
    first = ticks[0]["tick"]
    assert [tick["tick"] for tick in ticks] == list(range(first, 60))
    assert first > 0
    assert main(["explain", str(folder), "--tick", str(first)]) == 0
    assert main(["report", str(folder), "--out", str(tmp_path / "page.html")]) == 0
    capsys.readouterr()
    assert main(["replay", "--ticks", str(folder)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"without its start, which its ring has lost: ticks {first} to 59 are there" in error
    recorded = RecordedRun.load(folder)
    assert recorded.begin == run.begin
    assert recorded.first_frame == ticks[0]["seen_frame"]
    with pytest.raises(UserError, match="without its start"):
        recorded.check_replayable()


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.999])
def test_a_segment_that_was_cut_anywhere_is_read_as_far_as_it_goes(tmp_path, run, share):
    files = write_ring(tmp_path / "run.mcap", run, MEGABYTE * 4, padding=5000)
    data = files[-1].read_bytes()
    files[-1].write_bytes(data[: int(len(data) * share)])
    ticks = [tick["tick"] for tick in read_ticks(tmp_path / "run.mcap").ticks]
    assert ticks == list(range(ticks[0], ticks[-1] + 1))
    assert ticks[-1] >= 30


def test_a_segment_that_had_only_been_begun_does_not_hide_those_before_it(tmp_path, run):
    files = write_ring(tmp_path / "run.mcap", run)
    for number, content in enumerate([b"", b"\x89MCAP0\r\n", files[0].read_bytes()[:100]], 1):
        (tmp_path / "run.mcap" / f"run_{number}.mcap").write_bytes(content)
    assert len(read_ticks(tmp_path / "run.mcap").ticks) == 60


def test_a_folder_is_its_newest_run_and_an_older_one_is_read_by_its_file(tmp_path, run):
    folder = tmp_path / "run.mcap"
    write_ring(folder, run)
    write_ring(folder, run.until_tick(5))
    assert len(RecordedRun.load(folder).ticks) == 5
    assert len(RecordedRun.load(folder / "run_0.mcap").ticks) == 60
    assert [s.number for s in segments_in(folder)] == [0, 1]


def test_segments_are_in_the_order_of_their_numbers_not_of_their_names(tmp_path):
    for number in (10, 9, 100):
        (tmp_path / f"run_{number}.mcap").touch()
    assert [s.number for s in segments_in(tmp_path)] == [9, 10, 100]


def mcap_of(path, messages):
    """messages: (topic, data)."""
    with path.open("wb") as stream:
        writer = Writer(stream)
        writer.start()
        channels = {}
        for topic, data in messages:
            if topic not in channels:
                channels[topic] = writer.register_channel(topic, "json", 0)
            writer.add_message(channels[topic], 0, data, 0)
        writer.finish()
    return path


HEAD = json.dumps({"run": {"segment": {"run_id": "a", "number": 0}}}).encode()
HOSTILE = {
    "nothing": [],
    "another recording": [("/camera", b"\x00\x01")],
    "a head that is no JSON": [("/run", b"{")],
    "a head that is no object": [("/run", b"[1]")],
    "a head of depth": [("/run", b"[" * 100_000)],
    "a head without a run": [("/run", b'{"end": {}}')],
    "a segment that is no object": [("/run", b'{"run": {"segment": 3}}')],
    "a head alone": [("/run", HEAD)],
    "ticks that are no JSON": [("/run", HEAD), ("/tick", b"{"), ("/tick", b"}")],
    "ticks that are no ticks": [("/run", HEAD), ("/tick", b'{"tick": "x"}')],
    "ticks that are no text": [("/run", HEAD), ("/tick", b"\xff\xfe")],
    "ticks of two lines": [("/run", HEAD), ("/tick", b'{}}\n{"run": {}')],
    "frames that are none": [("/run", HEAD), ("/frame", b'{"index": "x"}')],
    "frames that are no JSON": [("/run", HEAD), ("/frame", b"x")],
    "frames of depth": [("/run", HEAD), ("/frame", b"[" * 100_000)],
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("is_folder", [True, False])
def test_what_is_no_ring_is_refused_in_one_line(capsys, tmp_path, name, is_folder):
    file = mcap_of(tmp_path / "run_0.mcap", HOSTILE[name])
    path = str(tmp_path if is_folder else file)
    page = str(tmp_path / "page.html")
    for words in (["explain", path], ["report", path, "--out", page], ["replay", "--ticks", path]):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert path in error


def test_a_damaged_chunk_ends_what_is_read_and_no_more(tmp_path, run):
    (file,) = write_ring(tmp_path / "run.mcap", run)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    with pytest.raises(UserError, match="no recorded run"):
        RecordedRun.load(file)


def test_an_empty_folder_and_one_of_other_files_are_refused(tmp_path):
    with pytest.raises(UserError, match="it has no segment of one"):
        read_run(tmp_path)
    (tmp_path / "run_0.mcap").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(UserError, match="it has no segment of one"):
        read_run(tmp_path)


def test_a_ring_of_more_than_can_be_read_is_refused(tmp_path, run, monkeypatch):
    monkeypatch.setattr("vla_edge_ros.evaluation.recorded_run._MAX_RUN_BYTES", 10_000)
    write_ring(tmp_path / "run.mcap", run)
    with pytest.raises(UserError, match="cannot be read"):
        read_run(tmp_path / "run.mcap")


def test_a_tick_of_an_earlier_start_is_not_there_and_its_segments_are_named(capsys, tmp_path, run):
    folder = tmp_path / "run.mcap"
    write_ring(folder, run)
    write_ring(folder, run.until_tick(5))
    assert main(["explain", str(folder), "--tick", "50"]) == 2
    error = capsys.readouterr().err
    assert "tick 50 was not recorded: ticks 0 to 4 are there" in error
    assert "not read: 1 of the ring's segments, run_0.mcap" in error
    assert main(["explain", str(folder / "run_0.mcap"), "--tick", "50"]) == 0


def test_of_a_ring_too_large_to_be_read_at_once_the_newest_ticks_are_told_and_all_are_run_again(
    capsys, tmp_path, run, monkeypatch
):
    folder = tmp_path / "run.mcap"
    files = write_ring(folder, run, 4 * MEGABYTE, padding=20_000)
    assert len(files) > 4
    whole = sum(len(line) for line in read_run(folder, is_whole=True))
    monkeypatch.setattr("vla_edge_ros.evaluation.recorded_run._ENOUGH_BYTES", whole // 3)
    told = read_ticks(folder)
    assert told.ticks[-1]["tick"] == 59
    assert 59 - told.ticks[0]["tick"] >= 10
    assert len(read_run(folder)) <= whole // 3
    assert told.left_out == [file.name for file in files[: len(told.left_out)]] != []
    assert len(RecordedRun.load(folder).ticks) == 60
    monkeypatch.setattr("vla_edge_ros.evaluation.recorded_run._ENOUGH_BYTES", 1)
    assert read_ticks(folder).ticks[-1]["tick"] == 59
    assert main(["explain", str(folder)]) == 0
    assert f"run_0.mcap to {files[-2].name}" in capsys.readouterr().out


def test_any_tick_of_a_ring_too_large_to_be_read_at_once_is_found_with_those_after_it(
    capsys, tmp_path, run, monkeypatch
):
    folder = tmp_path / "run.mcap"
    files = write_ring(folder, run, 4 * MEGABYTE, padding=20_000)
    assert len(files) > 4
    monkeypatch.setattr("vla_edge_ros.evaluation.recorded_run._ENOUGH_BYTES", 1)
    for tick in range(60):
        numbers = [told["tick"] for told in read_ticks(folder, tick).ticks]
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        assert numbers[0] <= tick < numbers[-1] or tick == numbers[-1] == 59
    assert main(["explain", str(folder), "--tick", "0"]) == 0
    assert "tick 0" in capsys.readouterr().out
    (_, head), *_ = ring_reading._messages(files[0])
    mcap_of(folder / "run_99.mcap", [("/run", head)])  # that the node has just begun
    assert read_ticks(folder, 0).ticks[0]["tick"] == 0
    assert main(["explain", str(folder), "--tick", "60"]) == 2


def write_activations(folder, run: RecordedRun, *n_ticks: int) -> list:
    """A run of several activations; the reason of each tick begins with the number of its own, from 0."""
    random = np.random.default_rng(0)
    ring = Ring(folder, run.run, 4 * MEGABYTE)
    for place, n in enumerate(n_ticks):
        ring.write({"begin": run.begin | {"at_ns": run.begin["at_ns"] + place}})
        for tick in run.ticks[:n]:
            record = tick_record(tick)
            record.reason = f"{place} {random.bytes(20_000).hex()}"
            ring.write(record)
    ring.close()
    return [segment.path for segment in segments_in(folder)]


@pytest.mark.parametrize("n_ticks", [(43, 25), (43, 1, 60), (3, 2, 40), (8, 7, 6, 5, 4)])
def test_a_tick_of_a_ring_is_the_last_of_its_number_wherever_the_node_was_activated_again(
    capsys, tmp_path, run, monkeypatch, n_ticks
):
    folder = tmp_path / "run.mcap"
    files = write_activations(folder, run, *n_ticks)
    numbers = [[tick["tick"] for tick in read_ticks(file).ticks] for file in files]
    assert any(row != sorted(set(row)) for row in numbers), "no segment has a restart in it"
    monkeypatch.setattr("vla_edge_ros.evaluation.recorded_run._ENOUGH_BYTES", 1)
    for tick in range(max(n_ticks)):
        told = read_ticks(folder, tick)
        newest = max(place for place, n in enumerate(n_ticks) if tick < n)
        assert told.ticks[place_of(told, str(tick))]["reason"].split()[0] == str(newest)
    assert main(["explain", str(folder), "--tick", str(max(n_ticks))]) == 2
    assert f"tick {max(n_ticks)} was not recorded" in capsys.readouterr().err


def test_a_damaged_segment_in_the_middle_is_said(capsys, tmp_path, run):
    folder = tmp_path / "run.mcap"
    files = write_ring(folder, run, 4 * MEGABYTE, padding=20_000)
    data = bytearray(files[1].read_bytes())
    data[len(data) // 2] ^= 0xFF
    files[1].write_bytes(data)
    assert main(["explain", str(folder)]) == 0
    assert "run_1.mcap cannot be read to the end: ticks are missing" in capsys.readouterr().err
    assert main(["replay", "--ticks", str(folder)]) == 2
    assert "not every one" in capsys.readouterr().err


def test_the_folders_own_segments_are_read_and_of_a_renamed_folder_those_that_are_there(tmp_path, run):
    folder = tmp_path / "run.mcap"
    write_ring(folder, run)
    (other,) = write_ring(tmp_path / "other.mcap", run.until_tick(5))
    other.rename(folder / "other_7.mcap")
    assert len(read_ticks(folder).ticks) == 60
    (folder / "other_7.mcap").unlink()
    assert len(read_ticks(folder.rename(tmp_path / "crash")).ticks) == 60


def test_a_segment_that_its_node_deletes_while_it_is_read_is_a_lost_start(tmp_path, run, monkeypatch):
    folder = tmp_path / "run.mcap"
    files = write_ring(folder, run, 4 * MEGABYTE, padding=20_000)
    found = ring_reading._of_newest_run

    def and_delete_one(segments):
        newest = found(segments)
        files[0].unlink()
        return newest

    monkeypatch.setattr(ring_reading, "_of_newest_run", and_delete_one)
    recorded = RecordedRun.load(folder)
    assert recorded.is_start_lost
    assert recorded.ticks[-1]["tick"] == 59


def test_a_ring_is_read_while_its_node_writes(tmp_path, run):
    ring = Ring(tmp_path / "run.mcap", run.run, MEGABYTE)
    ring.write({"begin": run.begin})
    for tick in run.ticks[:30]:
        ring.write(tick_record(tick))
    ring._flush()
    assert len(read_ticks(tmp_path / "run.mcap").ticks) == 30
    ring.close()


@pytest.mark.parametrize("extra", [{"left_out": 3}, {"cut": [1]}])
def test_lines_that_claim_what_a_ring_says_are_checked(tmp_path, extra):
    (tmp_path / "run.jsonl").write_text(json.dumps({"run": {}} | extra) + '\n{"tick": {}}\n')
    with pytest.raises(UserError, match="no recorded run"):
        read_ticks(tmp_path / "run.jsonl")
