"""`vla-edge evaluate` from the command line to the page in a browser."""

import io
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from recorded import write_rosbag2
from rich.console import Console

from vla_edge_ros import cli
from vla_edge_ros.evaluation.forgetting import command
from vla_edge_ros.evaluation.forgetting.footage import recordings_in
from vla_edge_ros.evaluation.forgetting.pool import Outcome
from vla_edge_ros.memory.policies import POLICIES
from vla_edge_ros.share import share_directory

SAMPLE = share_directory() / "recordings/sample"
SMALL = ("--policies", "fifo,novelty", "--capacities", "3", "--seeds", "2", "--frames", "10")


def evaluate(*words) -> int:
    return cli.main(["evaluate", *map(str, words)])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("evaluate")
    assert evaluate(SAMPLE, *SMALL, "--workers", 2, "--out", out, "--report", out / "page.html") == 0
    return out


def test_it_leaves_rows_figures_and_a_page(finished):
    rows = [json.loads(line) for line in (finished / "rows.jsonl").read_text().splitlines()]
    assert {(r["bag"], r["policy"], r["capacity"], r["seed"]) for r in rows} == {
        ("sample", policy, 3, seed) for policy in ("fifo", "novelty") for seed in (0, 1)
    }
    assert all(r["evictions"] == 7 and len(r["eviction_us"]) == 7 for r in rows)
    document = json.loads((finished / "forgetting.json").read_text())
    assert set(document["policies"]) == {"fifo", "novelty"}
    assert document["policies"]["fifo"]["needle_recall"] == 0.0
    assert all(figures["victim_us_p99"] > 0 for figures in document["policies"].values())
    assert document["machine"]
    assert document["plans"] == [["tiny", 10, 8, True, "seeded"]]
    assert document["refused"] == document["given_up"] == {}
    assert set(document["policies"]["fifo"]["minus_novelty"]) >= {"regret_rank", "needle_recall"}


def test_a_second_run_computes_nothing_twice(finished, monkeypatch, capsys):
    before = (finished / "rows.jsonl").read_text()
    monkeypatch.setattr(command, "run_local", lambda jobs, *_: iter(() if not jobs else pytest.fail("again")))
    assert evaluate(SAMPLE, *SMALL, "--out", finished, "--report", finished / "page.html") == 0
    assert (finished / "rows.jsonl").read_text() == before
    printed = capsys.readouterr().out
    assert "4 trials, of which 4 are there already" in printed
    assert "%" not in printed


def test_other_weights_and_other_footage_under_the_same_names_are_computed_anew(
    finished, tmp_path, monkeypatch
):
    out = shutil.copytree(finished, tmp_path / "out")
    again = []
    monkeypatch.setattr(command, "run_local", lambda jobs, *_: iter(again.extend(jobs) or ()))
    monkeypatch.setattr(command, "weights_digest", lambda model: "0123456789ab")
    assert evaluate(SAMPLE, *SMALL, "--out", out) == 2
    assert {(job.plan.weights, job.policies) for job in again} == {("0123456789ab", ("fifo", "novelty"))}
    monkeypatch.undo()
    monkeypatch.setattr(command, "run_local", lambda jobs, *_: iter(again.extend(jobs) or ()))
    again.clear()
    shutil.rmtree(out / "footage")
    bag = write_rosbag2(tmp_path / "sample", n_images=12)
    assert evaluate(bag, *SMALL, "--out", out) == 2
    assert [job.policies for job in again] == [("fifo", "novelty")] * 2


def test_another_recording_of_the_same_name_is_refused(finished, tmp_path, capsys):
    bag = write_rosbag2(tmp_path / "sample", n_images=12)
    before = (finished / "forgetting.json").read_text()
    assert evaluate(bag, *SMALL, "--out", finished) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"was made of {SAMPLE.resolve()} (" in line and line.endswith("give another --out")
    assert (finished / "forgetting.json").read_text() == before


def test_a_recording_that_is_not_there_is_refused_though_its_footage_is(finished, tmp_path, capsys):
    assert evaluate(tmp_path / "sample", *SMALL, "--out", finished) == 2
    assert "sample: no such file or folder" in capsys.readouterr().err


def test_one_of_several_image_topics_is_named(tmp_path, capsys):
    bag = write_rosbag2(tmp_path / "bag", topics=("/left", "/right"))
    words = ("--policies", "fifo", "--capacities", "3", "--seeds", "1", "--frames", "8", "--workers", "1")
    assert evaluate(bag, *words, "--out", tmp_path / "out") == 2
    assert "name one of several image topics: /left" in (said := capsys.readouterr().err)
    assert "--topic" in said
    assert evaluate(bag, *words, "--topic", "/left", "--out", tmp_path / "out") == 0


