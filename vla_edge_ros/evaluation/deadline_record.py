"""The record of the deadline contract: put together from parts, judged, and told as a page.

A part is what one step of `deadline_check` wrote: `step`, `sources_sha256`, `device`, `date`, `versions`,
`wall_s`, and `figures`, the step's own document. There may be several of `live`.
"""

from collections.abc import Mapping, Sequence
from operator import itemgetter

from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.musts import Must, Record, late_allowed, markdown_table
from vla_edge_ros.evaluation.record_parts import require_alike
from vla_edge_ros.figures import in_words

KEYS = (
    *("late_publishes", "bare_loop_late", "ticks", "misses_over_target_max", "goodput_over_causal_min"),
    *("goodput_below_tuned_ema_max", "recovery_ticks", "decision_us_p99"),
    *("device", "date", "versions", "sources_sha256"),
)
"""What a whole record has at its top level, among other things."""

TICKS, LIVE_SECONDS, STUDY_TICKS = 100_000, 1800, 1_000_000
"""What a whole record is measured from."""

MUSTS = (
    Must("ticks, live and accelerated", "ticks", ">=", TICKS),
    Must("real time under CPU hogs", "live_seconds", ">=", LIVE_SECONDS, None, "s"),
    Must("SCHED_FIFO priority of the node", "fifo_priority", ">=", 1),
    Must("late publishes", "late_publishes", "<=", late_allowed, 0),
    Must("ticks of each simulated trace", "study_ticks", ">=", STUDY_TICKS),
    Must("misses over the target, worst trace", "misses_over_target_max", "<=", 1.1, 1.0, "x"),
    Must("goodput over the causal, worst of five", "goodput_over_causal_min", ">=", 0.9, None, "%", 100),
    Must("goodput below the best-tuned ema", "goodput_below_tuned_ema_max", "<=", 0.02, None, "points", 100),
    Must("refused where all could be afforded", "refused_where_affordable_max", "<=", 0.01, None, "%", 100),
    Must("FRESH again after one pass of 80 ms, ticks", "recovery_ticks", "<=", 3, 1),
    Must("refused after one pass of 80 ms, ticks", "refused_after_hiccup", "<=", 0),
    Must("admission's own cost a tick, p99", "decision_us_p99", "<=", 50, None, "us"),
)

NOT_TUNED: Mapping = {"rows": (), "best_ema": ()}
_SAME = ("sources_sha256", "device")
_SAME_GOODPUT = 0.001
"""Two runs of the same rule on the same trace are no further apart, whatever machine made the traces."""
_SUMS = ("ticks", "late_publishes", "late_wakes", "skipped_ticks", "fresh", "misses")


def merge(parts: Sequence[dict], tuned: Mapping = NOT_TUNED) -> dict:
    """The record of these parts; a figure whose step is missing is None.

    tuned: what `admission_study --tune-ema` wrote, `rows` and `best_ema`.
    Raises UserError, one line, where parts are of different sources or devices, where there are none, and
    where `tuned` is of another rule than the part `study`.
    """
    require_alike(parts, _SAME)
    live = [part["figures"] for part in parts if part["step"] == "live"]
    others = {part["step"]: part["figures"] for part in parts if part["step"] != "live"}
    accelerated, study = others.get("accelerated", {}), others.get("study", {})
    recovery, decision = others.get("recovery", {}), others.get("decision", {})
    _require_same_rule(study.get("rows", ()), tuned["rows"])
    best_ema = [row for row in tuned["best_ema"] if row["ema"] is not None]
    latest = max(parts, key=lambda part: part["date"])
    return {
        **{name: latest[name] for name in ("date", *_SAME, "versions", "machine")},
        # Late and bare count only together: without live parts there is nothing to compare.
        "late_publishes": _sum("late_publishes", [*live, accelerated]) if live else None,
        "bare_loop_late": sum(part["bare_loop"]["late"] for part in live) if live else None,
        "ticks": _sum("ticks", [*live, accelerated]) or None,
        "live_seconds": _sum("seconds", live) or None,
        "fifo_priority": min((part["fifo_priority"] for part in live), default=None),
        "misses_over_target_max": study.get("misses_over_target_max"),
        "goodput_over_causal_min": study.get("goodput_over_causal_min"),
        "goodput_below_tuned_ema_max": max(map(_below_ema, best_ema), default=None),
        "refused_where_affordable_max": study.get("refusals_where_affordable_max"),
        "study_ticks": study.get("ticks"),
        "recovery_ticks": recovery.get("recovery_ticks"),
        "refused_after_hiccup": recovery.get("refused"),
        "decision_us_p99": decision.get("p99"),
        "live": {
            **{name: _sum(name, live) for name in _SUMS},
            "bare_loop_ticks": sum(part["bare_loop"]["ticks"] for part in live),
            "start_error_ms_max": max((part["start_error_ms"]["max"] for part in live), default=None),
            "stretches": len(live),
            "hogs": max((part["hogs"] for part in live), default=None),
            "engine": live[-1]["engine"] if live else None,
        },
        "accelerated": accelerated,
        "recovery": recovery,
        "decision_us": decision,
        "study": study,
        "best_ema": best_ema,
        "steps": [{name: part[name] for name in ("step", "date", "wall_s")} for part in parts],
    }


def _require_same_rule(study: Sequence[dict], tuned: Sequence[dict]) -> None:
    """Raises UserError, one line, where rows of the same trace, target and ticks differ in goodput."""
    key = itemgetter("trace", "target", "rule", "ticks")
    goodput = {key(row): row["goodput"] for row in study}
    for row in tuned:
        measured = goodput.get(key(row), row["goodput"])
        if abs(measured - row["goodput"]) > _SAME_GOODPUT:
            raise UserError(
                f"ema was tuned beside another rule than the part study is of: on {row['trace']} at "
                f"{row['target']:.1%} its goodput was {row['goodput']:.2%}, and is {measured:.2%}; run "
                "admission_study --tune-ema again"
            )


def _below_ema(row: Mapping) -> float:
    return row["ema"] - row["conformal"]


def page(record: Record) -> str:
    """The text of docs/deadline.md."""
    machine, live = record["machine"], record["live"]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    accelerated = record["accelerated"].get("ticks", 0)
    lines = [
        "# The deadline, measured",
        "",
        "Generated from `docs/benchmarks/deadline.json` by "
        "`python -m vla_edge_ros.evaluation.deadline_check record`.",
        "",
        *markdown_table(record, MUSTS),
        "",
        f"{record['device']}, {machine['cores']} cores, {machine['platform']}; {versions}; "
        f"{record['date'][:10]}.",
        "",
        f"- Late publishes: {live['ticks']:,} ticks of the real node at 30 Hz, in stretches "
        f"({live['stretches']}), a process that computes without end on every core, beside "
        f"{live['bare_loop_ticks']:,} of the bare loop at the same priority, "
        f"{in_words(record['bare_loop_late'])} of which were late. Of the node's late ticks "
        f"{in_words(live['late_wakes'])} woke after the effect time, as those of the bare loop did. Also "
        f"counted are {accelerated:,} ticks of the whole controller on a virtual clock, over all simulated "
        "traces, where only its own logic could be late.",
        "- Misses and goodput: twelve simulated traces, two targets ([admission.md](admission.md)). `ema` "
        "was tuned in hindsight for five of them: `best_ema` of `docs/benchmarks/admission.json`.",
        "- FRESH again: the whole controller on a virtual clock; 1 is the next tick.",
        "",
    ]
    return "\n".join(lines)


def _sum(name: str, figures: Sequence[dict]) -> float:
    return sum(part.get(name, 0) for part in figures)
