"""Which forgotten blocks the engine's host ring holds, and which of them the scene resembles again."""

from dataclasses import dataclass

import numpy as np

from vla_edge_ros.memory.similarity import NORM_GUARD
from vla_edge_ros.perception.frame import FrameMeta

STAY_TICKS = 30
"""A block that came back stays so long at least, and one that went stays away: nothing goes to and fro."""

TWIN = 0.99
"""Frames whose cosine is at least this differ by the camera's noise: the ring keeps one of them."""

_ROUNDING = 1e-5
"""Cosines of float32 tell nothing apart that is nearer."""

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Resemblance:
    """A block of the ring that the scene resembles; `place` is where the ring has it."""

    place: int
    meta: FrameMeta
    cosine: float


class HostRing:
    """`n_places` blocks of host memory, least recently used first out; the engine has the bytes and obeys.

    A forgotten frame is kept unless the ring has its twin. It is called back where the newest frame resembles
    it: by a cosine of at least `similarity`, and at least twice as near (in 1 - cosine) as every frame that
    memory retains of its own, so that what is still there is not fetched again. It is then a guest: the ring
    keeps its copy, which nothing overwrites, and it leaves when the scene no longer resembles it,
    `STAY_TICKS` later at the earliest. For as long after a frame went it is not called back.

    capacity: retained frames at most. All is allocated here.
    """

    def __init__(self, n_places: int, capacity: int, embedding_size: int, similarity: float):
        self._similarity = similarity
        self._kept: dict[int, FrameMeta] = {}
        """By place, the least recently used first."""
        self._units = np.zeros((n_places, embedding_size), np.float32)
        self._cosines = np.zeros(n_places, np.float32)
        self._went_ticks = np.full(n_places, _NEVER)
        """By place; `_NEVER` where there is none to call back."""
        self._free_places = list(range(n_places - 1, -1, -1))
        self._guests: dict[int, tuple[int, int]] = {}
        """By frame index: its place in the ring, and the tick at which it came."""
        self._rows: dict[int, int] = {}
        """Of the retained frames that are no guests, by frame index."""
        self._row_units = np.zeros((capacity, embedding_size), np.float32)
        self._row_cosines = np.zeros(capacity, np.float32)
        self._free_rows = list(range(capacity - 1, -1, -1))
        self._scene = np.zeros(embedding_size, np.float32)
        self._scene_row: int | None = None
        """The row of the frame that the scene is, where that is retained."""

    @property
    def frames(self) -> list[FrameMeta]:
        """What is kept, guests included, the least recently used first."""
        return list(self._kept.values())

    @property
    def n_guests(self) -> int:
        return len(self._guests)

    def is_guest(self, index: int) -> bool:
        return index in self._guests

    def look(self, embedding: np.ndarray) -> None:
        """What the newest frame shows, retained or not: the scene from now on."""
        norm = float(np.sqrt(np.dot(embedding, embedding)))
        scale = 1.0 / norm if norm >= NORM_GUARD else 0.0
        np.multiply(embedding, scale, out=self._scene, casting="unsafe")
        self._scene_row = None

    def observe(self, index: int) -> None:
        """The frame looked at last was retained."""
        self._scene_row = self._rows[index] = self._free_rows.pop()
        self._row_units[self._scene_row] = self._scene

    def forget(self, meta: FrameMeta, tick: int) -> int | None:
        """A retained frame, no guest, goes: the place where its block is to be kept; None: nowhere.

        That is where the ring has a twin, which then counts as used, where guests have every place, or where
        nothing is known of what the frame shows.
        """
        row = self._rows.pop(meta.index)
        self._free_rows.append(row)
        if row == self._scene_row:
            self._scene_row = None
        unit = self._row_units[row]
        place = None
        if unit.any():
            cosines = self._compare(unit)
            twin = int(cosines.argmax())
            if cosines[twin] >= TWIN:
                self._use(twin)
            else:
                place = self._place()
        if place is not None:
            self._kept[place] = meta
            self._units[place] = unit
            self._went_ticks[place] = tick
        unit[:] = 0.0
        return place

    def resembled(self, tick: int) -> Resemblance | None:
        """The block to call back now, if there is one."""
        if not self._kept:
            return None
        cosines, shown = self._compare(self._scene), self._row_cosines
        np.einsum("ij,j->i", self._row_units, self._scene, out=shown)
        if self._scene_row is not None:
            shown[self._scene_row] = -1.0
        best_shown = float(shown.max())
        cosines[self._went_ticks > tick - STAY_TICKS] = -1.0
        place = int(cosines.argmax())
        cosine = float(cosines[place])
        if cosine < self._similarity or cosine - best_shown < max(1.0 - cosine, _ROUNDING):
            return None
        return Resemblance(place, self._kept[place], cosine)

    def welcome(self, place: int, tick: int) -> None:
        """The block at `place` is in memory again, as a guest."""
        self._guests[self._kept[place].index] = place, tick
        self._went_ticks[place] = _NEVER
        self._use(place)

    def outstayed(self, tick: int) -> list[int]:
        """Indices of the guests that have been there for long and that the scene no longer resembles."""
        return [
            index
            for index, (place, came_tick) in self._guests.items()
            if tick - came_tick >= STAY_TICKS and np.dot(self._units[place], self._scene) < self._similarity
        ]

    def farewell(self, index: int, tick: int) -> None:
        """Guest `index` is no longer in memory; the ring still has it."""
        place, _ = self._guests.pop(index)
        self._went_ticks[place] = tick

    def clear(self) -> None:
        """Nothing is retained and nothing kept."""
        self._free_places += self._kept
        self._free_rows += self._rows.values()
        for told in (self._kept, self._guests, self._rows):
            told.clear()
        self._scene_row = None
        self._scene[:] = 0.0
        self._units[:] = 0.0
        self._row_units[:] = 0.0
        self._went_ticks[:] = _NEVER

    def _compare(self, unit: np.ndarray) -> np.ndarray:
        # Not a matrix product: BLAS would wake threads of its own beside the control thread.
        return np.einsum("ij,j->i", self._units, unit, out=self._cosines)

    def _use(self, place: int) -> None:
        self._kept[place] = self._kept.pop(place)

    def _place(self) -> int | None:
        if self._free_places:
            return self._free_places.pop()
        place = next((place for place, meta in self._kept.items() if meta.index not in self._guests), None)
        if place is not None:
            del self._kept[place]
        return place
