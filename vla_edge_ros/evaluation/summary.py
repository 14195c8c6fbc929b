"""What a run comes to, as rows for the terminal and for the report."""

from typing import NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

from vla_edge_ros.control.decision import Decision
from vla_edge_ros.control.ladder import Step
from vla_edge_ros.engine.interface import STAGES
from vla_edge_ros.errors import printable
from vla_edge_ros.figures import NOTHING, in_words

LATENCIES = (*STAGES, "pass")
"""What a run has latencies of: each stage of a pass, and the whole."""


class Section(NamedTuple):
    title: str
    rows: list[tuple[str, str]]


def summary(run: dict) -> list[Section]:
    """The rows of a run's summary; whatever the run lacks is a dash."""
    sections = [Section("frames and ticks", _tick_rows(run)), Section("decisions", _decision_rows(run))]
    latency = [
        (stage, _latency_in_words(figures)) for stage, figures in sorted_stages(run) if figures.get("n")
    ]
    sections.append(Section("latency in ms", latency or [("no pass was finished", NOTHING)]))
    evictions = [(str(policy), in_words(n)) for policy, n in (run.get("evictions") or {}).items()]
    sections.append(Section("frames evicted", evictions or [("none", NOTHING)]))
    return [
        Section(section.title, [(printable(label), printable(value)) for label, value in section.rows])
        for section in sections
    ]


def summary_table(run: dict) -> Table:
    """The summary for the terminal."""
    title = printable(
        f"{run.get('kind', 'run')} of {run.get('bag', NOTHING)}, policy {run.get('policy', NOTHING)}"
    )
    table = Table(title=Text(title), box=box.SIMPLE_HEAD, show_header=False, title_justify="left")
    table.add_column()  # labels wrap where the terminal is narrow, so that no figure is cut
    table.add_column(justify="right", no_wrap=True)
    for section in summary(run):
        table.add_row(Text(section.title, style="dim"), "")
        for number, (label, value) in enumerate(section.rows, 1):
            table.add_row(Text(label), Text(value), end_section=number == len(section.rows))
    return table


def sorted_stages(run: dict) -> list[tuple[str, dict]]:
    """The stages of a pass in the order in which they happen, then any other."""
    latency = run.get("latency_ms") or {}
    rank = {stage: index for index, stage in enumerate(LATENCIES)}
    stages = sorted(latency.items(), key=lambda item: (rank.get(item[0], len(LATENCIES)), str(item[0])))
    return [(str(stage), figures or {}) for stage, figures in stages]


def ordered_decisions(run: dict) -> list[tuple[str, int]]:
    """Every decision that occurred and its count, in the order of precedence."""
    counts = run.get("decision_counts") or {}
    known = [str(decision) for decision in Decision]
    names = [name for name in known if counts.get(name)]
    names += sorted(str(name) for name in counts if str(name) not in known and counts[name])
    return [(name, counts[name]) for name in names]


def _tick_rows(run: dict) -> list[tuple[str, str]]:
    ratio = run.get("fresh_ratio")
    whole = ", between episodes too" if run.get("episodes") else ""
    rows = [
        ("frames received", in_words(run.get("frames"))),
        ("frames overtaken by newer ones", in_words(run.get("frames_skipped"))),
        *([("frames refused", in_words(run["frames_refused"]))] if "frames_refused" in run else []),
        ("ticks", in_words(run.get("ticks"))),
        ("ticks skipped", in_words(run.get("skipped_ticks"))),
        ("fresh actions", in_words(run.get("fresh"))),
        (f"share of fresh actions{whole}", in_words(None if ratio is None else 100.0 * ratio, 1, "%")),
        *_promise_rows(run),
        *_ladder_rows(run),
        ("passes stopped at their deadline", in_words(run.get("aborted_passes"))),
        ("late publishes", in_words(run.get("late_publishes"))),
    ]
    if run.get("bare_loop_late") is not None:
        rows.append(("late in a bare loop", in_words(run["bare_loop_late"])))
    return rows


def _promise_rows(run: dict) -> list[tuple[str, str]]:
    if run.get("misses") is None:
        return []
    low, high = (100 * end for end in run.get("miss_rate_wilson_95") or (0.0, 1.0))
    return [
        ("misses", in_words(run["misses"])),
        ("misses per tick, 95 % (Wilson)", f"{in_words(low, 3)} to {in_words(high, 3, '%')}"),
        ("longest refusal", in_words(run.get("longest_refusal"), 0, "ticks")),
        ("longest hold", in_words(run.get("longest_hold"), 0, "ticks")),
    ]


def _ladder_rows(run: dict) -> list[tuple[str, str]]:
    steps = run.get("steps") or {}
    rows = [
        ("passes of fewer action tokens", Step.FEWER_TOKENS),
        ("passes over fewer frames", Step.FEWER_FRAMES),
        ("actions used again", Step.REUSE),
    ]
    return [(label, in_words(steps[step.value])) for label, step in rows if step.value in steps]


def _decision_rows(run: dict) -> list[tuple[str, str]]:
    total = sum(count for _, count in ordered_decisions(run))
    rows = [
        (name, f"{in_words(count)}  ({in_words(100.0 * count / total, 1, '%')})")
        for name, count in ordered_decisions(run)
    ]
    return rows or [("no tick was decided", NOTHING)]


def _latency_in_words(figures: dict) -> str:
    names = (("p50", "p50"), ("p99", "p99"), ("p999", "p99.9"), ("max", "max"))
    return "  ".join(f"{label} {in_words(figures.get(key), 2)}" for key, label in names)
