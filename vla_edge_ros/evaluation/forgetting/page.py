"""An evaluation as one self-contained HTML page."""

import html
from collections.abc import Sequence

from vla_edge_ros.evaluation.forgetting import (
    figure_table,
    pareto_plot,
    recall_plot,
    regret_plot,
    remembered_strips,
)
from vla_edge_ros.evaluation.forgetting.eviction_plot import eviction_caption, eviction_plot
from vla_edge_ros.evaluation.forgetting.footage import Footage
from vla_edge_ros.evaluation.forgetting.success_table import success_table
from vla_edge_ros.evaluation.report_style import captioned, whole_page
from vla_edge_ros.figures import counted, in_words

_FEW_SEEDS = 5
_FIGURES_NOTE = (
    "Means over recordings, capacities and seeds, below them 95 % bootstrap intervals over seeds; ↓ less is "
    "better, ↑ more is better, the best is bold. KL and action L1: distance from the actions of a memory "
    "that forgets nothing. Needles are cards that one frame alone shows; recall is the share of them in "
    "memory at the end. Coverage: share of equal stretches of the past of which a frame is held. Eviction: "
    "processor time of one."
)

_STYLE = (
    figure_table.STYLE
    + remembered_strips.STYLE
    + """
.cards .card b { font-size: 18px; overflow-wrap: anywhere; }
.reading { margin-top: 14px; } .below { margin-top: 8px; font-size: 13px; }
"""
)


def page(title: str, facts: str, rows: Sequence[dict], document: dict, footage: dict[str, Footage]) -> str:
    """The page as text. footage: by bag, what the film strips are cut from."""
    policies = _by_regret(document["policies"])
    recall = recall_plot.recall_plot(rows, policies)
    shown = _one_trial_each(rows, policies)
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="facts">{html.escape(facts)}</p>',
        *_cards(document),
        f'<p class="reading">{html.escape(_reading(document))}</p>',
        "<h2>Figures by policy</h2>",
        figure_table.figure_table(document["policies"], policies),
        f'<p class="quiet below">{html.escape(_FIGURES_NOTE)}</p>',
        *(success_table(document) if "remember" in document else []),
        "<h2>Regret against the oracle</h2>",
        captioned(regret_plot.regret_plot(rows, policies), regret_plot.CAPTION),
        "<h2>Quality against capacity</h2>",
        captioned(pareto_plot.pareto_plot(rows, policies), pareto_plot.CAPTION),
        "<h2>Recall of a frame that was shown once</h2>",
        captioned(recall, recall_plot.CAPTION) if recall else f'<p class="quiet">{recall_plot.TOO_FEW}</p>',
        "<h2>What was forgotten when</h2>",
        captioned(eviction_plot(shown), eviction_caption(shown[0])),
        "<h2>What each policy remembers over time</h2>",
        '<p class="quiet">The frames in memory a third and two thirds of the way from the first eviction to '
        "the end, and at the end, as the model saw them, with the seconds since the first frame. Dashed "
        "boxes stand for what was forgotten: the time from the frame before to the frame after, and how many "
        "frames went. Needles are framed in red.</p>",
        *remembered_strips.strips(rows, policies, footage),
        f"<footer>{_footer(document)}</footer>",
    ]
    return whole_page(title, parts, _STYLE)


def _by_regret(policies: dict[str, dict]) -> list[str]:
    """Names, the least mean regret by rank first, those without any last."""
    means = {name: figures["regret_rank_mean"] for name, figures in policies.items()}
    return sorted(means, key=lambda name: (means[name] is None, means[name] or 0.0))


def _one_trial_each(rows: Sequence[dict], policies: Sequence[str]) -> list[dict]:
    """The rows of the first bag and seed and the middle capacity, in the order of `policies`."""
    capacities = sorted({row["capacity"] for row in rows})
    first = min(rows, key=lambda row: (row["bag"], row["seed"]))
    wanted = (first["bag"], first["seed"], capacities[len(capacities) // 2])
    found = [row for row in rows if (row["bag"], row["seed"], row["capacity"]) == wanted]
    return sorted(found, key=lambda row: policies.index(row["policy"]))


def _cards(document: dict) -> list[str]:
    policies = document["policies"]
    cards = []
    for key, digits, sign, what in (
        ("regret_rank_mean", 2, 1, "least regret by rank: {} (chance 0.5)"),
        ("kl_mean", 2, 1, "nearest to a memory that forgets nothing: KL {} nats"),
        ("needle_recall", 2, -1, "most needles held at the end: recall {}"),
    ):
        found = {name: figures[key] for name, figures in policies.items() if figures[key] is not None}
        if found:
            best = min(found.values(), key=lambda value: sign * value)
            names = [name for name, value in found.items() if value == best]
            cards.append((_few(names), what.format(in_words(best, digits))))
    trials = sum(figures["trials"] for figures in policies.values())
    cards.append((in_words(trials), f"trials, {counted(document['seeds'], 'seed')}"))
    inner = "".join(
        f'<div class="card"><b>{figure_table.breakable(value)}</b><span>{html.escape(text)}</span></div>'
        for value, text in cards
    )
    return [f'<div class="cards">{inner}</div>']


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 2 else f"{names[0]} and {len(names) - 1} others"


def _reading(document: dict) -> str:
    winner = document["least_regret"]
    if winner is None:
        return "No policy evicted anything: nothing can be compared."
    told: dict[bool, list[str]] = {True: [], False: []}
    for name, figures in document["least_regret_minus_others"].items():
        told[figures["regret_rank"]["is_significant"]].append(name)
    parts = [f"Least regret by rank: {winner}."]
    if told[True]:
        seeds = counted(document["seeds"], "seed")
        parts.append(f"Over {seeds} its distance can be told from chance against {', '.join(told[True])}.")
    if told[False]:
        parts.append(f"It cannot be told from {', '.join(told[False])}.")
    if document["seeds"] < _FEW_SEEDS:
        parts.append(f"Over fewer than {_FEW_SEEDS} seeds intervals say little: ask for more.")
    parts.append(
        "Where weights are seeded, what a model attends to means nothing, and policies that go by attention "
        "have little to go by."
    )
    return " ".join(parts)


def _footer(document: dict) -> str:
    machine = document.get("machine") or {}
    return html.escape(", ".join(f"{name} {value}" for name, value in machine.items()))
