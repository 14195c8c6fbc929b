"""The page of an evaluation: its plots say what the rows say, its strips what was in memory when."""

import itertools
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict

import numpy as np
import pytest

from vla_edge_ros.evaluation.forgetting.eviction_plot import eviction_plot
from vla_edge_ros.evaluation.forgetting.figure_table import figure_table
from vla_edge_ros.evaluation.forgetting.footage import Footage
from vla_edge_ros.evaluation.forgetting.jobs import Plan
from vla_edge_ros.evaluation.forgetting.page import page
from vla_edge_ros.evaluation.forgetting.pareto_plot import pareto_front, pareto_plot
from vla_edge_ros.evaluation.forgetting.policy_style import style_of
from vla_edge_ros.evaluation.forgetting.recall_plot import LEAST_NEEDLES, recall_plot, retention
from vla_edge_ros.evaluation.forgetting.regret_plot import regret_plot
from vla_edge_ros.evaluation.forgetting.remembered_strips import strips
from vla_edge_ros.evaluation.forgetting.results import document
from vla_edge_ros.evaluation.plot_style import COLOUR
from vla_edge_ros.evaluation.report_style import STYLE
from vla_edge_ros.memory.policies import POLICIES

N_FRAMES = 10


def row(policy: str = "fifo", capacity: int = 4, seed: int = 0, **changes: object) -> dict:
    """A trial in which the oldest frame went at each pass, as under fifo."""
    made = {
        "bag": "sample",
        "policy": policy,
        "capacity": capacity,
        "seed": seed,
        "footage_digest": "0123456789ab",
        **{f"plan_{name}": value for name, value in asdict(Plan(frames=N_FRAMES)).items()},
        "frames": N_FRAMES,
        "regret_nats": 0.1,
        "regret_rank": 0.4 + 0.1 * seed,
        "kl_nats": 1.5 + 0.1 * seed,
        "action_l1": 0.25,
        "needle_recall": 0.5,
        "coverage": 0.5,
        "needles": [1, 2],
        "needle_life": [capacity, capacity],
        "eviction_us": [100.0],
        "evicted": [[at, at - capacity] for at in range(capacity, N_FRAMES)],
    }
    return made | changes


def rows_of_all(n_seeds: int = 5, capacities: tuple[int, ...] = (4, 6)) -> list[dict]:
    return [row(*key) for key in itertools.product(POLICIES, capacities, range(n_seeds))]


def footage(period_s: float = 0.5) -> dict[str, Footage]:
    frames = np.full((N_FRAMES, 64, 128, 3), 90, np.uint8)
    return {"sample": Footage(frames, period_s * np.arange(N_FRAMES))}


def test_the_front_holds_what_nothing_dominates():
    # capacity, quality: the second is beaten at its own capacity, the fourth by less memory.
    points = [(4, 0.5), (4, 0.3), (8, 0.7), (16, 0.6), (16, 0.9)]
    assert pareto_front(*zip(*points, strict=True)) == [0, 2, 4]


def test_equal_points_are_both_on_the_front_and_more_memory_for_the_same_is_not():
    assert pareto_front([4, 4, 8], [0.5, 0.5, 0.5]) == [0, 1]
    assert pareto_front([8, 4], [0.9, 0.5]) == [1, 0]
    assert pareto_front([], []) == []


@pytest.mark.parametrize(
    ("figure", "values", "front"),
    [
        ("kl_nats", {"fifo": 2.0, "random": 1.0}, "front: random"),
        ("needle_recall", {"fifo": 0.9, "random": 0.1}, "front: fifo"),
    ],
)
def test_the_front_is_of_low_distances_and_of_high_recall(figure, values, front):
    rows = [row(name, **{figure: value}) for name, value in values.items()]
    assert re.findall(r">(front: [^<]*)<", pareto_plot(rows, list(values))).count(front) == 1


def test_the_capacity_plot_has_an_interval_for_each_point_of_several_seeds_alone():
    def bars(n_seeds: int) -> int:
        rows = [row(seed=seed) for seed in range(n_seeds)]
        svg = pareto_plot(rows, ["fifo"])
        return len(re.findall(r'<path d="[^"]*" clip-path[^>]*stroke: var\(--policy0\)', svg))

    assert bars(1) == 0
    assert bars(3) == 3


def test_retention_is_the_share_still_held_after_so_many_frames():
    lives = [2] * 5 + [4] * 5 + [8] * 10
    assert retention(lives, [20] * 20).tolist()[:9] == pytest.approx(
        [1, 1, 0.75, 0.75, 0.5, 0.5, 0.5, 0.5, 0]
    )


def test_retention_ends_before_the_age_that_too_few_needles_could_have_reached():
    watched = [6] * 5 + [12] * LEAST_NEEDLES
    assert len(retention(watched, watched)) == 12
    assert len(retention(watched[:-1], watched[:-1])) == 6
    assert len(retention([3] * (LEAST_NEEDLES - 1), [9] * (LEAST_NEEDLES - 1))) == 0


def test_retention_never_climbs_when_needles_that_went_were_watched_longest():
    lives, watched = [2] * 10 + [15] * 10, [20] * 10 + [15] * 10
    shares = retention(lives, watched)
    assert (np.diff(shares) <= 0).all()
    # Those still held at the end say nothing of later ages: nobody is left at risk there.
    assert shares[-1] == pytest.approx(0.5)


