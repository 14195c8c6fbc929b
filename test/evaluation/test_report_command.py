"""`vla-edge report` takes whatever holds a run, and says so where a file holds none."""

import json
import math

import pytest
from recorded import SAMPLE

from vla_edge_ros.cli import main
from vla_edge_ros.control.decision import Decision
from vla_edge_ros.control.record import TickRecord
from vla_edge_ros.control.recorder import Recorder
from vla_edge_ros.parameters import defaults


def test_a_replays_json_becomes_a_page(tmp_path):
    run, page = tmp_path / "run.json", tmp_path / "new" / "page.html"
    assert main(["replay", str(SAMPLE), "--seconds", "0.5", "--json", str(run)]) == 0
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
        (None, "run.json: cannot be read: No such file or directory; name what `vla-edge demo`"),
        ("", "no recorded run"),
        ("[1, 2]", "no recorded run"),
        (json.dumps({"run": {}}) + "\n" + json.dumps({"tick": 1}), "no recorded run"),
        ("hello", "no recorded run"),
        (
            '{"kind": "demo", "records": [',
            "it is no JSON, or cut short (Expecting value: line 1",
        ),
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


@pytest.fixture(scope="module")
def replayed(tmp_path_factory) -> dict:
    path = tmp_path_factory.mktemp("replayed") / "run.json"
    assert main(["replay", str(SAMPLE), "--seconds", "0.2", "--json", str(path)]) == 0
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    ("place", "value", "line"),
    [
        (("records",), {}, "records is {}, wanted a list"),
        (("records", 2), "x", "records[2] is 'x', wanted an object"),
        (("records", 2, "scheduled_ns"), None, "records[2].scheduled_ns is None, wanted a whole number"),
        (("records", 2, "scheduled_ns"), 10**30, "wanted a whole number below 2**62"),
        (("records", 2, "scheduled_ns"), 10**18, "records that are not in the order of their times"),
        (("records", -1, "scheduled_ns"), 10**18, "records of more than 30 days"),
        (("records", 2, "pass_ms"), math.nan, "records[2].pass_ms is nan, wanted a finite number"),
        (("parameters", "control.deadline_ms"), "33", "parameters.control.deadline_ms is '33', wanted"),
        (("latency_ms", "pass"), [1], "latency_ms.pass is [1], wanted an object"),
        (("decision_counts", "FRESH"), [[]], "decision_counts.FRESH is [[]], wanted a whole number"),
        (("episodes",), [{"instructions": "go"}], "episodes[0].instructions is 'go', wanted a list"),
        (("machine",), "\x1b[31m", "machine is '\\x1b[31m', wanted an object"),
    ],
)
def test_a_document_of_another_shape_is_refused_by_the_place_where_it_differs(
    replayed, tmp_path, capsys, place, value, line
):
    document = json.loads(json.dumps(replayed))
    *inner, last = place
    part = document
    for step in inner:
        part = part[step]
    part[last] = value
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document))
    assert main(["report", str(path), "--out", str(tmp_path / "page.html")]) == 2
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1


def test_a_document_without_most_of_it_is_drawn_as_far_as_it_goes(replayed, tmp_path):
    path = tmp_path / "run.json"
    for records in ([], [{"scheduled_ns": 0}], [{"scheduled_ns": tick} for tick in range(3)]):
        path.write_text(json.dumps({"records": records, "machine": None, "parameters": None}))
        assert main(["report", str(path), "--out", str(tmp_path / "page.html")]) == 0


def test_the_picture_beside_a_run_of_episodes_is_shown_again(replayed, tmp_path):
    path, page = tmp_path / "run.json", tmp_path / "page.html"
    path.write_text(json.dumps(replayed | {"episodes": [{"task": "reach"}], "picture": "../../episode.webp"}))
    assert main(["report", str(path), "--out", str(page)]) == 0
    assert "image/webp" not in page.read_text()
    (tmp_path / "episode.webp").write_bytes(b"picture")
    assert main(["report", str(path), "--out", str(page)]) == 0
    assert "data:image/webp;base64,cGljdHVyZQ==" in page.read_text()


def test_a_device_is_not_read_to_its_end(capsys, tmp_path):
    assert main(["report", "/dev/zero", "--out", str(tmp_path / "page.html")]) == 2
    assert "/dev/zero: cannot be read: Not a regular file" in capsys.readouterr().err
