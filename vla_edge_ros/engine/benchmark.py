"""How long a pass takes at full memory, by stage."""

import numpy as np

from vla_edge_ros.engine.interface import (
    EngineError,
    EngineSpec,
    FrameWork,
    PromptWork,
    WorkResult,
    WorkStatus,
)
from vla_edge_ros.engine.numpy_engine import NumpyEngine
from vla_edge_ros.engine.recording import NoiseFrames
from vla_edge_ros.figures import percentiles
from vla_edge_ros.memory import FRAME_TOKENS, FrameMemory, make_policy

_PROMPT_TOKENS = 20
_STAGES = ("copy", "vision", "prefill", "decode")


def pass_times(spec: EngineSpec, n: int) -> dict:
    """Time `n` passes of the NumPy engine, in this thread and at full memory.

    Returns `plan_id`, `passes`, `context_tokens` that each pass attends to, and under `ms`, for each stage
    and for a pass in `total`, its percentiles. Raises EngineError as `NumpyEngine.configure` does.
    """
    engine = NumpyEngine(spec, NoiseFrames(spec.seed))
    info = engine.configure()
    memory = FrameMemory(spec.n_slots, spec.action_tokens, make_policy("fifo"), info.embedding_size)
    slots = memory.set_prompt(_PROMPT_TOKENS)
    _run(engine, PromptWork(0, np.arange(_PROMPT_TOKENS, dtype=np.int32), slots))
    for tick in range(memory.capacity_frames):
        _run_pass(engine, memory, tick)
    results = [_run_pass(engine, memory, memory.capacity_frames + tick) for tick in range(n)]
    engine.close()
    times = {stage: [getattr(result.stages, f"{stage}_ns") for result in results] for stage in _STAGES}
    times["total"] = [result.finished_ns - result.started_ns for result in results]
    return {
        "plan_id": info.plan_id,
        "passes": n,
        "context_tokens": _PROMPT_TOKENS + FRAME_TOKENS * (memory.capacity_frames - 1),
        "ms": {stage: percentiles([ns / 1e6 for ns in durations]) for stage, durations in times.items()},
    }


def _run_pass(engine: NumpyEngine, memory: FrameMemory, tick: int) -> WorkResult:
    for evicted in memory.make_room(tick):
        engine.evict(evicted.slots)
    work = FrameWork(tick, memory.context_slots(), memory.frame_slots, memory.action_slots)
    result = _run(engine, work)
    memory.retain(result.frame, result.embedding, tick)
    return result


def _run(engine: NumpyEngine, work: PromptWork | FrameWork) -> WorkResult:
    engine.submit(work)
    result = engine.wait(0)
    if result.status is not WorkStatus.DONE:
        raise EngineError(f"a timed pass failed: {result.error}")
    return result
