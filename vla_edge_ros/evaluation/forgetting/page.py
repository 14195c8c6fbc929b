"""An evaluation as one self-contained HTML page."""

import html
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from vla_edge_ros.evaluation.filmstrip import data_url
from vla_edge_ros.evaluation.forgetting.footage import Footage, with_needles
from vla_edge_ros.evaluation.forgetting.results import summary_of
from vla_edge_ros.evaluation.forgetting.success_table import success_table, within
from vla_edge_ros.evaluation.plot_style import COLOUR, RC_PARAMS, to_svg
from vla_edge_ros.evaluation.report_style import captioned, whole_page
from vla_edge_ros.figures import in_words

_COLOURS = (
    "copy",
    "muted",
    "HOLD_REFUSED",
    "grid",
    "prefill",
    "HOLD_STALE_FRAME",
    "FRESH_LATE",
    "late",
    "HOLD_BUSY",
    "FAULT",
    "FRESH",
)
_MOMENTS = (1 / 3, 2 / 3, 1.0)
_STYLE = """
.film { display: flex; flex-wrap: wrap; gap: 3px; margin: 2px 0 10px; }
.film i { width: 72px; height: 36px; border-radius: 3px; background-size: cover; }
.film i.needle { outline: 3px solid var(--late); outline-offset: -3px; }
.film span { flex-basis: 100%; font-size: 12px; color: var(--muted); }
.figures td, .figures th { padding: 5px 0 5px 14px; text-align: right; }
.figures th:first-child { text-align: left; padding-left: 0; }
"""


def page(title: str, facts: str, rows: Sequence[dict], document: dict, footage: dict[str, Footage]) -> str:
    """The page as text. footage: by bag, what the film strips are cut from."""
    policies = list(document["policies"])
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="facts">{html.escape(facts)}</p>',
        "<h2>Figures by policy</h2>",
        _table(document),
        f'<p class="quiet">{html.escape(_reading(document))}</p>',
        *(success_table(document) if "remember" in document else []),
        "<h2>Regret against the oracle</h2>",
        captioned(
            _regret_plot(rows, policies),
            "Share of the other frames whose absence would have changed the next actions less than that of "
            "the frame that was forgotten: 0 is the oracle, 0.5 is chance. Lines: 95 % intervals over seeds.",
        ),
        "<h2>Recall of a frame that was shown once</h2>",
        captioned(
            _recall_plot(rows, policies),
            "Share of the needles still in memory so many frames after they were shown.",
        ),
        "<h2>Quality against capacity</h2>",
        captioned(
            _capacity_plot(rows, policies),
            "How far the actions are from those of a memory that forgets nothing, by frames of memory: lower "
            "is nearer.",
        ),
        "<h2>What was forgotten when</h2>",
        captioned(_timeline_plot(rows, policies), _timeline_caption(rows)),
        "<h2>What each policy remembers over time</h2>",
        '<p class="quiet">After a third, two thirds and all of the frames; needles are framed.</p>',
        *_films(rows, policies, footage),
    ]
    return whole_page(title, parts, _STYLE)


def _table(document: dict) -> str:
    columns = (
        ("regret, rank", "regret_rank", 3),
        ("regret, nats", "regret", 3),
        ("KL to all frames, nats", "kl", 3),
        ("action L1", "action_l1", 3),
        ("needle recall", "needle_recall", 2),
        ("coverage", "coverage", 2),
    )
    head = "".join(f'<th scope="col">{label}</th>' for label, _, _ in columns)
    lines = []
    for name, figures in document["policies"].items():
        cells = []
        for _, key, digits in columns:
            mean = figures.get(f"{key}_mean", figures.get(key))
            cells.append(f"<td>{within(mean, figures[f'{key}_ci95'], digits)}</td>")
        cost = f"<td>{in_words(figures['eviction_us_p99'], 0)}</td>"
        lines.append(f'<tr><th scope="row">{html.escape(name)}</th>{"".join(cells)}{cost}</tr>')
    return (
        f'<div class="table wide"><table class="figures"><tr><th></th>{head}'
        '<th scope="col">eviction us, p99</th></tr>'
        f"{''.join(lines)}</table></div>"
    )


