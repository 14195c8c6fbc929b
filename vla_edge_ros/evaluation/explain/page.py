"""Why one tick decided as it did, in plain words; each sentence is of fields that the run recorded."""

from collections.abc import Iterator
from typing import NamedTuple

from vla_edge_ros.control.decision import Decision
from vla_edge_ros.control.ladder import Step
from vla_edge_ros.errors import printable
from vla_edge_ros.evaluation.explain.of_arm import arm_lines
from vla_edge_ros.evaluation.explain.of_pass import admission_lines, engine_lines
from vla_edge_ros.evaluation.explain.recorded_ticks import RecordedTicks, is_miss
from vla_edge_ros.evaluation.explain.told_tick import ToldTick, in_ms, in_seconds, were
from vla_edge_ros.figures import counted

MEANING = {
    Decision.FAULT: "the engine failed or the tick had a defect: motion is stopped",
    Decision.SAFE_STOP: "motion is stopped",
    Decision.FRESH: "an action of this tick's own, in time",
    Decision.FRESH_LATE: "the action of an earlier tick's pass, which had ended too late for that tick",
    Decision.HOLD_NO_FRAME: "no new frame to act on",
    Decision.HOLD_STALE_FRAME: "the newest frame was too old to act on",
    Decision.HOLD_BUSY: "the engine was not free for a pass",
    Decision.HOLD_REFUSED: "admission let no pass begin: none was expected to end in time, or the misses "
    "that the target allows are spent",
    Decision.HOLD_LATE: "a pass was begun and gave no action in time",
}
"""Each decision in a few words; docs/decisions.md has them whole."""


class Section(NamedTuple):
    title: str
    lines: list[str]


def explain(run: RecordedTicks, place: int) -> list[Section]:
    """The page on `run.ticks[place]`; a section of which nothing was recorded is left out."""
    tick = ToldTick(run, place)
    sections = {
        f"tick {tick['tick']}: {tick['decision']}": _heading(tick),
        "time": _time(tick),
        "frame": _frame(tick),
        "events": _events(tick),
        "admission": admission_lines(tick),
        "engine": engine_lines(tick),
        "memory": _memory(tick),
        "published": _published(tick),
        "the arm": arm_lines(tick),
    }
    pages = [Section(title, [printable(line) for line in lines]) for title, lines in sections.items()]
    return [section for section in pages if section.lines]


def _heading(tick: ToldTick) -> Iterator[str]:
    yield f"{MEANING[tick.decision].capitalize()}."
    if tick["reason"]:
        yield f"The reason given: {tick['reason']}."
    if is_miss(tick.record):
        yield "It counts as a miss: a pass was begun and was late, stopped or failed."


def _time(tick: ToldTick) -> Iterator[str]:
    if None not in (tick.scheduled_ns, tick.started_ns):
        off_ns = tick.started_ns - tick.scheduled_ns
        first_ns = next((t["scheduled_ns"] for t in tick.before if "scheduled_ns" in t), tick.scheduled_ns)
        since = f", {(tick.scheduled_ns - first_ns) / 1e9:.3f} s after the first tick of the record"
        yield f"It began {in_ms(abs(off_ns))} {'after' if off_ns >= 0 else 'before'} its time{since}."
    if n := tick["skipped_ticks"]:
        yield f"{counted(n, 'tick')} before it {were(n)} missed whole."
    if tick.cutoff_ns is not None:
        yield (
            f"It had to be decided {in_ms(tick.cutoff_ns - tick.scheduled_ns)} after its time (the cut-off) "
            f"and published {in_ms(tick.effect_ns - tick.scheduled_ns)} after it (the effect time)."
        )
    if None not in (tick.cutoff_ns, tick["pass_cutoff_ns"]) and tick.cutoff_ns > tick["pass_cutoff_ns"]:
        yield (
            "A pass over the newest frame had to end "
            f"{in_ms(tick.cutoff_ns - tick['pass_cutoff_ns'])} before that: its deadline counts from capture."
        )
    if tick["effect_stamp_ns"] is not None:
        yield f"Its effect time in ROS time is {in_seconds(tick['effect_stamp_ns'])}."


