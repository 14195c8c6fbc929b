"""How long a pass takes at full memory, by stage."""

import time
from contextlib import ExitStack, closing

import numpy as np

from vla_edge_ros.engine.factory import make_engine
from vla_edge_ros.engine.interface import (
    FRAME_TOKENS,
    STAGES,
    Engine,
    EngineError,
    EngineSpec,
    FrameWork,
    PromptWork,
    WorkResult,
    WorkStatus,
)
from vla_edge_ros.figures import percentiles
from vla_edge_ros.memory.frame_memory import FrameMemory
from vla_edge_ros.memory.policies import make_policy
from vla_edge_ros.perception.frame_buffer import FrameBuffer

PASS_TIMEOUT_S = 60
PROMPT_TOKENS = 20


def pass_times(spec: EngineSpec, n: int) -> dict:
    """Time `n` passes of the spec's engine, in this process and at full memory.

    Returns `backend`, `plan_id`, `passes`, `context_tokens` that each pass attends to, and under `ms`, for
    each stage and for a pass in `total`, its percentiles. Raises EngineError as `make_engine` and
    `Engine.configure` do, and where a pass fails.
    """
    with ExitStack() as cleanup:
        frames = cleanup.enter_context(closing(FrameBuffer.create()))
        engine = cleanup.enter_context(closing(make_engine(spec, frames)))
        info = engine.configure()
        memory = FrameMemory(spec.n_slots, spec.action_tokens, make_policy("fifo"), info.embedding_size)
        fill_prompt(engine, memory)
        noise = np.random.default_rng(spec.seed)
        results = []
        for tick in range(memory.capacity_frames + n):
            pixels = noise.integers(0, 256, (frames.height, frames.width, 3), np.uint8)
            frames.write(pixels, tick, tick, tick)
            results.append(run_pass(engine, memory, tick))
        timed = results[memory.capacity_frames :]
    times = {stage: [getattr(result.stages, f"{stage}_ns") for result in timed] for stage in STAGES}
    times["total"] = [result.finished_ns - result.started_ns for result in timed]
    return {
        "backend": info.backend,
        "plan_id": info.plan_id,
        "passes": n,
        "context_tokens": PROMPT_TOKENS + FRAME_TOKENS * (memory.capacity_frames - 1),
        "ms": {stage: percentiles([ns / 1e6 for ns in durations]) for stage, durations in times.items()},
    }


def fill_prompt(engine: Engine, memory: FrameMemory) -> None:
    """A prompt of `PROMPT_TOKENS`."""
    slots = memory.set_prompt(PROMPT_TOKENS)
    run_work(engine, PromptWork(0, np.arange(PROMPT_TOKENS, dtype=np.int32), slots))


def run_pass(engine: Engine, memory: FrameMemory, tick: int) -> WorkResult:
    """One pass after the evictions that it needs, its frame retained."""
    for evicted in memory.make_room(tick):
        engine.evict(evicted.slots)
    work = FrameWork(tick, memory.context_slots(), memory.frame_slots, memory.action_slots)
    result = run_work(engine, work)
    memory.retain(result.frame, result.embedding, tick)
    return result


def run_work(engine: Engine, work: PromptWork | FrameWork) -> WorkResult:
    """Raises EngineError where it is not DONE within `PASS_TIMEOUT_S`."""
    engine.submit(work)
    result = engine.wait(time.monotonic_ns() + PASS_TIMEOUT_S * 1_000_000_000)
    if result is None:
        raise EngineError(f"a timed pass did not end within {PASS_TIMEOUT_S} s")
    if result.status is not WorkStatus.DONE:
        raise EngineError(f"a timed pass failed: {result.error or result.status.name}")
    return result
