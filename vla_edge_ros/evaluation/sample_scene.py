"""Draws one moment of the sample recording with OpenCV: a tabletop seen from the front."""

from collections.abc import Sequence

import cv2
import numpy as np

from vla_edge_ros.evaluation.sample_motion import HAND, RESTING, SHOULDER, Scene

WIDTH, HEIGHT = 320, 180

_SCALE = 3
"""Drawn this many times larger and averaged down, which smooths every edge."""

_SHIFT = 4
"""Fractional bits of OpenCV's fixed-point coordinates."""

_TABLE_BACK, _TABLE_FRONT = 104.0, 162.0

Point = tuple[float, float]
Colour = tuple[int, int, int]

_WALL = (206, 214, 219)
_WALL_LOW = (184, 193, 200)
_FLOOR = (140, 132, 128)
_SKY = (170, 208, 236)
_FRAME = (242, 240, 236)
_WOOD = (205, 164, 118)
_WOOD_NEAR = (222, 182, 134)
_WOOD_GRAIN = (190, 148, 102)
_WOOD_EDGE = (150, 108, 70)
_STEEL = (58, 66, 78)
_STEEL_LIGHT = (104, 115, 130)
_ARM = (238, 126, 44)
_ARM_LIGHT = (250, 160, 84)
_FINGER = (44, 50, 60)
_RED, _RED_DARK, _RED_LIGHT = (208, 58, 56), (158, 38, 42), (228, 96, 90)
_YELLOW, _YELLOW_LIGHT = (240, 196, 52), (252, 226, 132)
_GREEN, _GREEN_DARK, _GREEN_LIGHT = (64, 150, 96), (44, 112, 70), (120, 190, 142)
_TRAY, _TRAY_DARK, _TRAY_INSIDE = (62, 116, 168), (44, 88, 132), (34, 68, 104)
_CARDBOARD, _CARDBOARD_DARK, _TAPE = (190, 150, 104), (160, 122, 80), (222, 200, 160)
_POT, _LEAF, _LEAF_DARK = (214, 214, 208), (84, 148, 84), (58, 116, 66)
_PAPER, _INK = (246, 246, 240), (120, 134, 170)
_LAMP, _LAMP_ON = (70, 74, 86), (255, 244, 196)


class _Canvas:
    """RGB pixels that take coordinates of the small picture."""

    def __init__(self) -> None:
        self.pixels = np.zeros((HEIGHT * _SCALE, WIDTH * _SCALE, 3), np.uint8)

    def polygon(self, points: Sequence[Point], colour: Colour) -> None:
        fixed = np.round(np.array(points) * (_SCALE << _SHIFT)).astype(np.int32)
        cv2.fillPoly(self.pixels, [fixed], colour, cv2.LINE_AA, _SHIFT)

    def box(self, left: float, top: float, right: float, bottom: float, colour: Colour) -> None:
        self.polygon([(left, top), (right, top), (right, bottom), (left, bottom)], colour)

    def disc(self, centre: Point, radius: float, colour: Colour) -> None:
        self.oval(centre, radius, radius, colour)

    def oval(self, centre: Point, radius_x: float, radius_y: float, colour: Colour) -> None:
        fixed = _SCALE << _SHIFT
        at = (round(centre[0] * fixed), round(centre[1] * fixed))
        axes = (round(radius_x * fixed), round(radius_y * fixed))
        cv2.ellipse(self.pixels, at, axes, 0, 0, 360, colour, -1, cv2.LINE_AA, _SHIFT)

    def limb(self, start: Point, end: Point, width_start: float, width_end: float, colour: Colour) -> None:
        """A tapering bar with round ends."""
        along = np.subtract(end, start)
        across = np.array([-along[1], along[0]]) / max(1e-6, float(np.hypot(*along)))
        a, b = across * width_start / 2, across * width_end / 2
        self.polygon([start + a, end + b, end - b, start - a], colour)
        self.disc(start, width_start / 2, colour)
        self.disc(end, width_end / 2, colour)

    def shadow(self, centre: Point, radius_x: float, radius_y: float, strength: float) -> None:
        """Darken an oval with soft edges."""
        left, right = int((centre[0] - radius_x * 1.6) * _SCALE), int((centre[0] + radius_x * 1.6) * _SCALE)
        top, bottom = int((centre[1] - radius_y * 1.6) * _SCALE), int((centre[1] + radius_y * 1.6) * _SCALE)
        left, top = max(0, left), max(0, top)
        part = self.pixels[top:bottom, left:right]
        if part.size == 0:
            return
        y, x = np.ogrid[top : top + part.shape[0], left : left + part.shape[1]]
        distance = ((x / _SCALE - centre[0]) / radius_x) ** 2 + ((y / _SCALE - centre[1]) / radius_y) ** 2
        keep = 1.0 - strength * np.clip(1.4 - distance, 0.0, 1.0)
        part[:] = (part * keep[..., None]).astype(np.uint8)


