"""A run as one self-contained HTML page: what was decided when, how long it took, and what is remembered."""

import html
from pathlib import Path

from vla_edge_ros import output
from vla_edge_ros.evaluation.calibration import calibration_plot
from vla_edge_ros.evaluation.episodes import episode_parts
from vla_edge_ros.evaluation.filmstrip import FilmFrame, film_strip
from vla_edge_ros.evaluation.musts import late_allowed
from vla_edge_ros.evaluation.plots import decision_plot, histogram_plot, latency_plot, memory_plot, times_s
from vla_edge_ros.evaluation.report_style import captioned, whole_page
from vla_edge_ros.evaluation.summary import Section, sorted_stages, summary
from vla_edge_ros.figures import NOTHING, in_words

_REPLAYED = {True: "the same again", False: "not the same"}
_BOX_NOTE = {True: "this run", False: "replayed over the same recording"}


def write_report(
    path: Path, run: dict, film_strips: dict[str, list[FilmFrame]], picture: bytes | None = None
) -> None:
    """Write the page, which loads nothing from anywhere. Raises UserError where it cannot be written.

    film_strips: by eviction policy, the frames that are remembered at the end of the run.
    picture: of the run's episodes, WebP.
    """
    output.write_text(path, report(run, film_strips, picture))


def report(run: dict, film_strips: dict[str, list[FilmFrame]], picture: bytes | None = None) -> str:
    """The page as text. Whatever the run lacks is shown as a dash."""
    kind, policy = str(run.get("kind") or "run"), str(run.get("policy") or NOTHING)
    title = f"{kind} of {Path(str(run.get('bag') or NOTHING)).name}"
    if run.get("episodes"):
        title = f"{kind} with the simulated arm"
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="facts">{_facts(run)}</p>',
        f'<div class="cards">{"".join(_cards(run))}</div>',
        *episode_parts(run, picture),
        "<h2>Latency against the deadline</h2>",
        captioned(
            latency_plot(run),
            "A bar is a pass, from one frame to one action, stacked by stage; in long runs, the slowest of a"
            " stretch.",
        ),
        "<h2>Decisions</h2>",
        captioned(
            decision_plot(run),
            "Every tick ends with exactly one decision, one of those in docs/decisions.md.",
        ),
        "<h2>What the robot still remembers</h2>",
        '<p class="quiet">The frames left in memory at the end, by eviction policy. Marks on the axis are'
        " remembered frames; what lies between them was evicted, or not retained between the strides.</p>",
        *_strips(run, film_strips, policy),
        "<h2>Memory</h2>",
        captioned(memory_plot(run), f"Frames held and frames evicted, policy {policy}."),
        "<h2>Latency by stage</h2>",
        captioned(histogram_plot(run), "How often a stage took how long."),
        "<h2>Predicted and actual time</h2>",
        captioned(
            calibration_plot(run),
            "Left: every pass, late and stopped ones included, against what admission predicted of it. Right:"
            " the share of passes that took at most so much longer than predicted.",
        ),
        "<h2>Figures</h2>",
        f'<div class="tables">{"".join(_tables(run))}</div>',
        f"<footer>{_footer(run)}</footer>",
    ]
    return whole_page(title, parts)


def _facts(run: dict) -> str:
    facts = [("topic", run.get("topic")), ("eviction policy", run.get("policy"))]
    engine = run.get("engine") or {}
    facts += [("engine", engine.get("backend")), ("model", engine.get("model"))]
    machine = run.get("machine") or {}
    facts += [("on", machine.get("processor"))]
    facts += [("replayed at its own times:", _REPLAYED.get(run.get("replay_is_equal")))]
    return " · ".join(f"{name} {html.escape(str(value))}" for name, value in facts if value)