def test_a_model_that_is_none_is_refused_before_a_recording_is_read(tmp_path, capsys):
    assert evaluate(SAMPLE, *SMALL, "--model", "nothing", "--out", tmp_path) == 2
    assert "model 'nothing' is neither a preset" in capsys.readouterr().err
    assert not (tmp_path / "footage").exists()


@pytest.mark.parametrize(("module", "words"), [("ray", ("--address", "auto")), ("pyarrow", ("--parquet",))])
def test_a_missing_module_is_named_before_a_recording_is_read(tmp_path, monkeypatch, capsys, module, words):
    monkeypatch.setitem(sys.modules, module, None)
    assert evaluate(SAMPLE, *SMALL, *words, "--out", tmp_path) == 2
    assert f"the Python module {module} is missing" in capsys.readouterr().err
    assert not (tmp_path / "footage").exists()


def test_jobs_that_were_given_up_keep_their_rows_and_are_named(finished, tmp_path, monkeypatch):
    rows = [json.loads(line) for line in (finished / "rows.jsonl").read_text().splitlines()]

    def run_local(jobs, *_):
        for job in jobs:
            own = [row for row in rows if row["seed"] == job.seed]
            yield Outcome(job, own[: 2 - job.seed], "ValueError: no more" if job.seed else "")

    monkeypatch.setattr(command, "run_local", run_local)
    assert evaluate(SAMPLE, *SMALL, "--out", tmp_path) == 1
    assert (tmp_path / "rows.jsonl").read_text().count("\n") == 3
    document = json.loads((tmp_path / "forgetting.json").read_text())
    assert document["given_up"] == {"sample, seed 1, capacity 3": "ValueError: no more"}
    assert "given up: sample, seed 1, capacity 3" in (tmp_path / "report.html").read_text()


def test_the_closing_table_has_policies_in_full_in_a_narrow_terminal(finished):
    figures = json.loads((finished / "forgetting.json").read_text())["policies"]["fifo"]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(command._table({"policies": dict.fromkeys(POLICIES, figures)}))
    first_words = [line.split()[0] for line in console.export_text().splitlines()]
    assert first_words[-len(POLICIES) :] == list(POLICIES)


def test_the_same_job_gives_the_same_row_but_for_its_times(finished, tmp_path):
    words = ("--policies", "novelty", "--capacities", "3", "--seeds", "1", "--frames", "10")
    assert evaluate(SAMPLE, *words, "--workers", 1, "--out", tmp_path) == 0
    (again,) = (json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines())
    rows = [json.loads(line) for line in (finished / "rows.jsonl").read_text().splitlines()]
    (first,) = (r for r in rows if (r["policy"], r["seed"]) == ("novelty", 0))
    assert {**again, "eviction_us": 0} == {**first, "eviction_us": 0}


