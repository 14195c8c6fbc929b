import json
from pathlib import Path

import pytest

from vla_edge_ros.control.decision import Decision
from vla_edge_ros.control.record import TickRecord
from vla_edge_ros.control.recorder import Recorder
from vla_edge_ros.errors import UserError
from vla_edge_ros.perception.frame import FrameMeta


def test_every_item_becomes_one_line_in_order(tmp_path):
    path = tmp_path / "run.jsonl"
    recorder = Recorder(path, {"model": "tiny"})
    recorder.put(FrameMeta(1, 20, 10, 11))
    recorder.put(TickRecord(5, 100, 101, 200, decision=Decision.FRESH, action=[0.5]))
    recorder.close()
    run, frame, tick = [json.loads(line) for line in path.read_text().splitlines()]
    assert run == {"run": {"model": "tiny"}}
    assert frame == {"frame": [1, 20, 10, 11]}
    assert (tick["tick"]["tick"], tick["tick"]["decision"], tick["tick"]["action"]) == (5, "FRESH", [0.5])


@pytest.mark.parametrize("path", ["/dev/full", "/dev", "/nowhere/run.jsonl"])
def test_a_path_that_cannot_be_written_is_refused_at_once_by_name(path):
    with pytest.raises(UserError, match=f"{path}: cannot be written"):
        Recorder(Path(path), {})


@pytest.mark.parametrize("defect", [OSError(28, "No space left on device"), TypeError("no JSON")])
def test_what_cannot_be_recorded_stops_the_recording_and_not_the_loop_and_is_counted(
    tmp_path, monkeypatch, defect
):
    recorder = Recorder(tmp_path / "run.jsonl", {})

    def dumps(item):
        raise defect

    monkeypatch.setattr("vla_edge_ros.control.recorder.json.dumps", dumps)
    for index in range(1, 4):
        recorder.put(FrameMeta(index, 0, 0, 0))
    recorder.close()
    assert recorder.error == f"recording stopped: {defect}"
    recorder.put(FrameMeta(4, 0, 0, 0))
    assert recorder.dropped == 4


def test_what_does_not_fit_the_queue_is_dropped_and_counted(tmp_path):
    recorder = Recorder(tmp_path / "run.jsonl", {}, capacity=0)
    recorder.put(FrameMeta(1, 0, 0, 0))
    recorder.close()
    assert recorder.dropped == 1
