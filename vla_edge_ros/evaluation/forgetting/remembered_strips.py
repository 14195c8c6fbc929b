"""The frames that each policy holds as time goes on, as strips with times and gaps."""

import html
from collections.abc import Sequence

from vla_edge_ros.evaluation.filmstrip import data_url, gap_cell, time_axis
from vla_edge_ros.evaluation.forgetting.footage import Footage, with_needles
from vla_edge_ros.figures import in_words

SHARES = (1 / 3, 2 / 3, 1.0)
"""Of the frames that come once the memory is full: before, every policy holds the same."""

STYLE = """
details { margin-top: 14px; } summary { cursor: pointer; font-weight: 600; }
.moment { margin: 14px 0 0; color: var(--muted); font-size: 13px; }
.strip .moment b { color: var(--ink); font-weight: 600; }
.strip .axis { margin: 4px 0 6px; }
.strip .gap { width: 64px; padding: 0 2px; }
.frames .seen { width: 108px; }
.seen i { display: block; aspect-ratio: 2; border-radius: 4px; background-size: cover; margin-bottom: 2px; }
.seen.needle { color: var(--late); font-weight: 600; }
.seen.needle i { outline: 3px solid var(--late); outline-offset: -1px; }
@media (max-width: 600px) { .strip .gap { width: 64px; padding: 0 2px; }
.frames .seen { width: calc(33.3% - 4px); } .strip { padding: 12px; } }
"""


def strips(rows: Sequence[dict], policies: Sequence[str], footage: dict[str, Footage]) -> list[str]:
    """HTML: by bag, which can be folded, a section a policy, of the first seed and the middle capacity."""
    capacities = sorted({row["capacity"] for row in rows})
    capacity, seed = capacities[len(capacities) // 2], min(row["seed"] for row in rows)
    parts: list[str] = []
    for number, bag in enumerate(sorted(footage)):
        own = {
            row["policy"]: row
            for row in rows
            if (row["bag"], row["seed"], row["capacity"]) == (bag, seed, capacity)
        }
        if not own:
            continue
        cut = footage[bag].every(next(iter(own.values()))["plan_frames"], seed)
        frames, _ = with_needles(cut.frames, max(0, len(cut.frames) - capacity - 1), seed)
        pictures = "".join(
            f".b{number}f{place}{{background-image:url({data_url(frame)})}}"
            for place, frame in enumerate(frames)
        )
        is_open = "" if parts else " open"
        title = f"{bag}, {capacity} frames of memory, seed {seed}"
        parts.append(f"<details{is_open}><summary>{html.escape(title)}</summary><style>{pictures}</style>")
        for name in policies:
            if name in own:
                moments = (
                    _moment(number, own[name], cut.times_s.tolist(), n_seen)
                    for n_seen in (capacity + round((len(frames) - capacity) * share) for share in SHARES)
                )
                parts.append(
                    f'<section class="strip"><h3>{html.escape(name)}</h3>{"".join(moments)}</section>'
                )
        parts.append("</details>")
    return parts


def _moment(number: int, row: dict, times_s: list[float], n_seen: int) -> str:
    """What is in memory once `n_seen` frames have been seen: a line of words, a time axis and pictures.

    times_s: of all frames of the trial, in seconds since the first.
    """
    gone = {frame for at, frame in row["evicted"] if at < n_seen}
    held = [frame for frame in range(n_seen) if frame not in gone]
    shown = [needle for needle in row["needles"] if needle < n_seen]
    n_held = len(set(shown) & set(held))
    told = f"after {n_seen} of {row['frames']} frames, at {in_words(times_s[n_seen - 1], 1, 's')}"
    kept = f"{n_held} of {len(shown)} needles held" if shown else "no needle shown yet"
    others, needles = ([times_s[f] for f in held if (f in shown) == is_needle] for is_needle in (False, True))
    axis = time_axis(others, times_s[-1], f"{told}: frames in memory", needles)
    cells = []
    for before, frame in zip([None, *held], held, strict=False):
        n_gone = frame - (0 if before is None else before + 1)
        if n_gone:
            gap_s = times_s[frame] - (0.0 if before is None else times_s[before])
            cells.append(gap_cell(gap_s, f"{n_gone} forgotten"))
        cells.append(_cell(number, frame, times_s[frame], frame in shown))
    return f'<p class="moment"><b>{told}</b>: {kept}</p>{axis}<ol class="frames">{"".join(cells)}</ol>'


def _cell(number: int, frame: int, time_s: float, is_needle: bool) -> str:
    kind, word = ("seen needle", " needle") if is_needle else ("seen", "")
    time = in_words(time_s, 1, "s")
    return (
        f'<li class="{kind}"><i class="b{number}f{frame}" role="img" aria-label="frame {frame}{word}"></i>'
        f"<span>{time}{word}</span></li>"
    )