def test_without_enough_needles_the_page_says_so_instead_of_a_curve():
    few, many = rows_of_all(n_seeds=4), rows_of_all(n_seeds=5)
    assert recall_plot(few, POLICIES) is None
    assert "fewer than 10 needles were shown" in page("t", "f", few, document(few), {})
    assert recall_plot(many, POLICIES) is not None
    assert "A curve ends at the age that fewer than 10 needles" in page("t", "f", many, document(many), {})


def test_strips_show_seconds_since_the_first_frame_and_what_was_forgotten_between():
    held = row(evicted=[[4, 1], [5, 2], [6, 4], [7, 5], [8, 6], [9, 7]])
    last = strips([held], ["fifo"], footage()).pop(-2).rpartition('class="moment"')[2]
    assert re.findall(r"<li class=\"seen[^>]*>.*?<span>([^<]*)</span>", last) == [
        "0.0 s",
        "1.5 s",
        "4.0 s",
        "4.5 s",
    ]
    gaps = re.findall(r'class="gap"><span>([^<]*)</span> ([^<]*)<', last)
    assert gaps == [("1.5 s", "2 forgotten"), ("2.5 s", "4 forgotten")]
    assert "after 10 of 10 frames, at 4.5 s" in last


def test_needles_in_memory_are_marked_named_and_counted():
    shown = row(needles=[1, 3], evicted=[[4, 0], [5, 1], [6, 2], [7, 4], [8, 5], [9, 6]])
    last = strips([shown], ["fifo"], footage()).pop(-2).rpartition('class="moment"')[2]
    assert re.findall(r'class="seen needle"><i class="b0f(\d+)".*?<span>([^<]*)<', last) == [
        ("3", "1.5 s needle")
    ]
    assert "1 of 2 needles held" in last
    assert re.findall(r'class="marked" d="M([\d.]+) ', last) == ["333.3"]


def test_each_moment_of_a_strip_comes_after_the_first_eviction():
    (section,) = (part for part in strips([row()], ["fifo"], footage()) if "<section" in part)
    assert re.findall(r"after (\d+) of 10 frames", re.sub(r"aria-label=\"[^\"]*\"", "", section)) == [
        "6",
        "8",
        "10",
    ]


def test_only_the_first_recording_is_unfolded():
    rows = [row(bag=bag) for bag in ("a", "b")]
    both = "".join(strips(rows, ["fifo"], {"a": footage()["sample"], "b": footage()["sample"]}))
    assert both.count("<details open>") == 1 and both.count("<details>") == 1


def relative_luminance(colour: str) -> float:
    """Of WCAG 2.2, from #rrggbb."""
    channels = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


@pytest.mark.parametrize("part", [0, 1])
def test_every_policy_has_a_colour_that_can_be_seen_on_a_light_and_a_dark_card(part):
    style = STYLE.split("@media (prefers-color-scheme: dark)")[part]
    colours = dict(re.findall(r"--(\w+): (#\w{6})", style))
    names = {stand_in: name for name, stand_in in COLOUR.items()}
    own = [colours[names[style_of(policy).colour]] for policy in POLICIES]
    assert len(set(own)) == len(POLICIES)
    card = relative_luminance(colours["card"])
    for colour in own:
        low, high = sorted((relative_luminance(colour), card))
        # WCAG 2.2, 1.4.11: graphical objects.
        assert (high + 0.05) / (low + 0.05) >= 3.0, colour


def test_policies_can_be_told_apart_without_colour():
    assert len({style_of(policy).marker for policy in POLICIES}) == len(POLICIES)


def test_plots_are_well_formed_and_take_their_colours_from_the_page():
    rows = rows_of_all()
    defined = set(re.findall(r"(--[\w-]+):", STYLE))
    for svg in (
        regret_plot(rows, POLICIES),
        recall_plot(rows, POLICIES),
        pareto_plot(rows, POLICIES),
        eviction_plot(rows[:11]),
    ):
        ElementTree.fromstring(svg)
        assert set(re.findall(r"var\((--[\w-]+)\)", svg)) <= defined
        assert "#0000" not in svg


def test_policies_of_the_table_are_ordered_by_regret_and_the_best_is_bold():
    rows = [row("fifo", regret_rank=0.6), row("random", regret_rank=0.2)]
    shown = page("t", "f", rows, document(rows), {})
    assert re.findall(r'<th scope="row">([^<]*)', shown) == ["random", "fifo"]
    table = figure_table(document(rows)["policies"], ["random", "fifo"])
    assert "<b>0.200</b>" in table and "<b>0.600</b>" not in table
    # Equal figures are equally good.
    assert table.count("<b>0.50</b>") == 2


def test_a_page_of_one_seed_counts_in_the_singular_and_warns():
    rows = [row("fifo"), row("random")]
    shown = page("t", "f", rows, document(rows), {})
    assert "trials, 1 seed<" in shown
    assert "Over fewer than 5 seeds intervals say little" in shown


def test_names_of_recordings_are_text():
    rows = [row(bag="<script>x</script>")]
    shown = page("t", "f", rows, document(rows), {"<script>x</script>": footage()["sample"]})
    assert "<script" not in shown


def test_a_trial_without_evictions_or_regret_has_a_page():
    rows = [row(regret_rank=None, regret_nats=None, kl_nats=None, action_l1=None, needle_recall=None)]
    rows[0] |= {"evicted": [], "needles": [], "needle_life": [], "coverage": None, "eviction_us": []}
    assert "nothing can be compared" in page("t", "f", rows, document(rows), footage())