def draw(scene: Scene) -> np.ndarray:
    """(180, 320, 3) uint8 RGB, the same pixels for the same scene."""
    canvas = _Canvas()
    _draw_room(canvas, scene)
    _draw_table(canvas)
    if scene.plant > 0.0:
        _draw_plant(canvas, scene.plant)
    _draw_sheet(canvas, scene.sheet)
    _draw_shadows(canvas, scene)
    _draw_base(canvas, scene.time_s)
    _draw_tray_back(canvas)
    in_tray = [name for name, (x, _) in scene.objects.items() if x > 215 and name != scene.lifted]
    for name in in_tray:
        _draw_object(canvas, name, scene.objects[name])
    _draw_arm(canvas, scene)
    if scene.lifted:
        _draw_object(canvas, scene.lifted, scene.objects[scene.lifted])
        _draw_fingers(canvas, scene)
    _draw_tray_front(canvas)
    for name, place in sorted(scene.objects.items(), key=lambda item: item[1][1]):
        if name not in in_tray and name != scene.lifted:
            _draw_object(canvas, name, place)
    if scene.box_x is not None:
        _draw_parcel(canvas, scene.box_x)
    small = cv2.resize(canvas.pixels, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA)
    return _lit(small, scene)


def _draw_room(canvas: _Canvas, scene: Scene) -> None:
    canvas.box(-1, -1, WIDTH + 1, HEIGHT + 1, _FLOOR)
    canvas.box(-1, -1, WIDTH + 1, 70, _WALL)
    for step in range(12):
        mix = step / 11
        colour = tuple(round(a + mix * (b - a)) for a, b in zip(_WALL, _WALL_LOW, strict=True))
        canvas.box(0, 40 + step * 6, WIDTH, _TABLE_BACK + 2, colour)
    canvas.box(18, 12, 92, 74, _FRAME)
    sky = tuple(round(c * (0.55 + 0.45 * scene.daylight)) for c in _SKY)
    canvas.box(22, 16, 53.5, 70, sky)
    canvas.box(56.5, 16, 88, 70, sky)
    cloud = tuple(round(0.35 * c + 0.65 * 250 * (0.5 + 0.5 * scene.daylight)) for c in sky)
    for x, y in ((38, 36), (71, 49)):
        canvas.oval((x, y), 11, 3.5, cloud)
        canvas.disc((x - 2, y - 2.5), 4.5, cloud)
        canvas.disc((x + 4, y - 1.5), 3.2, cloud)
    canvas.box(14, 73, 96, 77, (226, 223, 217))
    shade = (268.0, 26.0)
    canvas.limb((shade[0], 0), (shade[0], 16), 1.6, 1.6, _LAMP)
    glow = tuple(round(a + scene.lamp * (b - a)) for a, b in zip(_STEEL_LIGHT, _LAMP_ON, strict=True))
    canvas.oval((shade[0], 32), 13, 3.5, glow)
    canvas.polygon([(262, 15), (274, 15), (284, 32), (252, 32)], _LAMP)


def _draw_table(canvas: _Canvas) -> None:
    back, front = _TABLE_BACK, _TABLE_FRONT
    canvas.polygon([(14, back), (306, back), (330, front), (-10, front)], _WOOD)
    canvas.polygon([(4, back + 24), (316, back + 24), (330, front), (-10, front)], _WOOD_NEAR)
    for y, left, right in ((112, 30, 118), (119, 150, 290), (133, 8, 96), (141, 130, 214), (153, 40, 300)):
        canvas.limb((left, y), (right, y), 0.7, 0.7, _WOOD_GRAIN)
    canvas.box(-10, front, WIDTH + 10, 170, _WOOD_EDGE)
    canvas.box(-10, 170, WIDTH + 10, HEIGHT, (70, 62, 60))