def test_an_interrupted_run_keeps_its_rows_and_goes_on(tmp_path):
    words = [SAMPLE, "--policies", "fifo", "--capacities", "3", "--frames", "10", "--workers", "1"]
    argv = [sys.executable, "-m", "vla_edge_ros.cli", "evaluate", *words, "--seeds", "200", "--out", tmp_path]
    run = subprocess.Popen(
        [str(word) for word in argv],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        # A shell has what it starts in the background ignore Ctrl-C, these tests perhaps.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    rows = tmp_path / "rows.jsonl"
    deadline = time.monotonic() + 60
    while not (rows.exists() and rows.read_text().count("\n") >= 3) and time.monotonic() < deadline:
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    code, said = run.wait(timeout=20), run.stderr.read().decode()
    assert code == 130, said
    kept, ended = said.splitlines()
    told = re.fullmatch(r"stopped: (\d+) trials kept in (.+); the same command goes on from there", kept)
    assert ended == "vla-edge evaluate: interrupted"
    assert told and int(told[1]) >= 3 and told[2] == str(rows), said
    kept = rows.read_text().splitlines()
    assert 3 <= len(kept) < 200
    assert evaluate(*words, "--seeds", len(kept) + 1, "--out", tmp_path) == 0
    after = rows.read_text().splitlines()
    assert after[: len(kept)] == kept and len(after) == len(kept) + 1


def test_the_page_needs_nothing_from_anywhere(finished):
    page = (finished / "page.html").read_text()
    links = set(re.findall(r'(?:src|href)="([^"#]+)|url\(([^#)]{1,20})', page))
    assert {link[0] or link[1] for link in links} <= {"data:image/jpeg;base"}
    assert "<script" not in page


def test_a_browser_shows_the_page(finished, tmp_path):
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium is installed")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}",
        "--virtual-time-budget=3000",
    ]
    shown = subprocess.run(
        [browser, *flags, "--dump-dom", (finished / "page.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert shown.returncode == 0
    # Six needles are too few for curves of recall: three plots, and a time axis for each moment.
    assert shown.stdout.count("<svg") == 3 + 2 * 3
    # Three moments of each of two policies, of a memory of three frames.
    assert shown.stdout.count('<i class="b0f') == 2 * 3 * 3


def test_success_at_a_task_is_taken_up_by_figures_and_page(finished, tmp_path):
    figures = {
        "remember_success": 0.75,
        "remember_success_ci95": [0.5, 1.0],
        "remember_success_by_capacity": {"3": {"value": 0.75, "episodes": 4, "ci95": [0.3, 0.95]}},
    }
    reference = {"value": 1.0, "episodes": 4, "ci95": [0.51, 1.0]}
    beside = {"seeds": 4, "capacities": [3], "full": reference, "at_once": reference, "chance": 0.25}
    told = tmp_path / "remember.json"
    told.write_text(json.dumps(beside | {"policies": {"novelty": figures}}))
    shutil.copy(finished / "rows.jsonl", tmp_path)
    assert evaluate(SAMPLE, *SMALL, "--out", tmp_path, "--remembered", told) == 0
    document = json.loads((tmp_path / "forgetting.json").read_text())
    assert document["policies"]["novelty"]["remember_success"] == 0.75
    assert "remember_success" not in document["policies"]["fifo"]
    shown = (tmp_path / "report.html").read_text()
    assert "Success at a task that needs memory" in shown
    assert "0.75<small>0.50 to 1.00</small>" in shown


def test_figures_of_another_kind_are_refused_before_the_work_begins(finished, tmp_path, capsys):
    words = (*SMALL, "--out", tmp_path, "--remembered", finished / "forgetting.json")
    assert evaluate(SAMPLE, *words) == 2
    assert "it has no figures of remember_study" in capsys.readouterr().err
    assert not (tmp_path / "rows.jsonl").exists()


def test_an_unknown_policy_is_refused_with_the_known_ones(capsys):
    with pytest.raises(SystemExit) as ended:
        evaluate(SAMPLE, "--policies", "fifo,lru")
    assert ended.value.code == 2
    assert "'lru' is no policy: known are fifo, sliding_window, semantic," in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--capacities", "0"), "'0': wanted a whole number from 1"),
        (("--seeds", "x"), "'x': wanted a whole number from 1"),
        (("--policies", ","), "',' is no policy"),
    ],
)
def test_odd_numbers_are_refused_by_their_option(words, complaint, capsys):
    with pytest.raises(SystemExit):
        evaluate(SAMPLE, *words)
    assert complaint in capsys.readouterr().err


def test_a_memory_that_would_forget_nothing_is_refused(tmp_path, capsys):
    assert evaluate(SAMPLE, "--capacities", 32, "--frames", 32, "--out", tmp_path) == 2
    assert "nothing would be forgotten" in capsys.readouterr().err


def test_a_recording_without_images_is_named_and_the_others_go_on(tmp_path, capsys):
    folder = tmp_path / "bags"
    folder.mkdir()
    write_rosbag2(folder / "good", n_images=12)
    write_rosbag2(folder / "silent", n_images=0)
    words = ("--policies", "fifo", "--capacities", "3", "--seeds", "1", "--frames", "8", "--workers", "1")
    assert evaluate(folder, *words, "--out", tmp_path / "out") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "silent" in printed
    document = json.loads((tmp_path / "out/forgetting.json").read_text())
    assert document["bags"] == ["good"]
    assert "silent" in document["refused"][str(folder / "silent")]
    assert "refused: silent" in (tmp_path / "out/report.html").read_text()


def test_a_recording_that_fits_into_memory_is_named_and_left_out(tmp_path, capsys):
    write_rosbag2(tmp_path / "short", n_images=4)
    assert evaluate(tmp_path / "short", "--capacities", "4", "--frames", "8", "--out", tmp_path / "out") == 2
    assert "its 4 images fit into a memory of 4: nothing is forgotten" in capsys.readouterr().err


def test_every_recording_of_a_folder_is_taken_and_a_lone_file_beside_them_too(shared):
    names = [path.name for path in recordings_in(shared / "recordings")]
    assert {"bridge_widowx", "street_zstd", "soccer_sim", "aruco_marker_ros1.bag"} <= set(names)
    assert "README.md" not in names
    assert recordings_in(shared / "recordings/street_raw") == [shared / "recordings/street_raw"]


def test_nothing_but_recordings_without_images_is_refused(tmp_path, capsys):
    write_rosbag2(tmp_path / "silent", n_images=0)
    assert evaluate(tmp_path / "silent", *SMALL, "--out", tmp_path / "out") == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_folder_without_recordings_is_refused(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert evaluate(tmp_path / "empty", *SMALL, "--out", tmp_path / "out") == 2
    assert str(Path(tmp_path / "empty")) in capsys.readouterr().err