def _frame(tick: ToldTick) -> Iterator[str]:
    seen, index = tick["seen_frame"], tick["frame_index"]
    if seen == 0 and tick.decision is Decision.HOLD_NO_FRAME:
        yield "There was no frame yet."
    if seen and index is None:
        yield f"The newest frame, {seen}, was not newer than the last one used."
    if index is None:
        return
    if not tick.decision.is_fresh or tick["step"] == Step.REUSE.value:
        yield f"The newest frame was {index}, newer than any used before.{_age(tick)}"
    elif tick.decision is Decision.FRESH_LATE:
        yield f"The action is of frame {index}, which the earlier pass had used.{_age(tick)}"
    else:
        yield f"The action is of frame {index}, newer than any used before.{_age(tick)}"
    if seen and seen != index:
        yield f"When the tick looked, the newest was {seen}."
    if tick["frame_stamp_ns"] is not None:
        yield (
            f"Its stamp is {in_seconds(tick['frame_stamp_ns'])}."
            if tick["frame_stamp_ns"]
            else "It has no stamp: its age is counted from its receipt."
        )
    if n := tick["skipped_frames"]:
        yield f"{counted(n, 'frame')} since the one used before {were(n)} overtaken and never used."


def _age(tick: ToldTick) -> str:
    age_ns, receipt_ns = tick["frame_age_ns"], tick["frame_receipt_ns"]
    if age_ns is None:
        return ""
    received = ""
    if None not in (receipt_ns, tick.started_ns):
        off_ns = tick.started_ns - receipt_ns
        received = f" and was received {in_ms(abs(off_ns))} {'before' if off_ns >= 0 else 'after'} that"
    return f" It was {in_ms(age_ns)} old when the tick began{received}."


def _events(tick: ToldTick) -> Iterator[str]:
    for event in tick["events"] or []:
        match event.get("event"):
            case "instruction":
                yield f"A new instruction, {event.get('text', '')!r}: what was planned before was cancelled."
            case "reset_memory":
                yield "Memory was to be emptied: what was planned before was cancelled."
            case "enable":
                yield "Motion was to be enabled."
            case "disable":
                yield "Motion was to be disabled."
            case "clock_jump":
                jump = f" by {event['delta_ns'] / 1e9:+.3f} s" if "delta_ns" in event else ""
                yield f"The ROS clock jumped{jump}: frames and memory of before are void."
            case "engine_replaced":
                plan = f", plan {event['plan_id']}" if "plan_id" in event else ""
                yield f"A fresh engine took over{plan}: its memory is empty."
            case "retune":
                yield "Parameters of control or admission were changed."
            case str(name):
                yield f"An event that is not known here: {name}."


def _memory(tick: ToldTick) -> Iterator[str]:
    for line in tick["journal"] or []:
        by = f" by the policy {line['policy']}" if "policy" in line else ""
        why = f": {line['reason']}" if "reason" in line else ""
        yield f"Frame {line.get('frame', '?')} was forgotten{by}{why}."
    if (n := tick["retained_frames"]) is not None:
        yield f"{counted(n, 'frame')} {were(n)} in memory at its end."


def _published(tick: ToldTick) -> Iterator[str]:
    if None not in (tick["trajectory_ns"], tick.scheduled_ns):
        sent_ns = tick["trajectory_ns"] - tick.scheduled_ns
        yield f"The trajectory was handed over {in_ms(sent_ns)} after its time."
    if tick["published_ns"] is not None and tick.scheduled_ns is not None:
        out = f"The last message was out {in_ms(tick['published_ns'] - tick.scheduled_ns)} after its time"
        if tick.effect_ns is None:
            yield f"{out}, which was late." if tick["is_late"] else f"{out}."
        else:
            off_ns = tick.effect_ns - tick["published_ns"]
            yield (
                f"{out}, {in_ms(off_ns)} before its effect time: in time."
                if off_ns >= 0
                else f"{out}, {in_ms(-off_ns)} after its effect time: late.{_where_late(tick)}"
            )
    if n := tick["steps_dropped"]:
        yield f"{counted(n, 'action step')} {were(n)} dropped: due too soon, too old, or no action."


def _where_late(tick: ToldTick) -> str:
    if None in (tick["woke_ns"], tick.cutoff_ns):
        return ""
    return (
        f" The wait for the cut-off ended {in_ms(max(0, tick['woke_ns'] - tick.cutoff_ns))} after it, and "
        f"publishing took {in_ms(tick['published_ns'] - tick['woke_ns'])}."
    )