def _draw_shadows(canvas: _Canvas, scene: Scene) -> None:
    canvas.shadow((SHOULDER[0], 122), 32, 8, 0.4)
    canvas.shadow((252, 146), 42, 7, 0.35)
    for name, (x, y) in scene.objects.items():
        if x > 215 and name != scene.lifted:
            continue
        on_table = RESTING[name][1]
        height = max(0.0, on_table - y)
        radius_x, radius_y = 10 + height * 0.08, 3.5 + height * 0.03
        canvas.shadow((x + 2, on_table), radius_x, radius_y, 0.45 / (1.0 + height / 22.0))
    if scene.lifted is None:
        canvas.shadow((scene.tip[0], 136), 11, 3, 0.16)


def _draw_base(canvas: _Canvas, time_s: float) -> None:
    x, y = SHOULDER
    canvas.polygon([(x - 27, 122), (x + 27, 122), (x + 22, 112), (x - 22, 112)], _STEEL)
    canvas.oval((x, 122), 27, 5, _STEEL)
    canvas.oval((x, 112), 22, 4, _STEEL_LIGHT)
    canvas.polygon([(x - 11, y), (x + 11, y), (x + 16, 112), (x - 16, 112)], _STEEL)
    canvas.polygon([(x - 11, y), (x - 4, y), (x - 7, 112), (x - 16, 112)], _STEEL_LIGHT)
    pulse = 0.5 + 0.5 * float(np.sin(2 * np.pi * 0.8 * time_s))
    canvas.disc(
        (x + 13, 118.5), 2.0, (round(40 + 60 * pulse), round(120 + 130 * pulse), round(90 + 60 * pulse))
    )


def _draw_arm(canvas: _Canvas, scene: Scene) -> None:
    elbow, wrist = np.array(scene.elbow), np.array(scene.wrist)
    shoulder = np.array(SHOULDER)
    up = np.array([0.0, -1.6])
    canvas.limb(shoulder, elbow, 19, 14, _ARM)
    canvas.limb(shoulder + up * 2, elbow + up * 2, 5, 4, _ARM_LIGHT)
    canvas.limb(elbow, wrist, 13, 9.5, _ARM)
    canvas.limb(elbow + up, wrist + up, 3.6, 3, _ARM_LIGHT)
    for centre, radius in ((shoulder, 11.0), (elbow, 8.5), (wrist, 6.0)):
        canvas.disc(centre, radius, _STEEL)
        canvas.disc(centre, radius * 0.55, _STEEL_LIGHT)
        canvas.disc(centre, radius * 0.25, _STEEL)
    x, y = scene.wrist
    canvas.limb((x, y + 3), (x, y + 7), 6.5, 6.5, _STEEL_LIGHT)
    half = 6.0 + 4.0 * scene.opening
    canvas.polygon(
        [(x - half, y + 7), (x + half, y + 7), (x + half - 1, y + 11), (x - half + 1, y + 11)], _STEEL
    )
    _draw_fingers(canvas, scene)


def _draw_fingers(canvas: _Canvas, scene: Scene) -> None:
    x, y = scene.tip
    gap = 6.6 + 3.6 * scene.opening
    for side in (-1.0, 1.0):
        canvas.limb((x + side * (gap - 1), y - HAND + 11), (x + side * gap, y - 4), 3.4, 3.0, _FINGER)
        canvas.limb((x + side * gap, y - 4), (x + side * (gap - 1.0), y + 3), 3.0, 2.4, _FINGER)


def _draw_object(canvas: _Canvas, name: str, place: Point) -> None:
    x, y = place
    if name == "cube":
        canvas.box(x - 6.5, y - 13, x + 6.5, y, _RED)
        canvas.polygon([(x - 6.5, y - 13), (x + 6.5, y - 13), (x + 9, y - 16), (x - 4, y - 16)], _RED_LIGHT)
        canvas.polygon([(x + 6.5, y - 13), (x + 9, y - 16), (x + 9, y - 3), (x + 6.5, y)], _RED_DARK)
    elif name == "ball":
        canvas.disc((x, y - 7), 7.2, _YELLOW)
        canvas.disc((x - 2.2, y - 9.4), 2.4, _YELLOW_LIGHT)
    else:
        canvas.box(x - 6, y - 19, x + 6, y, _GREEN)
        canvas.oval((x, y), 6, 2, _GREEN)
        canvas.box(x - 4.5, y - 19, x - 2, y, _GREEN_LIGHT)
        canvas.box(x - 6, y - 13, x + 6, y - 7, _PAPER)
        canvas.oval((x, y - 19), 6, 2, _GREEN_DARK)
        canvas.oval((x, y - 19), 4.2, 1.3, _STEEL_LIGHT)