def _cards(run: dict) -> list[str]:
    parameters = run.get("parameters") or {}
    ratio, late = run.get("fresh_ratio"), run.get("late_publishes")
    bare = run.get("bare_loop_late")
    pass_p99 = ((run.get("latency_ms") or {}).get("pass") or {}).get("p99")
    deadline_ms, margin_ms = parameters.get("control.deadline_ms"), parameters.get("control.margin_ms") or 0.0
    cutoff_ms = None if deadline_ms is None else deadline_ms - margin_ms
    beside = "" if bare is None else f", {in_words(bare)} in a bare loop beside it"
    evicted = (run.get("evictions") or {}).get(run.get("policy"))
    cutoff = "" if cutoff_ms is None else f", cut-off {in_words(cutoff_ms, 1, 'ms')}"
    allowed = late_allowed(run)
    whole = ", between episodes too" if run.get("episodes") else ""
    is_punctual = None if late is None or allowed is None else late <= allowed
    is_on_time = None if pass_p99 is None or cutoff_ms is None else pass_p99 <= cutoff_ms
    return [
        *_episode_cards(run),
        _card(
            in_words(None if ratio is None else 100.0 * ratio, 1, "%"),
            f"of {in_words(run.get('ticks'))} ticks fresh{whole}",
            None if ratio is None else ratio >= 0.95,
        ),
        _card(in_words(late), f"late publishes{beside}", is_punctual),
        _card(in_words(pass_p99, 1, "ms"), f"p99 of a pass{cutoff}", is_on_time),
        _card(in_words(evicted), "frames evicted by this policy", None),
    ]


def _episode_cards(run: dict) -> list[str]:
    judged = [episode for episode in run.get("episodes") or [] if episode.get("distance_m") is not None]
    if not judged:
        return []
    succeeded = sum(bool(episode.get("has_succeeded")) for episode in judged)
    noun = "episode" if len(judged) == 1 else "episodes"
    return [_card(f"{succeeded} of {len(judged)}", f"{noun} succeeded", succeeded == len(judged))]


def _card(figure: str, label: str, is_good: bool | None) -> str:
    mood = {True: " good", False: " bad", None: ""}[is_good]
    return f'<div class="card{mood}"><b>{html.escape(figure)}</b><span>{html.escape(label)}</span></div>'


def _strips(run: dict, film_strips: dict[str, list[FilmFrame]], policy: str) -> list[str]:
    if not film_strips:
        return ['<p class="quiet">no frame was kept for this page</p>']
    seconds = times_s(run)
    ends = [frame.time_s for frames in film_strips.values() for frame in frames]
    until_s = max([*ends, float(seconds[-1]) if len(seconds) else 0.0, 0.0])
    return [
        film_strip(name, frames, until_s, _BOX_NOTE[name == policy]) for name, frames in film_strips.items()
    ]


def _tables(run: dict) -> list[str]:
    tables = [_table(section) for section in summary(run) if section.title != "latency in ms"]
    names = (
        ("n", "n", 0),
        ("p50", "p50", 2),
        ("p99", "p99", 2),
        ("p999", "p99.9", 2),
        ("max", "max", 2),
    )
    head = "".join(f'<th scope="col">{label}</th>' for _, label, _ in names)
    rows = "".join(
        f'<tr><th scope="row">{html.escape(stage)}</th>'
        + "".join(f"<td>{in_words(figures.get(key), digits)}</td>" for key, _, digits in names)
        + "</tr>"
        for stage, figures in sorted_stages(run)
    )
    rows = rows or '<tr><th scope="row">no pass was finished</th></tr>'
    latency = (
        f'<div class="table wide"><table class="latency"><caption>latency in ms</caption>'
        f"<tr><th></th>{head}</tr>{rows}</table></div>"
    )
    return [latency, *tables]


def _table(section: Section) -> str:
    rows = "".join(
        f'<tr><th scope="row">{html.escape(label)}</th><td>{html.escape(value)}</td></tr>'
        for label, value in section.rows
    )
    return f'<div class="table"><table><caption>{html.escape(section.title)}</caption>{rows}</table></div>'


def _footer(run: dict) -> str:
    lines = []
    for name in ("bag", "engine", "machine", "parameters"):
        value = run.get(name)
        if isinstance(value, dict):
            value = ", ".join(f"{key} {_or_quotes(item)}" for key, item in value.items())
        if value:
            lines.append(f"{name}: {html.escape(str(value))}")
    return "<br>".join(lines)


def _or_quotes(value: object) -> object:
    """The value; what is empty would not be seen."""
    return '""' if value == "" else value
