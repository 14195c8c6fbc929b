"""The frames that a memory still holds, as a strip with the gaps that forgetting left."""

import base64
import html
from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np

from vla_edge_ros.figures import in_words

_THUMBNAIL_WIDTH = 144
_JPEG_QUALITY = 82
_AXIS_STEPS_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200)
_MOST_LABELS = 12


class FilmFrame(NamedTuple):
    """A remembered frame.

    time_s: when it was taken, in seconds since the first tick. rgb: (height, width, 3) uint8.
    """

    index: int
    time_s: float
    rgb: np.ndarray


def film_strip(policy: str, frames: list[FilmFrame], until_s: float, note: str = "") -> str:
    """HTML of one policy's strip; `until_s` is the length of the time axis, the same for all policies."""
    frames = sorted(frames, key=lambda frame: frame.time_s)
    title = html.escape(policy)
    remark = f'<span class="note">{html.escape(note)}</span>' if note else ""
    if not frames:
        nothing = '<p class="quiet">remembers no frame</p>'
        return f'<section class="strip"><h3>{title}{remark}</h3>{nothing}</section>'
    first_s, last_s = frames[0].time_s, frames[-1].time_s
    told = (
        f"remembers {len(frames)} frame{'s' if len(frames) > 1 else ''}"
        f" from {in_words(first_s, 2, 's')} to {in_words(last_s, 2, 's')}"
    )
    gap_s = _notable_gap_s(frames)
    axis = time_axis([frame.time_s for frame in frames], until_s, told)
    cells = []
    for before, frame in zip([None, *frames], frames, strict=False):
        missing_s = frame.time_s - before.time_s if before else frame.time_s
        if missing_s > gap_s:
            cells.append(gap_cell(missing_s))
        alt = f"frame {frame.index} at {in_words(frame.time_s, 2, 's')}"
        cells.append(
            f'<li><img src="{data_url(frame.rgb)}" alt="{html.escape(alt)}" loading="lazy">'
            f"<span>{in_words(frame.time_s, 2, 's')}</span></li>"
        )
    return (
        f'<section class="strip"><h3>{title}{remark}</h3><p class="quiet">{told}</p>'
        f'{axis}<ol class="frames">{"".join(cells)}</ol></section>'
    )


def _notable_gap_s(frames: list[FilmFrame]) -> float:
    """Longer gaps than this are shown: three times the usual one, and never a single camera period."""
    intervals = np.diff([frame.time_s for frame in frames])
    return max(0.12, 3.0 * float(np.median(intervals))) if len(intervals) else 0.12


def time_axis(times_s: Sequence[float], until_s: float, told: str, marked_s: Sequence[float] = ()) -> str:
    """A time axis from 0 to `until_s` with a mark for each of `times_s`, in another colour for `marked_s`.

    told: the axis in words, for who cannot see it.
    """
    until_s = max(until_s, *times_s, *marked_s, 1e-6)
    step_s = next((step for step in _AXIS_STEPS_S if until_s / step <= _MOST_LABELS), _AXIS_STEPS_S[-1])
    labels = []
    for tick in range(int(until_s / step_s) + 1):
        share = 100 * tick * step_s / until_s
        kind = "first" if tick == 0 else "last" if share > 97 else "middle"
        labels.append(f'<span class="{kind}" style="left:{share:.1f}%">{tick * step_s:g} s</span>')
    marks, others = (
        "".join(f"M{1000 * time_s / until_s:.1f} 4V22" for time_s in found) for found in (times_s, marked_s)
    )
    marked = f'<path class="marked" d="{others}"/>' if marked_s else ""
    bar = f'<rect x="0" y="4" width="1000" height="18"/><path d="{marks}"/>{marked}'
    return (
        f'<div class="axis" role="img" aria-label="{html.escape(told)}">'
        f'<svg viewBox="0 4 1000 18" preserveAspectRatio="none">{bar}</svg>{"".join(labels)}</div>'
    )


def gap_cell(length_s: float, what: str = "forgotten") -> str:
    """An item of a list of frames for those that are not there any more."""
    return f'<li class="gap"><span>{in_words(length_s, 1, "s")}</span> {html.escape(what)}</li>'


def data_url(rgb: np.ndarray) -> str:
    """A JPEG thumbnail; small pictures are enlarged in whole pixels, so that they stay what the model saw."""
    height, width = rgb.shape[:2]
    is_small = width < _THUMBNAIL_WIDTH
    wide = _THUMBNAIL_WIDTH // width * width if is_small else _THUMBNAIL_WIDTH
    size = (wide, max(1, round(height * wide / width)))
    way = cv2.INTER_NEAREST if is_small else cv2.INTER_AREA
    bgr = cv2.resize(cv2.cvtColor(np.ascontiguousarray(rgb), cv2.COLOR_RGB2BGR), size, interpolation=way)
    _, jpeg = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])
    return "data:image/jpeg;base64," + base64.b64encode(jpeg.tobytes()).decode()
