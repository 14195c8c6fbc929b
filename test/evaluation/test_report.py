"""A run's page is complete, self-contained and safe, and is written for any run however broken."""

import base64
import io
import math
import re
import xml.etree.ElementTree as ElementTree

import cv2
import numpy as np
import pytest
from rich.console import Console

from vla_edge_ros.evaluation.filmstrip import FilmFrame, film_strip
from vla_edge_ros.evaluation.plots import decision_plot, histogram_plot, latency_plot, memory_plot
from vla_edge_ros.evaluation.report import report, write_report
from vla_edge_ros.evaluation.report_style import STYLE
from vla_edge_ros.evaluation.summary import summary_table
from vla_edge_ros.figures import percentiles

STAGE_MS = {"copy_ms": 0.5, "vision_ms": 1.5, "prefill_ms": 6.0, "decode_ms": 12.0}
PERIOD_NS = 33_333_333


def record(tick: int, **changes: object) -> dict:
    made = {
        "tick": tick,
        "scheduled_ns": 10**12 + tick * PERIOD_NS,
        "decision": "FRESH",
        "pass_ms": 20.0,
        **STAGE_MS,
        "is_late": False,
        "retained_frames": min(tick + 1, 5),
        "evicted": [tick] if tick >= 5 else [],
    }
    return made | changes


def a_run(**changes: object) -> dict:
    records = [record(tick) for tick in range(58)]
    records.append(record(58, decision="HOLD_LATE", pass_ms=35.0))
    records.append(record(59, decision="HOLD_NO_FRAME", pass_ms=None))
    return {
        "kind": "demo",
        "bag": "somewhere/sample",
        "topic": "/camera",
        "policy": "fifo",
        "engine": {"backend": "numpy", "model": "tiny"},
        "machine": {"cpu": "a cpu"},
        "parameters": {"control.period_ms": 33.333, "control.deadline_ms": 33.0, "control.margin_ms": 2.0},
        "ticks": 60,
        "frames": 120,
        "fresh": 58,
        "fresh_ratio": 58 / 60,
        "late_publishes": 1,
        "bare_loop_late": 0,
        "skipped_ticks": 3,
        "decision_counts": {"HOLD_NO_FRAME": 1, "FRESH": 58, "HOLD_LATE": 1},
        "latency_ms": {"pass": percentiles([20.0] * 58 + [35.0]), "copy": percentiles([0.5] * 59)},
        "evictions": {"fifo": 55, "semantic": 54},
        "records": records,
    } | changes


def frames(*times_s: float) -> list[FilmFrame]:
    return [FilmFrame(round(60 * t), t, np.full((64, 128, 3), 90, np.uint8)) for t in times_s]


