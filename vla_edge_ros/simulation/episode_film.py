"""Episodes as one short animated picture, WebP."""

import io
from collections.abc import Sequence
from itertools import groupby

from PIL import Image

from vla_edge_ros.simulation.film_frame import FilmFrames
from vla_edge_ros.simulation.spectator import Moment, Spectator

LARGEST_BYTES = 2_000_000

_EVERY = 3
"""Moments are 1/30 s apart, pictures a tenth of a second."""
_FRAME_MS = 100
_LAST_FRAME_MS = 1500
"""How long the end of an episode stays."""
_QUALITIES = (80, 60, 40, 20)


def film(moments: Sequence[Moment]) -> bytes:
    """At most LARGEST_BYTES of WebP: coarser first, then without its last episodes' pictures, as it takes.

    Raises NoRenderer, and ValueError for no moments.
    """
    if not moments:
        raise ValueError("an episode without a moment has no picture")
    shown: list[Moment] = []
    durations_ms: list[int] = []
    for _, episode in groupby(moments, lambda moment: moment.number):
        *before, last = episode
        chosen = [*before[::_EVERY], last]
        shown += chosen
        durations_ms += [*[_FRAME_MS] * (len(chosen) - 1), _LAST_FRAME_MS]
    frames = FilmFrames(shown)
    spectator = Spectator()
    try:
        pictures = [frames.draw(place, *spectator.see(moment)) for place, moment in enumerate(shown)]
    finally:
        spectator.close()
    return _within(LARGEST_BYTES, pictures, durations_ms)


def _within(largest_bytes: int, pictures: list[Image.Image], durations_ms: list[int]) -> bytes:
    for quality in _QUALITIES:
        webp = _encoded(pictures, durations_ms, quality)
        if len(webp) <= largest_bytes:
            return webp
    kept = max(1, int(0.9 * len(pictures) * largest_bytes / len(webp)))
    if kept == len(pictures):
        return webp
    return _within(largest_bytes, pictures[:kept], durations_ms[:kept])


def _encoded(pictures: list[Image.Image], durations_ms: list[int], quality: int) -> bytes:
    file = io.BytesIO()
    first, *others = pictures
    first.save(
        file,
        "WEBP",
        save_all=True,
        append_images=others,
        duration=durations_ms,
        loop=0,
        quality=quality,
        method=2,
    )
    return file.getvalue()