def _draw_tray_back(canvas: _Canvas) -> None:
    canvas.polygon([(218, 126), (286, 126), (290, 140), (214, 140)], _TRAY_INSIDE)
    canvas.polygon([(214, 124), (290, 124), (288, 127), (216, 127)], _TRAY)


def _draw_tray_front(canvas: _Canvas) -> None:
    canvas.polygon([(208, 134), (296, 134), (292, 149), (212, 149)], _TRAY)
    canvas.polygon([(208, 134), (296, 134), (295.5, 136.5), (208.5, 136.5)], (98, 152, 202))
    canvas.polygon([(212, 149), (292, 149), (291.5, 147), (211.5, 147)], _TRAY_DARK)
    canvas.polygon([(214, 124), (217, 124), (211, 135), (208, 135)], _TRAY_DARK)
    canvas.polygon([(290, 124), (287, 124), (293, 135), (296, 135)], _TRAY_DARK)


def _draw_plant(canvas: _Canvas, arrived: float) -> None:
    """A pot that is lowered into its place."""
    x, y = 40.0, 114.0 - (1.0 - arrived) * 130.0
    canvas.shadow((x + 2, 114), 14 * arrived + 0.1, 3.5, 0.4 * arrived)
    for dx, dy, colour in (
        (-16, -34, _LEAF_DARK),
        (15, -36, _LEAF_DARK),
        (-9, -46, _LEAF),
        (9, -47, _LEAF),
        (0, -52, _LEAF_DARK),
        (-19, -24, _LEAF),
        (18, -25, _LEAF),
    ):
        canvas.limb((x, y - 15), (x + dx, y + dy), 3.0, 8.0, colour)
    canvas.polygon([(x - 12, y - 17), (x + 12, y - 17), (x + 9, y), (x - 9, y)], _POT)
    canvas.box(x - 13, y - 20, x + 13, y - 16, (232, 232, 226))


def _draw_sheet(canvas: _Canvas, arrived: float) -> None:
    """A printed sheet that is pushed onto the table from the front."""
    if arrived <= 0.0:
        return
    drop = (1.0 - arrived) * 50.0
    top, bottom = 128.0 + drop, 156.0 + drop
    canvas.polygon([(142, top), (196, top), (200, bottom), (138, bottom)], _PAPER)
    for line in range(4):
        y = top + 5 + line * 6
        canvas.limb((147, y), (190 - 9 * (line % 2), y), 1.4, 1.4, _INK)
    canvas.box(-10, _TABLE_FRONT, WIDTH + 10, 170, _WOOD_EDGE)
    canvas.box(-10, 170, WIDTH + 10, HEIGHT, (70, 62, 60))


def _draw_parcel(canvas: _Canvas, left: float) -> None:
    top, bottom, width = 118.0, 160.0, 62.0
    canvas.shadow((left + width / 2 + 3, bottom - 1), width / 2 + 4, 4, 0.35)
    right = left + width
    canvas.box(left, top, right, bottom, _CARDBOARD)
    canvas.polygon([(left, top), (right, top), (right + 9, top - 9), (left + 9, top - 9)], _TAPE)
    side = [(right, top), (right + 9, top - 9), (right + 9, bottom - 9), (right, bottom)]
    canvas.polygon(side, _CARDBOARD_DARK)
    canvas.box(left + width / 2 - 4, top, left + width / 2 + 4, bottom, _TAPE)
    canvas.box(left + 6, top + 24, left + 20, top + 36, _PAPER)


def _lit(rgb: np.ndarray, scene: Scene) -> np.ndarray:
    """Daylight over everything, and the warm cone of the lamp where it is on."""
    light = np.full((HEIGHT, WIDTH, 3), scene.daylight, np.float32)
    light *= np.array([0.97, 0.99, 1.02], np.float32) ** (2.0 - 2.0 * scene.daylight)
    if scene.lamp > 0.0:
        y, x = np.ogrid[0:HEIGHT, 0:WIDTH]
        spread = 26.0 + np.maximum(0.0, y - 32.0) * 0.75
        cone = np.exp(-(((x - 268.0) / spread) ** 2)) * (y > 32)
        cone = cv2.GaussianBlur(cone.astype(np.float32), (0, 0), 5)
        light += 0.52 * scene.lamp * cone[..., None] * np.array([1.0, 0.9, 0.68], np.float32)
    return np.clip(rgb * light, 0, 255).astype(np.uint8)
