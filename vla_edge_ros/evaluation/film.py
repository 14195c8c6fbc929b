"""The pictures of the frames that a run still remembers."""

from vla_edge_ros.evaluation.bags import Bag
from vla_edge_ros.evaluation.filmstrip import FilmFrame
from vla_edge_ros.perception.decode import decode


def film_frames(bag: Bag, topic: str, remembered: list[tuple[int, int]]) -> list[FilmFrame]:
    """Pictures from the bag itself, at its own resolution, oldest first.

    remembered: (time_ns, ordinal) a frame; the ordinal is its place among the images of `topic`, from 0.
    """
    wanted: dict[int, list[int]] = {}
    for place, (_, ordinal) in enumerate(remembered):
        wanted.setdefault(ordinal, []).append(place)
    frames: list[FilmFrame | None] = [None] * len(remembered)
    for ordinal, image in enumerate(bag.images(topic)):
        for place in wanted.pop(ordinal, ()):
            frames[place] = FilmFrame(ordinal, remembered[place][0] / 1e9, decode(image.message, topic))
        if not wanted:
            break
    return [frame for frame in frames if frame is not None]
