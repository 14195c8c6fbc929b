"""What admission said of a pass and what the engine made of it, in words."""

from collections.abc import Iterator

from vla_edge_ros.control.conformal import PATIENCE_HALF_LIVES, SHORTEST_HALF_LIFE_TICKS
from vla_edge_ros.control.decision import Decision
from vla_edge_ros.control.ladder import Step
from vla_edge_ros.engine.interface import STAGES
from vla_edge_ros.evaluation.explain.told_tick import ToldTick, between_ns, in_ms, they
from vla_edge_ros.figures import counted

_STEPS = {
    Step.FULL.value: "a whole pass",
    Step.FEWER_TOKENS.value: "one with fewer action tokens",
    Step.FEWER_FRAMES.value: "one over fewer frames",
    Step.REUSE.value: "using the last action again",
}


def admission_lines(tick: ToldTick) -> Iterator[str]:
    step, submitted = tick["step"], tick["submitted_work"]
    predicted_ns, allowance_ns = tick["predicted_ns"], tick["allowance_ns"]
    was_asked = step is not None or submitted is not None or predicted_ns is not None
    if not was_asked:
        if "submitted_work" in tick.record:
            yield "Admission was not asked: no pass was in question."
        return
    left_ns = None
    if None not in (tick.pass_cutoff_ns, tick.started_ns):
        left_ns = tick.pass_cutoff_ns - tick.started_ns
    if predicted_ns is not None:
        parts = tick["predicted_by_stage"] or {}
        by_stage = f" ({', '.join(f'{name} {in_ms(ns)}' for name, ns in parts.items())})" if parts else ""
        yield f"A pass was predicted to take {in_ms(predicted_ns)}{by_stage}."
    elif "predicted_ns" in tick.record:
        yield "Admission had no estimate yet."
    limits = []
    if allowance_ns is not None:
        limits.append(f"{in_ms(allowance_ns)} were kept free beside it, since misses are on the account")
        if not allowance_ns:
            limits = ["No allowance was kept free beside it"]
    if left_ns is not None:
        limits.append(f"{in_ms(left_ns)} were left until the cut-off")
    if limits:
        yield f"{'; '.join(limits)}."
    if tick["prices_ns"]:
        prices = (f"{_STEPS.get(name, name)} {in_ms(ns)}" for name, ns in tick["prices_ns"].items())
        yield f"What was found to be needed, allowance included: {', '.join(prices)}."
    yield from _verdict(tick, left_ns)


def _verdict(tick: ToldTick, left_ns: int | None) -> Iterator[str]:
    step = tick["step"]
    if step == Step.REUSE.value:
        yield "So no pass was begun: the picture was still that of the last one, whose action was used again."
        return
    spare_ns = None
    if None not in (tick["predicted_ns"], left_ns):
        spare_ns = left_ns - tick["predicted_ns"] - (tick["allowance_ns"] or 0)
    if tick["submitted_work"] is None:
        if not _was_refused(tick.record):
            return
        if spare_ns is not None and spare_ns >= 0:
            yield "That fits: a pass was refused for the reason given above, before any work began."
        else:
            yield "So a pass was refused, before any work began."
        return
    if step == Step.FEWER_TOKENS.value and tick["held_tokens"]:
        n = tick["held_tokens"]
        yield f"So a pass without the last {counted(n, 'token')} was begun: what {they(n)} would say is held."
    elif step == Step.FEWER_FRAMES.value and tick["forgotten_frames"]:
        yield f"So {counted(tick['forgotten_frames'], 'frame')} had to be forgotten, and a pass was begun."
    elif tick["is_probe"]:
        yield _try(tick, spare_ns)
    elif spare_ns is None:
        yield "So a whole pass was begun."
    else:
        yield (
            f"So a whole pass was begun, with {in_ms(spare_ns)} to spare."
            if spare_ns >= 0
            else f"It was too long by {in_ms(-spare_ns)}, and a whole pass was begun as a try."
        )


def _try(tick: ToldTick, spare_ns: int | None) -> str:
    """Why a pass was begun that does not fit by what was measured last."""
    n_refused = _refused_before(tick)
    begun = "a whole pass was begun as a try (a probe)"
    too_long = "" if spare_ns is None or spare_ns >= 0 else f" by {in_ms(-spare_ns)}"
    is_impatient = tick.estimator != "conformal" or n_refused is None or n_refused >= _patience(tick)
    if n_refused == 0 or (too_long and not is_impatient):
        return (
            f"It was too long{too_long}, no more than predictions were wrong by, and misses were to spare: "
            f"{begun}."
        )
    after = "" if n_refused is None else f" after {n_refused:,} refused in a row"
    reason = f"It was too long{too_long}" if too_long else "What was measured last does not fit"
    return f"{reason}; {begun}{after}."


def _patience(tick: ToldTick) -> float:
    """With fewer refused in a row the rule `conformal` begins none just since they were many."""
    earning_ticks = 1 / tick.target_miss_rate if tick.target_miss_rate else 0.0
    return max(SHORTEST_HALF_LIFE_TICKS, min(earning_ticks, PATIENCE_HALF_LIVES * SHORTEST_HALF_LIFE_TICKS))


