"""What a tick's decision means for the arm, in words."""

from collections.abc import Iterator

from vla_edge_ros.control.decision import Decision
from vla_edge_ros.evaluation.explain.told_tick import ToldTick, in_ms

_CANCELLING = ("instruction", "reset_memory", "clock_jump", "enable", "disable")
"""Events at which what was planned is dropped and motion comes to rest."""


def arm_lines(tick: ToldTick) -> Iterator[str]:
    if tick["is_enabled"] is None:
        return
    if not tick["is_enabled"]:
        yield "Motion was disabled: no action was sent, whatever the decision."
        return
    if tick.decision.is_fresh:
        sent = "A new trajectory was sent, and it" if tick["trajectory_ns"] is not None else "The new action"
        yield f"{sent} is executed{_values(tick)}."
        return
    motion = _motion_before(tick)
    if motion == _STOPPED:
        yield "Motion had been stopped, and no fresh action has ended that."
    elif not tick.decision.is_hold:
        yield (
            "Motion is being stopped: a trajectory that is being followed is braked to rest; in command "
            f"groups positions repeat, grippers stay and velocities go to zero{_values(tick)}."
        )
    elif motion == _CANCELLED:
        yield (
            "What was planned had been cancelled by an event, with a trajectory braked to rest, and no fresh "
            f"action has come since: the arm holds{_values(tick)}."
        )
    elif motion == _FOLLOWING:
        ttl = "" if tick.ttl_ns is None else f", at most {in_ms(tick.ttl_ns)} from its frame's capture"
        yield (
            f"No trajectory was sent: its controller goes on with the one before to its end{ttl}. Command "
            "groups get the next step, else positions repeat, grippers stay and velocities go to zero"
            f"{_values(tick)}."
        )
    else:
        yield "No fresh action had come yet: the arm holds."
    if tick["hold_ns"] is not None:
        most = "" if tick.max_hold_ns is None else f"; longer than {in_ms(tick.max_hold_ns)} is a SAFE_STOP"
        ago = in_ms(tick["hold_ns"])
        yield f"At its effect time the last fresh action, or enabling, was {ago} ago{most}."


_FOLLOWING, _STOPPED, _CANCELLED = "following", "stopped", "cancelled"


def _motion_before(tick: ToldTick) -> str | None:
    """What motion was before this tick's decision; None where nothing has moved the arm since activation."""
    if _has_cancelled(tick.record):
        return _CANCELLED
    later = tick["tick"]
    for earlier in reversed(tick.before):
        if earlier["tick"] >= later:
            return None
        later, decision = earlier["tick"], Decision(earlier["decision"])
        if decision.is_fresh:
            return _FOLLOWING if earlier.get("is_enabled") else None
        if not decision.is_hold:
            return _STOPPED
        if _has_cancelled(earlier):
            return _CANCELLED
    return None


def _has_cancelled(record: dict) -> bool:
    return any(event.get("event") in _CANCELLING for event in record.get("events", []))


def _values(tick: ToldTick) -> str:
    action = tick["action"]
    return f" (values, limited: {', '.join(f'{value:.4g}' for value in action)})" if action else ""
