"""The least that a pass takes on this machine: a deadline below it is refused before the first frame."""

import math
from collections.abc import Callable

import numpy as np

from vla_edge_ros.control.clock import Clock
from vla_edge_ros.control.schedule import TickSchedule
from vla_edge_ros.engine.interface import (
    FRAME_TOKENS,
    Engine,
    EngineError,
    FrameWork,
    WorkResult,
    WorkStatus,
)
from vla_edge_ros.errors import UserError
from vla_edge_ros.perception.frame_buffer import FrameBuffer

PASSES = 5
"""Of so many the shortest counts: one may be cold, or meet whatever else runs."""
_LOOK_NS = 100_000_000
_LONGEST_NS = 60_000_000_000


class DeadlineTooTight(UserError):
    """No pass can end in time; one line says which deadline could be kept."""


def require_time(
    engine: Engine,
    frames: FrameBuffer,
    action_tokens: int,
    schedule: TickSchedule,
    clock: Clock,
    should_abandon: Callable[[], bool] = lambda: False,
) -> None:
    """Run up to PASSES passes over an empty memory and a black frame, until one ends within the cut-off.

    engine: configured, with nothing in flight; its memory is written anew by whoever comes next.
    frames: without a frame yet, and again without one afterwards.
    Raises DeadlineTooTight where none does, EngineError where the engine fails.
    """
    budget_ns = schedule.deadline_ns - schedule.margin_ns
    black = np.zeros((frames.height, frames.width, 3), np.uint8)
    frames.write(black, 0, clock.now_ns(), clock.now_ns())
    try:
        least_ns = math.inf
        for work_id in range(1, PASSES + 1):
            least_ns = min(least_ns, _pass_ns(engine, work_id, action_tokens, clock, should_abandon))
            if least_ns <= budget_ns:
                return
    finally:
        frames.clear()
    needed_ms = math.ceil((least_ns + schedule.margin_ns) / 1e5) / 10
    raise DeadlineTooTight(
        f"control.deadline_ms is {schedule.deadline_ns / 1e6:g}, which with control.margin_ms leaves a pass "
        f"{budget_ns / 1e6:g} ms, and the shortest of {PASSES} over an empty memory took "
        f"{least_ns / 1e6:.1f} ms here: set it and control.period_ms above {needed_ms:g}, or use a smaller "
        "engine.model; `vla-edge doctor --seconds 30` measures what can be promised"
    )


def _pass_ns(
    engine: Engine, work_id: int, action_tokens: int, clock: Clock, should_abandon: Callable[[], bool]
) -> int:
    slots = np.arange(FRAME_TOKENS + action_tokens, dtype=np.int32)
    begun_ns = clock.now_ns()
    engine.submit(FrameWork(work_id, slots[:0], slots[:FRAME_TOKENS], slots[FRAME_TOKENS:]))
    result: WorkResult | None = None
    while result is None:
        if should_abandon():
            raise EngineError("the engine was closed while its first passes were measured")
        if clock.now_ns() - begun_ns > _LONGEST_NS:
            raise EngineError(f"a first pass did not end within {_LONGEST_NS / 1e9:g} s")
        result = engine.wait(clock.now_ns() + _LOOK_NS)
    if result.status is not WorkStatus.DONE:
        raise EngineError(result.error or f"a first pass came to {result.status.name}")
    return result.finished_ns - begun_ns
