"""`vla-edge report` takes whatever holds a run, and says so where a file holds none."""

import json

import pytest

from vla_edge_ros.cli import main
from vla_edge_ros.control.decision import Decision
from vla_edge_ros.control.record import TickRecord
from vla_edge_ros.control.recorder import Recorder
from vla_edge_ros.evaluation.sample import bundled_sample
from vla_edge_ros.parameters import defaults


def test_a_replays_json_becomes_a_page(tmp_path):
    run, page = tmp_path / "run.json", tmp_path / "new" / "page.html"
    assert main(["replay", str(bundled_sample()), "--seconds", "0.5", "--json", str(run)]) == 0
    assert main(["report", str(run), "--out", str(page)]) == 0
    assert "FRESH" in page.read_text()


def test_a_nodes_own_record_becomes_a_page_even_when_it_was_killed(tmp_path):
    lines = tmp_path / "run.jsonl"
    engine = {"backend": "numpy", "plan_id": "p", "model": "tiny", "seed": 0}
    recorder = Recorder(lines, {"parameters": defaults(), "engine": engine})
    recorder.put({"begin": {"at_ns": 0, "frame": 0}})
    for tick in range(3):
        recorder.put(TickRecord(tick, tick * 33_333_000, tick * 33_333_000, 0, Decision.HOLD_REFUSED))
    recorder.close()
    lines.write_text(lines.read_text() + '{"tick": {"tick": 3, "sched')
    page = tmp_path / "page.html"
    assert main(["report", str(lines), "--out", str(page)]) == 0
    assert "HOLD_REFUSED" in page.read_text()


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "No such file"),
        ("", "no recorded run"),
        ("[1, 2]", "no recorded run"),
        (json.dumps({"run": {}}) + "\n" + json.dumps({"tick": 1}), "no recorded run"),
        ("hello", "no recorded run"),
    ],
)
def test_a_file_without_a_run_is_refused_in_one_line(tmp_path, capsys, content, line):
    path = tmp_path / "run.json"
    if content is not None:
        path.write_text(content)
    assert main(["report", str(path), "--out", str(tmp_path / "page.html")]) == 2
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1
