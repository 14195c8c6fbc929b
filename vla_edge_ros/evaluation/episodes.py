"""A report's part on the episodes of a simulated arm: the picture of them, and how each went."""

import base64
import html

from vla_edge_ros.figures import NOTHING, in_words

_CAPTION = (
    "What was told, decided and reached. The strip below is time, a colour a decision: green for a fresh"
    " action, yellow for a hold, red for a stop."
)
_HEADS = (
    *("task", "told", "outcome", "simulated time", "from the goal at its end"),
    *("fresh in it", "other decisions", "late", "confidence"),
)


def episode_parts(run: dict, picture: bytes | None) -> list[str]:
    """HTML; nothing for a run without episodes."""
    episodes = run.get("episodes")
    if not episodes:
        return []
    parts = ["<h2>What the arm did</h2>"]
    if picture is not None:
        url = "data:image/webp;base64," + base64.b64encode(picture).decode()
        parts.append(
            f'<figure><img src="{url}" alt="the simulated arm during the run">'
            f"<figcaption>{_CAPTION}</figcaption></figure>"
        )
    head = "".join(f'<th scope="col">{name}</th>' for name in _HEADS)
    rows = "".join(f"<tr>{''.join(map(_cell, _row(episode)))}</tr>" for episode in episodes)
    parts.append(f'<div class="table episodes"><table><tr>{head}</tr>{rows}</table></div>')
    return parts


def _row(episode: dict) -> list[str]:
    ticks, distance_m = episode.get("ticks"), episode.get("distance_m")
    told = ", then ".join(f"“{text}”" for text in episode.get("instructions") or [])
    others = ", ".join(f"{n} {name}" for name, n in (episode.get("others") or {}).items())
    return [
        f"{episode.get('task', NOTHING)}, seed {episode.get('seed', NOTHING)}",
        told or NOTHING,
        _outcome(episode),
        in_words(episode.get("seconds"), 1, "s"),
        in_words(None if distance_m is None else 100 * distance_m, 1, "cm"),
        in_words(100 * episode.get("fresh", 0) / ticks if ticks else None, 1, "%"),
        others or "none",
        in_words(episode.get("late")),
        in_words(episode.get("confidence"), 2),
    ]


def _outcome(episode: dict) -> str:
    if episode.get("distance_m") is None:
        return "told of nothing on the table"
    return "succeeded" if episode.get("has_succeeded") else "failed"


def _cell(text: str) -> str:
    kind = ' class="figure"' if text[:1].isdigit() else ""
    return f"<td{kind}>{html.escape(text)}</td>"