def shown(run: dict, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(summary_table(run))
    return console.file.getvalue()


def svgs(run: dict) -> dict[str, str]:
    plots = (latency_plot, decision_plot, memory_plot, histogram_plot)
    return {plot.__name__: plot(run) for plot in plots}


@pytest.fixture(scope="module")
def page() -> str:
    return report(a_run(), {"fifo": frames(8.0), "semantic": frames(2.0)})


def test_the_terminal_shows_every_figure_of_the_run():
    text = shown(a_run())
    for row in (
        r"ticks +60",
        r"ticks skipped +3",
        r"share of fresh actions +96\.7 %",
        r"late publishes +1",
        r"late in a bare loop +0",
        r"FRESH +58",
        r"HOLD_LATE +1",
        r"pass +p50 20\.00 +p99 35\.00 +p99\.9 35\.00 +max 35\.00",
        r"fifo +55",
        r"semantic +54",
    ):
        assert re.search(row, text), row
    # in the order of precedence, whatever the order of the counts
    assert text.index("FRESH ") < text.index("HOLD_NO_FRAME") < text.index("HOLD_LATE")


def test_a_narrow_terminal_cuts_no_figure():
    run = a_run(latency_ms={"pass": percentiles([110.25] * 59)}, aborted_passes=7)
    text = shown(run, width=76)
    assert re.search(r"pass +p50 110\.25 +p99 110\.25 +p99\.9 110\.25 +max 110\.25", text)
    assert "…" not in text


def test_without_a_bare_loop_no_row_claims_one():
    run = a_run()
    del run["bare_loop_late"]
    assert "bare loop" not in shown(run)
    assert "bare loop" not in report(run, {})


def test_names_of_a_recording_are_text_in_the_terminal_and_on_the_page():
    run = a_run(bag="bags/<script>alert(1)</script>[red]\x1b[31m", topic="/<img src=x onerror=alert(1)>")
    run["decision_counts"] = {"<em>": 1}
    page = report(run, {"<i>fifo</i>": frames(0.1)})
    assert "<script>" not in page and "<img src=x" not in page and "<em>" not in page and "<i>" not in page
    assert "&lt;script&gt;" in page
    assert "[red]" in shown(run)
    assert "\x1b" not in shown(run)


@pytest.mark.parametrize(("is_equal", "words"), [(True, "the same again"), (False, "not the same")])
def test_a_demos_page_says_whether_its_replay_was_equal(is_equal, words):
    assert f"replayed at its own times: {words}" in report(a_run(replay_is_equal=is_equal), {})


def test_a_run_that_was_not_replayed_claims_nothing(page):
    assert "replayed at its own times" not in page


def test_an_empty_parameter_can_be_seen_on_the_page():
    assert "actions.policy_file &quot;&quot;, x 1" in report(
        a_run(parameters={"actions.policy_file": "", "x": 1}), {}
    )


def test_refused_frames_are_counted_where_the_run_knows_of_them():
    assert re.search(r"frames refused +2", shown(a_run(frames_refused=2)))
    assert "frames refused" not in shown(a_run())


def test_labels_of_close_percentiles_do_not_lie_on_one_another():
    svg = histogram_plot(a_run(records=[record(tick, copy_ms=0.5 + 1e-4 * tick) for tick in range(100)]))
    heights = {label: float(y) for y, label in re.findall(r' y="([\d.]+)"[^>]*> (p\d+) </text>', svg)}
    assert abs(heights["p50"] - heights["p99"]) >= 7.5


def test_the_page_loads_nothing_from_anywhere(page):
    targets = re.findall(r'(?:src|href)="([^"]*)"', page) + re.findall(r"url\(([^)]*)\)", page)
    assert targets
    assert all(target.startswith(("data:image/", "#")) for target in targets)
    assert "<script" not in page and "@import" not in page and "<link" not in page


def test_ids_are_unique_and_every_reference_has_its_target(page):
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    references = re.findall(r'href="#([^"]*)"', page) + re.findall(r"url\(#([^)]*)\)", page)
    assert set(references) <= set(ids)


def test_plots_are_well_formed_and_take_their_colours_from_the_page():
    defined = set(re.findall(r"(--[\w-]+):", STYLE))
    light, dark = STYLE.split("@media (prefers-color-scheme: dark)")
    for svg in svgs(a_run(records=[record(0, is_late=True), record(1, decision="SAFE_STOP")])).values():
        ElementTree.fromstring(svg)
        used = set(re.findall(r"var\((--[\w-]+)\)", svg))
        assert used and used <= defined
        assert "#0000" not in svg
    colours = set(re.findall(r"(--[\w-]+): #", light))
    assert colours == set(re.findall(r"(--[\w-]+): #", dark))


def bar_heights(svg: str, stage: str) -> list[float]:
    """Lengths in points of the vertical bars of one stage."""
    paths = re.findall(rf'<path d="([^"]*)" clip-path[^>]*stroke: var\(--{stage}\)', svg)
    numbers = [float(y) for y in re.findall(r"[ML] [\d.]+ ([\d.]+)", paths[0])]
    return [low - high for low, high in zip(numbers[::2], numbers[1::2], strict=True)]


def test_bars_of_the_stages_are_as_high_as_their_times():
    svg = latency_plot(a_run(records=[record(tick) for tick in range(4)]))
    prefill, decode = bar_heights(svg, "prefill"), bar_heights(svg, "decode")
    assert len(prefill) == len(decode) == 4
    assert decode[0] / prefill[0] == pytest.approx(12.0 / 6.0, rel=1e-3)


def test_neighbouring_ticks_of_one_decision_are_one_bar():
    decisions = ["FRESH"] * 10 + ["HOLD_BUSY"] * 2 + ["FRESH"] * 5
    run = a_run(
        records=[record(tick, decision=decision) for tick, decision in enumerate(decisions)],
        decision_counts={"FRESH": 15, "HOLD_BUSY": 2},
    )
    svg = decision_plot(run)
    (fresh,) = re.findall(r'<path d="([^"]*)"[^>]*stroke: var\(--FRESH\)', svg)
    (busy,) = re.findall(r'<path d="([^"]*)"[^>]*stroke: var\(--HOLD_BUSY\)', svg)
    assert fresh.count("M") == 2 and busy.count("M") == 1


def test_late_publishes_have_a_lane_of_their_own():
    on_time, late = a_run(records=[record(0)]), a_run(records=[record(0), record(1, is_late=True)])
    assert "var(--late)" not in decision_plot(on_time)
    assert "var(--late)" in decision_plot(late)


def test_a_long_run_shows_its_slowest_passes_and_stays_small():
    times_ms = [20.0] * 9000
    times_ms[4321] = 29.0
    records = [record(tick, pass_ms=ms, decode_ms=ms - 8.0) for tick, ms in enumerate(times_ms)]
    svg = latency_plot(a_run(records=records))
    heights = bar_heights(svg, "decode")
    assert len(heights) <= 600
    assert max(heights) / min(heights) == pytest.approx(21.0 / 12.0, rel=1e-2)
    assert sum(len(plot) for plot in svgs(a_run(records=records)).values()) < 600_000


NOTHING_FINISHED = [
    record(tick, decision="HOLD_NO_FRAME", pass_ms=None, retained_frames=None, **dict.fromkeys(STAGE_MS))
    for tick in range(3)
]


@pytest.mark.parametrize(
    "run",
    [
        {},
        {"records": [], "ticks": 0, "fresh_ratio": None, "latency_ms": {}, "decision_counts": {}},
        {"records": [], "fresh_ratio": math.nan, "latency_ms": {"pass": percentiles([])}},
        a_run(records=[], decision_counts={"FRESH": 5}),
        a_run(records=NOTHING_FINISHED, decision_counts={"HOLD_NO_FRAME": 3}, latency_ms={}),
        a_run(records=[record(0)]),
        a_run(records=[record(0, pass_ms=math.nan, copy_ms=math.nan)], fresh_ratio=math.nan),
        a_run(parameters={}, records=[record(0), record(1)]),
        a_run(records=[{"tick": 0, "scheduled_ns": 5}], decision_counts={"SOMETHING_NEW": 1}),
        a_run(records=[record(0), record(1, pass_ms=1e9)]),
        a_run(
            latency_ms={"pass": None, "odd": {"n": 1, "p50": None}}, engine=None, machine=None, evictions=None
        ),
    ],
    ids=lambda run: f"{len(run.get('records', []))} records",
)
def test_a_degenerate_run_has_a_page_and_a_table(run, recwarn):
    page = report(run, {})
    assert page.count("<svg") == 5
    assert "nan" not in re.sub(r"<style>.*</style>", "", page).lower().replace("nanoseconds", "")
    assert shown(run)
    assert not [warning for warning in recwarn if issubclass(warning.category, RuntimeWarning)]


def test_runs_without_a_pass_say_so():
    run = a_run(records=NOTHING_FINISHED, latency_ms={})
    assert "no pass was finished" in latency_plot(run)
    assert "no frame entered the memory" in memory_plot(run)
    assert "no tick was decided" in decision_plot({})
    assert "no pass was finished" in shown(run)


def test_the_strip_shows_each_frame_with_its_time_and_each_gap_with_its_length():
    strip = film_strip("semantic", frames(0.1, 0.13, 0.17, 2.0, 2.03, 5.5), until_s=6.0)
    assert re.findall(r"<li><img [^>]*><span>([^<]*)</span>", strip) == [
        "0.10 s",
        "0.13 s",
        "0.17 s",
        "2.00 s",
        "2.03 s",
        "5.50 s",
    ]
    assert re.findall(r'class="gap"><span>([^<]*)</span>', strip) == ["1.8 s", "3.5 s"]
    marks = [float(x) for x in re.findall(r"M([\d.]+) 4V22", strip)]
    assert marks == pytest.approx([1000 * t / 6.0 for t in (0.1, 0.13, 0.17, 2.0, 2.03, 5.5)], abs=0.06)
    assert "remembers 6 frames from 0.10 s to 5.50 s" in strip


def test_frames_of_a_strip_are_put_in_the_order_of_time():
    strip = film_strip("fifo", frames(3.0, 1.0, 2.0), until_s=3.0)
    assert re.findall(r'alt="frame (\d+)', strip) == ["60", "120", "180"]


def test_thumbnails_keep_their_colours():
    rgb = np.zeros((64, 128, 3), np.uint8)
    rgb[:] = (220, 60, 20)
    strip = film_strip("fifo", [FilmFrame(1, 0.0, rgb)], until_s=0.0)
    (data,) = re.findall(r"base64,([^\"]*)", strip)
    pixels = cv2.imdecode(np.frombuffer(base64.b64decode(data), np.uint8), cv2.IMREAD_COLOR)
    assert pixels.shape[1] / pixels.shape[0] == 2.0
    assert np.abs(pixels[10, 10].astype(int) - (20, 60, 220)).max() < 8


def test_an_empty_memory_is_shown_as_empty():
    assert "remembers no frame" in film_strip("fifo", [], until_s=1.0)
    assert "no frame was kept" in report(a_run(), {})


def test_all_strips_share_one_time_axis(page):
    assert [float(x) for x in re.findall(r"M([\d.]+) 4V22", page)] == [1000.0, 250.0]


EPISODE = {
    "task": "reach",
    "seed": 3,
    "has_succeeded": True,
    "seconds": 2.6,
    "distance_m": 0.031,
    "instructions": ["go to the <b>red</b> cube", "go to the blue can"],
    "ticks": 80,
    "fresh": 76,
    "others": {"HOLD_BUSY": 4},
    "late": 1,
    "confidence": 0.876,
}


def test_a_run_of_episodes_tells_how_each_went_and_shows_the_picture():
    lost = EPISODE | {"has_succeeded": False}
    page = report(a_run(episodes=[EPISODE, lost | {"distance_m": None}, lost]), {}, b"picture")
    assert "demo with the simulated arm" in page
    assert "<b>1 of 2</b><span>episodes succeeded" in page, "an episode without a goal is not judged"
    assert "data:image/webp;base64,cGljdHVyZQ==" in page
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", page.split("What the arm did")[1].split("</table>")[0])
    assert cells[:9] == [
        "reach, seed 3",
        "“go to the &lt;b&gt;red&lt;/b&gt; cube”, then “go to the blue can”",
        *("succeeded", "2.6 s", "3.1 cm", "95.0 %", "4 HOLD_BUSY", "1", "0.88"),
    ]
    assert cells[11] == "told of nothing on the table"


def test_the_share_of_fresh_ticks_in_an_episode_is_told_from_that_of_the_whole_run():
    page = report(a_run(episodes=[EPISODE]), {})
    assert '<th scope="col">fresh in it</th>' in page
    assert "<b>96.7 %</b><span>of 60 ticks fresh, between episodes too</span>" in page
    assert '<th scope="row">share of fresh actions, between episodes too</th><td>96.7 %</td>' in page


def test_a_run_without_episodes_has_no_part_on_them():
    page = report(a_run(), {}, b"picture")
    assert "What the arm did" not in page and "between episodes" not in page


def test_the_page_is_written_as_utf_8(tmp_path):
    write_report(tmp_path / "report.html", a_run(bag="日本/καλό"), {"fifo": frames(1.0)})
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and "καλό" in page
    assert '<meta charset="utf-8">' in page