def _reading(document: dict) -> str:
    winner = document["least_regret"]
    if winner is None:
        return "No policy evicted anything: nothing can be compared."
    told = [
        name
        for name, figures in document["least_regret_minus_others"].items()
        if figures["regret_rank"]["is_significant"]
    ]
    others = ", ".join(told) if told else "none of the others"
    return (
        f"Least regret by rank: {winner}. Over {document['seeds']} seeds its distance can be told from "
        f"chance against {others}. Where weights are seeded, what a model attends to means nothing, and "
        "policies that go by attention have little to go by."
    )


def _colour(policies: list[str], name: str) -> str:
    return COLOUR[_COLOURS[policies.index(name) % len(_COLOURS)]]


def _regret_plot(rows: Sequence[dict], policies: list[str]) -> str:
    capacities = sorted({row["capacity"] for row in rows})
    with matplotlib.rc_context(RC_PARAMS):
        figure = Figure(figsize=(10, 3.6), layout="constrained")
        axes = figure.subplots()
        width = 0.8 / len(policies)
        for place, name in enumerate(policies):
            for group, capacity in enumerate(capacities):
                own = [row for row in rows if row["policy"] == name and row["capacity"] == capacity]
                figures = summary_of(own)
                mean, interval = figures["regret_rank_mean"], figures["regret_rank_ci95"]
                if mean is None:
                    continue
                x = group + (place - len(policies) / 2 + 0.5) * width
                axes.bar(x, mean, 0.9 * width, color=_colour(policies, name), label=None if group else name)
                if interval:
                    axes.plot([x, x], interval, color=COLOUR["ink"], linewidth=1)
        axes.axhline(0.5, color=COLOUR["muted"], linewidth=0.8, linestyle="--")
        axes.set_xticks(range(len(capacities)), [f"{capacity} frames" for capacity in capacities])
        axes.set_ylabel("regret, rank")
        _legend(figure, axes)
        return to_svg(figure, "regret")


def _recall_plot(rows: Sequence[dict], policies: list[str]) -> str:
    capacities = sorted({row["capacity"] for row in rows})
    with matplotlib.rc_context(RC_PARAMS):
        figure = Figure(figsize=(10, 3.2), layout="constrained")
        panels = figure.subplots(1, len(capacities), sharey=True, squeeze=False)[0]
        for axes, capacity in zip(panels, capacities, strict=True):
            for name in policies:
                own = [row for row in rows if row["policy"] == name and row["capacity"] == capacity]
                pairs = [
                    (life, row["frames"] - needle)
                    for row in own
                    for needle, life in zip(row["needles"], row["needle_life"], strict=True)
                ]
                if not pairs:
                    continue
                ages = np.arange(0, max(seen for _, seen in pairs))
                # Only needles that were shown long enough ago can say whether they last so long.
                shares = [np.mean([life > age for life, seen in pairs if seen > age]) for age in ages]
                axes.plot(ages, shares, color=_colour(policies, name), linewidth=1.6, label=name)
            axes.axvline(capacity, color=COLOUR["muted"], linewidth=0.8, linestyle="--")
            axes.set_title(f"{capacity} frames", fontsize=9, color=COLOUR["muted"])
            axes.set_xlabel("frames since it was shown")
        panels[0].set_ylabel("still in memory")
        panels[0].set_ylim(0, 1.05)
        _legend(figure, panels[0])
        return to_svg(figure, "recall")


def _capacity_plot(rows: Sequence[dict], policies: list[str]) -> str:
    capacities = sorted({row["capacity"] for row in rows})
    panels = (("kl_nats", "KL to all frames, nats"), ("action_l1", "action L1"), ("needle_recall", "recall"))
    with matplotlib.rc_context(RC_PARAMS):
        figure = Figure(figsize=(10, 3.2), layout="constrained")
        for axes, (key, label) in zip(figure.subplots(1, len(panels)), panels, strict=True):
            for name in policies:
                points = []
                for capacity in capacities:
                    own = [row for row in rows if row["policy"] == name and row["capacity"] == capacity]
                    values = [row[key] for row in own if row[key] is not None]
                    points.append(float(np.mean(values)) if values else np.nan)
                axes.plot(capacities, points, "o-", color=_colour(policies, name), markersize=4, label=name)
            axes.set_xticks(capacities)
            axes.set_xlabel("frames of memory")
            axes.set_ylabel(label)
        _legend(figure, figure.axes[0])
        return to_svg(figure, "capacity")


