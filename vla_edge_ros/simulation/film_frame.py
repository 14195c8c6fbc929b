"""One picture of a film: the table, what the camera sees, and a caption of what was told and decided."""

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont

from vla_edge_ros.errors import one_line
from vla_edge_ros.figures import in_words
from vla_edge_ros.simulation.spectator import HEIGHT, WIDTH, Moment

_BAR_HEIGHT = 64
_TIME_LINE_HEIGHT = 4
_MARGIN = 12
_INSET_TOP_RIGHT = (WIDTH - 10, 10)

_BAR, _INK, _QUIET, _LINE = (24, 28, 33), (238, 239, 240), (155, 163, 174), (240, 240, 240)
_GOOD, _BAD = (92, 195, 160), (238, 127, 104)
_FRESH, _HOLD, _STOP, _NONE = (63, 174, 149), (224, 176, 75), (238, 127, 104), (90, 98, 108)


class FilmFrames:
    """Draws the pictures of these moments, in their order."""

    def __init__(self, moments: Sequence[Moment]) -> None:
        self._moments = moments
        self._text = ImageFont.truetype(font_manager.findfont("DejaVu Sans"), 13)
        self._bold = ImageFont.truetype(font_manager.findfont("DejaVu Sans:bold"), 16)
        self._small = ImageFont.truetype(font_manager.findfont("DejaVu Sans"), 10)
        self._time_line = _time_line(moments)

    def draw(self, place: int, beside: np.ndarray, own: np.ndarray) -> Image.Image:
        """RGB of the moment at `place`: from beside the table (H, W, 3), the camera's frame (h, w, 3)."""
        moment = self._moments[place]
        picture = Image.new("RGB", (WIDTH, HEIGHT + _BAR_HEIGHT), _BAR)
        picture.paste(Image.fromarray(beside), (0, 0))
        pen = ImageDraw.Draw(picture)
        self._draw_inset(picture, pen, own)
        top = HEIGHT + 10
        instruction = f"“{one_line(moment.instruction)}”" if moment.instruction else "nothing to do"
        pen.text((_MARGIN, top), _fitting(instruction, self._bold, WIDTH - 2 * _MARGIN), _INK, self._bold)
        self._draw_state(pen, moment, top + 26)
        picture.paste(self._time_line, (0, picture.height - _TIME_LINE_HEIGHT))
        x = round((place + 0.5) * WIDTH / len(self._moments))
        pen.rectangle((x - 1, picture.height - _TIME_LINE_HEIGHT - 3, x + 1, picture.height), _LINE)
        return picture

    def _draw_inset(self, picture: Image.Image, pen: ImageDraw.ImageDraw, own: np.ndarray) -> None:
        right, top = _INSET_TOP_RIGHT
        height, width, _ = own.shape
        left = right - width
        pen.rectangle((left - 1, top - 1, right, top + height), outline=_LINE)
        picture.paste(Image.fromarray(own), (left, top))
        pen.text((right, top + height + 3), "what the model sees", _QUIET, self._small, anchor="ra")

    def _draw_state(self, pen: ImageDraw.ImageDraw, moment: Moment, top: int) -> None:
        x = _MARGIN
        if moment.decision:
            width = pen.textlength(moment.decision, self._text)
            pen.rounded_rectangle((x, top, x + width + 14, top + 19), 5, _colour(moment.decision))
            pen.text((x + 7, top + 2), moment.decision, _BAR, self._text)
            x += round(width) + 24
        near = in_words(None if moment.distance_m is None else 100 * moment.distance_m, 0, "cm")
        told = f"{moment.time_s:.1f} s" + ("" if moment.distance_m is None else f"   {near} to go")
        pen.text((x, top + 2), told, _QUIET, self._text)
        if moment.is_over:
            outcome, colour = _outcome(moment)
            pen.text((WIDTH - _MARGIN, top), outcome, colour, self._bold, anchor="ra")


def _outcome(moment: Moment) -> tuple[str, tuple[int, int, int]]:
    if moment.distance_m is None:
        return "nothing of that here", _QUIET
    return ("✓ succeeded", _GOOD) if moment.has_succeeded else ("✗ failed", _BAD)


def _colour(decision: str) -> tuple[int, int, int]:
    if not decision:
        return _NONE
    if decision.startswith("FRESH"):
        return _FRESH
    return _HOLD if decision.startswith("HOLD") else _STOP


def _time_line(moments: Sequence[Moment]) -> Image.Image:
    """Every moment's decision as a colour, and a gap where an episode ends."""
    colours = np.array([_colour(moment.decision) for moment in moments], np.uint8)
    line = Image.fromarray(colours[None]).resize((WIDTH, _TIME_LINE_HEIGHT), Image.Resampling.NEAREST)
    pen = ImageDraw.Draw(line)
    end = 0
    for _, episode in groupby(moments, lambda moment: moment.number):
        end += len(list(episode))
        x = round(end * WIDTH / len(moments))
        pen.rectangle((x - 1, 0, x, _TIME_LINE_HEIGHT), _BAR)
    return line


def _fitting(text: str, font: ImageFont.FreeTypeFont, width: int) -> str:
    """`text`, cut with an ellipsis where it is wider than `width` pixels."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(f"{text}…”") > width:
        text = text[:-1]
    return f"{text}…”"
