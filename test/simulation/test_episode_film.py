"""The animated picture of episodes, as a browser reads it."""

import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from vla_edge_ros.simulation.episode_film import _encoded, _within, film
from vla_edge_ros.simulation.film_frame import FilmFrames
from vla_edge_ros.simulation.scene import READY
from vla_edge_ros.simulation.spectator import HEIGHT, WIDTH, Moment

MOMENT = Moment(1, "reach", 3, 0.0, (*READY, 1.0), "go to the red ball", "FRESH", 0.2, False, False)
BESIDE, OWN = np.zeros((HEIGHT, WIDTH, 3), np.uint8), np.zeros((64, 128, 3), np.uint8)


def moments(n, **changes):
    return [replace(MOMENT, time_s=i / 30, **changes) for i in range(n)]


def frames_of(webp):
    picture = Image.open(io.BytesIO(webp))
    assert picture.format == "WEBP"
    for place in range(picture.n_frames):
        picture.seek(place)
        yield np.asarray(picture.convert("RGB")).astype(int), picture.info.get("duration")


def test_ten_pictures_a_second_and_the_end_of_each_episode_stays(has_renderer):
    # Arms that move: equal pictures would be written as one.
    moving = [replace(m, joints=(i / 30, *m.joints[1:])) for i, m in enumerate(moments(10))]
    webp = film([*moving, *(replace(m, number=2) for m in moving)])
    shown = list(frames_of(webp))
    assert len(shown) == 8  # moments 0, 3, 6 and 9 of each
    assert len({picture.tobytes() for picture, _ in shown}) == 8


def test_the_arm_and_the_table_are_in_the_picture(has_renderer):
    there, elsewhere = (
        next(frames_of(film([replace(MOMENT, joints=(turn, *READY[1:], 1.0))])))[0] for turn in (0.0, 1.0)
    )
    assert (np.abs(there - elsewhere)[:HEIGHT, :300].max(axis=2) > 60).mean() > 0.02


def test_a_film_of_nothing_is_refused():
    with pytest.raises(ValueError, match="without a moment"):
        film([])


def drawn(*shown, place=0):
    return np.asarray(FilmFrames(shown).draw(place, BESIDE, OWN)).astype(int)


@pytest.mark.parametrize(
    "change",
    [
        {"decision": "SAFE_STOP"},
        {"instruction": "go to the blue can"},
        {"is_over": True},
        {"is_over": True, "has_succeeded": True},
        {"distance_m": None},
        {"time_s": 2.0},
    ],
    ids=str,
)
def test_what_was_told_decided_and_reached_is_in_the_caption(change):
    assert (drawn(replace(MOMENT, **change))[HEIGHT:] != drawn(MOMENT)[HEIGHT:]).any()


def test_the_time_line_has_a_colour_for_each_decision():
    line = drawn(MOMENT, replace(MOMENT, decision="HOLD_LATE"), replace(MOMENT, decision="FAULT"))[-1]
    fresh, hold, fault = line[WIDTH // 12], line[WIDTH // 2 - 30], line[WIDTH - WIDTH // 12]
    assert fresh[1] == fresh.max() and hold[0] > hold[2] + 100 and fault[0] > fault[1] + 50


@pytest.mark.parametrize("text", ["", "a" * 5000, "去\x00红\n球"])
def test_any_text_has_a_caption_of_its_width(text):
    assert drawn(replace(MOMENT, instruction=text)).shape == (HEIGHT + 64, WIDTH, 3)


def noise_pictures(n):
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (48, 64, 3), np.uint8)) for _ in range(n)]


def test_a_picture_is_made_coarser_and_then_shorter_until_it_is_small_enough():
    pictures, durations_ms = noise_pictures(12), [100] * 12
    coarsest = len(_encoded(pictures, durations_ms, 20))
    coarser = _within(coarsest, pictures, durations_ms)
    assert len(coarser) == coarsest and len(list(frames_of(coarser))) == 12
    shorter = _within(coarsest // 2, pictures, durations_ms)
    assert len(shorter) <= coarsest // 2 and 1 < len(list(frames_of(shorter))) < 12