def _shown(rows: Sequence[dict]) -> list[dict]:
    """The rows of the first bag, seed and middle capacity: one picture of each policy."""
    capacities = sorted({row["capacity"] for row in rows})
    first = min(rows, key=lambda row: (row["bag"], row["seed"]))
    wanted = (first["bag"], first["seed"], capacities[len(capacities) // 2])
    return [row for row in rows if (row["bag"], row["seed"], row["capacity"]) == wanted]


def _timeline_caption(rows: Sequence[dict]) -> str:
    row = _shown(rows)[0]
    return (
        f"{row['bag']}, {row['capacity']} frames of memory, seed {row['seed']}: a mark is an eviction, at its"
        " time from left to right, of a frame from bottom (the first) to top. Needles are lines."
    )


def _timeline_plot(rows: Sequence[dict], policies: list[str]) -> str:
    shown = {row["policy"]: row for row in _shown(rows)}
    names = [name for name in policies if name in shown]
    columns = min(4, len(names))
    lines = -(-len(names) // columns)
    with matplotlib.rc_context(RC_PARAMS):
        figure = Figure(figsize=(10, 2.2 * lines), layout="constrained")
        panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).ravel()
        for axes, name in zip(panels, names, strict=False):
            row = shown[name]
            for needle in row["needles"]:
                axes.axhline(needle, color=COLOUR["late"], linewidth=0.8)
            at = [line[0] for line in row["evicted"]]
            frames = [line[1] for line in row["evicted"]]
            axes.plot(at, frames, "s", markersize=2.2, color=COLOUR["accent"])
            axes.set_title(name, fontsize=9, color=COLOUR["muted"])
        for axes in panels[len(names) :]:
            axes.set_axis_off()
        return to_svg(figure, "timeline")


def _legend(figure: Figure, axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False, fontsize=8)


def _films(rows: Sequence[dict], policies: list[str], footage: dict[str, Footage]) -> list[str]:
    """One strip a policy and bag, of the first seed and the middle capacity."""
    capacities = sorted({row["capacity"] for row in rows})
    capacity, seed = capacities[len(capacities) // 2], min(row["seed"] for row in rows)
    parts = []
    for number, bag in enumerate(sorted(footage)):
        own = {
            row["policy"]: row
            for row in rows
            if (row["bag"], row["seed"], row["capacity"]) == (bag, seed, capacity)
        }
        if not own:
            continue
        first = next(iter(own.values()))
        cut = footage[bag].every(first["plan_frames"], seed)
        frames, _ = with_needles(cut.frames, max(0, len(cut.frames) - capacity - 1), seed)
        styles = "".join(
            f".b{number}f{place}{{background-image:url({data_url(frame)})}}"
            for place, frame in enumerate(frames)
        )
        parts.append(f"<style>{styles}</style>")
        for name in policies:
            if name in own:
                strips = "".join(_strip(number, own[name], round(len(frames) * share)) for share in _MOMENTS)
                head = f"<h3>{html.escape(name)}<span class='note'>{html.escape(bag)}</span></h3>"
                parts.append(f'<section class="strip">{head}{strips}</section>')
    return parts


def _strip(number: int, row: dict, n_seen: int) -> str:
    """The frames in memory once `n_seen` have been seen."""
    gone = {frame for at, frame in row["evicted"] if at < n_seen}
    held = [frame for frame in range(n_seen) if frame not in gone]
    needles = set(row["needles"])
    cells = "".join(
        f'<i class="b{number}f{frame}{" needle" if frame in needles else ""}" title="frame {frame}"></i>'
        for frame in held
    )
    return f'<div class="film"><span>after {n_seen} frames</span>{cells}</div>'