def _refused_before(tick: ToldTick) -> int | None:
    """How many passes were, since one was begun; None where the record does not go back so far."""
    n = 0
    for earlier in reversed(tick.before):
        if earlier.get("submitted_work") is not None:
            return n
        n += _was_refused(earlier) or earlier.get("step") == Step.REUSE.value
    return None


def _was_refused(record: dict) -> bool:
    is_held = record.get("step") in (Step.HOLD.value, Step.STOP.value)
    is_refused = is_held or record["decision"] == Decision.HOLD_REFUSED.value
    return is_refused and record.get("submitted_work") is None


def engine_lines(tick: ToldTick) -> Iterator[str]:
    for work in tick["work"] or []:
        yield from _work(tick, work)
    submitted = tick["submitted_work"]
    if submitted is not None and tick.own is None:
        yield f"Its pass (work {submitted}) had not ended at the cut-off. {_later_end(tick, submitted)}"
    elif submitted is None and tick.decision is Decision.HOLD_BUSY:
        yield from _running(tick)
    if tick["top_probability"] is not None and tick["entropy"] is not None:
        yield (
            f"The model's confidence, mean over the tokens: greatest probability "
            f"{tick['top_probability']:.2f}, entropy {tick['entropy']:.2f} nats."
        )


def _work(tick: ToldTick, work: dict) -> Iterator[str]:
    is_own = work["work_id"] == tick["submitted_work"]
    kind = "pass" if work.get("kind") == "frame" else work.get("kind", "work")
    name = f"Its {kind}" if is_own else f"An earlier {kind}{_begun_by(tick, work['work_id'])}"
    took_ns = between_ns(work, "submitted_ns", "finished_ns")
    took = "" if took_ns is None else f" after {in_ms(took_ns)}"
    stages = work.get("stages", {})
    spent = ", ".join(f"{s} {in_ms(stages[f'{s}_ns'])}" for s in STAGES if stages.get(f"{s}_ns"))
    by_stage = f" ({spent})" if spent else ""
    if work.get("is_aborted"):
        yield f"{name} was stopped by the engine{took}{by_stage}{_where_stopped(work)}."
    elif work.get("kind") == "frame" and "frame_index" in work and work["frame_index"] is None:
        yield f"{name} ended{took}: the engine found no whole frame to read."
    else:
        yield f"{name} ended{took}{by_stage}{_margin(tick, work)}."
    if work.get("retained_frame") is not None:
        yield f"Its frame {work['retained_frame']} was put into memory."


def _where_stopped(work: dict) -> str:
    """In which stage, as far as the engine told what was done and what was to come."""
    remaining, stages = work.get("remaining", {}), work.get("stages", {})
    to_come = [stage for stage in STAGES if remaining.get(f"{stage}_ns")]
    done = [stage for stage in STAGES if stages.get(f"{stage}_ns")]
    stage = to_come[0] if to_come else done[-1] if done else None
    words = "" if stage is None else f" in {stage}"
    if "steps_done" in work:
        words += f" with {counted(work['steps_done'], 'token')} decoded"
    left_ns = sum(remaining.get(f"{stage}_ns", 0) for stage in STAGES)
    return f"{words}: {in_ms(left_ns)} were still to come at least" if left_ns else words


def _margin(tick: ToldTick, work: dict) -> str:
    """By how much the tick's own pass kept the cut-off, or missed it."""
    if work["work_id"] != tick["submitted_work"] or tick.pass_cutoff_ns is None or "finished_ns" not in work:
        return ""
    margin_ns = tick.pass_cutoff_ns - work["finished_ns"]
    return f", {in_ms(abs(margin_ns))} {'before' if margin_ns >= 0 else 'after'} the cut-off"


def _begun_by(tick: ToldTick, work_id: int) -> str:
    found = (t["tick"] for t in reversed(tick.before) if t.get("submitted_work") == work_id)
    number = next(found, None)
    return "" if number is None else f" (of tick {number})"


def _later_end(tick: ToldTick, work_id: int) -> str:
    for later in tick.after:
        for work in later.get("work", []):
            if work["work_id"] == work_id:
                took_ns = between_ns(work, "submitted_ns", "finished_ns")
                after = "" if took_ns is None else f", {in_ms(took_ns)} after it was begun"
                end = "that it was stopped" if work.get("is_aborted") else "its end"
                return f"Tick {later['tick']} saw {end}{after}."
    return "No later tick saw its end."


def _running(tick: ToldTick) -> Iterator[str]:
    """What the engine was busy with, known where a later tick saw its end."""
    later = ((t, work) for t in tick.after for work in t.get("work", []))
    seen_by, work = next(later, (None, {}))
    if (
        work
        and tick.started_ns is not None
        and work.get("submitted_ns", tick.started_ns + 1) <= tick.started_ns
    ):
        kind = "pass" if work.get("kind") == "frame" else work.get("kind", "work")
        age_ns = tick.started_ns - work["submitted_ns"]
        begun = f"{in_ms(age_ns)} before the tick began" if age_ns else "in this tick"
        took_ns = between_ns(work, "submitted_ns", "finished_ns")
        after = "" if took_ns is None else f", {in_ms(took_ns)} after that"
        end = "that it was stopped" if work.get("is_aborted") else "its end"
        yield f"A {kind} had been begun {begun}: tick {seen_by['tick']} saw {end}{after}."
