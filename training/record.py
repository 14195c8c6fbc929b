"""The record of `tiny-vla`: put together from parts, each figure beside what it must be.

A part is what one step of training/benchmark.py measured: `step`, `weights_sha256`, `sources_sha256`,
`device`, `date`, `versions`, `wall_s`, and `figures`. There are several of `live`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from training.evaluate import SMALL_FRAMES
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.musts import Must, markdown_table
from vla_edge_ros.evaluation.record_parts import require_alike
from vla_edge_ros.figures import in_words, percentiles, proportion

KEYS = (
    *("reach_success", "remember_full_success", "remember_evicted_success", "remember_by_policy"),
    *("track_fresh_30hz", "track_fresh_10hz", "tick_ms_p99_cpu"),
    *("weights_sha256", "sources_sha256", "device", "date", "versions"),
)
"""What a whole record has at its top level, among other things."""

EPISODES = 200
CHANCE = 0.25
"""Of *remember*: one pad in four."""
BY_POLICY = {"fifo": "remember_fifo", "semantic": "remember_semantic"}
"""Eviction policies in a memory of SMALL_FRAMES, and the conditions that measure them."""

MUSTS = (
    Must("reach, episodes with the node in the loop", "reach_episodes", ">=", EPISODES),
    Must("reach, node in the loop", "reach_value", ">=", 0.90, None, "%", 100),
    Must("remember, memory for all of it", "remember_full_value", ">=", 0.85, None, "%", 100),
    Must("remember, cue evicted, 95 % from", "remember_evicted_low", "<=", CHANCE, None, "%", 100),
    Must("remember, cue evicted, 95 % to", "remember_evicted_high", ">=", CHANCE, None, "%", 100),
    Must("track, 30 Hz less 10 Hz, 95 % from", "track_gain_low", ">", 0.0, None, "%", 100),
    Must("tick of the live node, p99", "tick_ms_p99_cpu", "<=", 33, None, "ms"),
)

_SAME = ("weights_sha256", "sources_sha256", "device")


def merge(parts: Sequence[dict]) -> dict:
    """The record of these parts; a figure whose step is missing is None.

    Raises UserError, one line, where parts are of different weights, sources or devices, or there are none.
    """
    require_alike(parts, _SAME)
    live = [part["figures"] for part in parts if part["step"] == "live"]
    success = {part["step"]: part["figures"] for part in parts if part["step"] != "live"}
    episodes = [episode for part in live for episode in part["episodes"]]
    reach = proportion([episode["has_succeeded"] for episode in episodes]) if episodes else None
    full, evicted = success.get("remember_full"), success.get("remember_evicted")
    fast, slow = success.get("track_fresh_30hz"), success.get("track_fresh_10hz")
    ticks_ms = percentiles(ms for part in live for ms in part["tick_ms"])
    latest = max(parts, key=lambda part: part["date"])
    return {
        **{name: latest[name] for name in ("date", *_SAME, "versions", "machine")},
        "reach_success": reach,
        "remember_full_success": full,
        "remember_evicted_success": evicted,
        "remember_by_policy": {policy: success.get(name) for policy, name in BY_POLICY.items()},
        "remember_by_policy_frames": SMALL_FRAMES,
        "track_fresh_30hz": fast,
        "track_fresh_10hz": slow,
        "track_gain_ci95": None if fast is None or slow is None else list(gain_interval(fast, slow)),
        "switch_success": success.get("switch"),
        "reach_success_lockstep": success.get("reach"),
        "tick_ms_p99_cpu": ticks_ms["p99"],
        "tick_ms": ticks_ms,
        "pass_ms": percentiles(ms for part in live for ms in part["pass_ms"]),
        "live": {
            "ticks": sum(episode["ticks"] for episode in episodes),
            "fresh": sum(episode["fresh"] for episode in episodes),
            "late_publishes": sum(episode["late"] for episode in episodes),
            "failed_seeds": [e["seed"] for e in episodes if not e["has_succeeded"]],
            "camera_hz_min": min((part["camera_hz"] for part in live), default=None),
            "engine": live[-1]["engine"] if live else None,
        },
        "steps": [{name: part[name] for name in ("step", "date", "wall_s")} for part in parts],
    }


def gain_interval(more: Mapping, less: Mapping) -> tuple[float, float]:
    """95 % interval of the difference of two proportions: Newcombe's hybrid score interval (1998)."""
    p, (p_low, p_high) = more["value"], more["ci95"]
    q, (q_low, q_high) = less["value"], less["ci95"]
    below = ((p - p_low) ** 2 + (q_high - q) ** 2) ** 0.5
    above = ((p_high - p) ** 2 + (q - q_low) ** 2) ** 0.5
    return p - q - below, p - q + above


def judged(record: Mapping) -> dict:
    """What MUSTS look at, flat; None where it was not measured."""
    reach, full = record["reach_success"] or {}, record["remember_full_success"] or {}
    low, high = (record["remember_evicted_success"] or {}).get("ci95") or (None, None)
    return {
        "device": record["device"],
        "reach_episodes": reach.get("episodes"),
        "reach_value": reach.get("value"),
        "remember_full_value": full.get("value"),
        "remember_evicted_low": low,
        "remember_evicted_high": high,
        "track_gain_low": (record["track_gain_ci95"] or [None])[0],
        "tick_ms_p99_cpu": record["tick_ms_p99_cpu"],
    }


BEGIN, END = "<!-- written by python -m training.benchmark record -->", "<!-- to here -->"


def into_page(path: Path, text: str, record: Mapping) -> str:
    """The page's text with what stands between BEGIN and END written anew.

    Raises UserError, which names `path`, where it has neither.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise UserError(f"{path}: has no place for the record: it needs a line {BEGIN} and a line {END}")
    return f"{before}{BEGIN}\n\n{tables(record)}\n\n{END}{after}"


def tables(record: Mapping) -> str:
    """The record in Markdown: figures beside their musts, then every success with its interval."""
    by_policy = {
        f"*remember*, {policy}, {record['remember_by_policy_frames']} frames": success
        for policy, success in record["remember_by_policy"].items()
    }
    successes = {
        "*reach*, node in the loop": record["reach_success"],
        "*reach*, lockstep": record["reach_success_lockstep"],
        "*switch*": record["switch_success"],
        "*remember*, memory for all of it": record["remember_full_success"],
        "*remember*, the cue evicted": record["remember_evicted_success"],
        **by_policy,
        "*track*, FRESH at 30 Hz": record["track_fresh_30hz"],
        "*track*, FRESH at 10 Hz": record["track_fresh_10hz"],
    }
    live, pass_ms = record["live"], record["pass_ms"]
    return "\n".join(
        [
            *markdown_table(judged(record), MUSTS),
            "",
            "| task | success | episodes | 95 % |",
            "|---|---|---|---|",
            *(_success_row(name, success) for name, success in successes.items()),
            "",
            f"{record['device']}, {record['machine']['cores']} cores, {record['date'][:10]}; weights "
            f"`{record['weights_sha256'][:16]}`. With the node in the loop: {live['ticks']:,} ticks, "
            f"{live['late_publishes']:,} late publishes, "
            f"a pass {in_words(pass_ms['p50'], 1, 'ms')} (p50) and "
            f"{in_words(pass_ms['p99'], 1, 'ms')} (p99). The other conditions are not in real time.",
        ]
    )


def _success_row(name: str, success: Mapping | None) -> str:
    if success is None:
        return f"| {name} | not measured | | |"
    low, high = success["ci95"]
    return f"| {name} | {success['value']:.3f} | {success['episodes']} | {low:.3f} to {high:.3f} |"
