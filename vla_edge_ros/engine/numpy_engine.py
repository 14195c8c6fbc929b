"""The reference engine: a pass in NumPy, in the calling thread."""

import math
import time
from typing import Protocol

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from vla_edge_ros.engine.interface import (
    FRAME_TOKENS,
    MAX_ACTION_TOKENS,
    EngineBusy,
    EngineError,
    EngineInfo,
    EngineSpec,
    FrameWork,
    PromptWork,
    StageTimes,
    WorkResult,
    WorkStatus,
)
from vla_edge_ros.engine.model_config import ModelConfig
from vla_edge_ros.engine.numpy_decoder import NumpyDecoder, kv_buffers, weight_buffers, work_buffers
from vla_edge_ros.engine.vision import FRAME_HEIGHT, FRAME_WIDTH, PATCH_SIZE, patches
from vla_edge_ros.engine.weights import VISION_BIAS, VISION_WEIGHT, open_weights
from vla_edge_ros.perception.frame import FrameMeta

ACTION_ROWS = 256
"""The last rows of the vocabulary are the actions; the row before them is the action-start token."""


class FrameSource(Protocol):
    def read_into(self, out: np.ndarray) -> FrameMeta | None:
        """Copy the newest whole frame to `out` (64, 128, 3) uint8; None where there is none."""


class NumpyEngine:
    """`Engine` in the calling process: `submit` computes before it returns, and `wait` hands the result out.

    Use it for replay, tests and as the arithmetic inside an engine process; a control thread that must not
    wait gives it a process of its own.
    """

    def __init__(self, spec: EngineSpec, frames: FrameSource):
        self._spec = spec
        self._frames = frames
        self._decoder: NumpyDecoder | None = None
        self._result: WorkResult | None = None
        self._failure = ""
        self._thread_limit: threadpool_limits | None = None

    def configure(self) -> EngineInfo:
        spec = self._spec
        if not 1 <= spec.action_tokens <= MAX_ACTION_TOKENS:
            raise EngineError(f"action_tokens is {spec.action_tokens}; wanted 1 to {MAX_ACTION_TOKENS}")
        config, weights = open_weights(spec.model, spec.seed)
        account = account_bytes(config, spec.n_slots)
        total = sum(account.values())
        if total > spec.budget_bytes:
            parts = ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in account.items())
            raise EngineError(
                f"model {spec.model!r} with {spec.n_slots} slots needs {total / 1e6:.0f} MB ({parts}) and "
                f"memory.budget_bytes is {spec.budget_bytes / 1e6:.0f} MB: raise it, or take fewer slots or a "
                "smaller model"
            )
        if spec.blas_threads > 0:
            self._thread_limit = threadpool_limits(spec.blas_threads, user_api="blas")
        self._config = config
        self._decoder = NumpyDecoder(config, weights, spec.n_slots, FRAME_TOKENS)
        self._patch_weight = weights.read(
            VISION_WEIGHT, np.empty((config.hidden_size, PATCH_SIZE), np.float32)
        )
        self._patch_bias = weights.read(VISION_BIAS, np.empty(config.hidden_size, np.float32))
        self._pixels = np.zeros((FRAME_HEIGHT, FRAME_WIDTH, 3), np.uint8)
        self._patches = np.zeros((FRAME_TOKENS, PATCH_SIZE), np.float32)
        self._frame_states = np.zeros((FRAME_TOKENS, config.hidden_size), np.float32)
        self._logits = np.zeros(ACTION_ROWS, np.float32)
        self._warm_up()
        return EngineInfo(
            backend="numpy",
            plan_id=_plan_id(),
            vocabulary_size=config.vocab_size,
            embedding_size=config.hidden_size,
            account_bytes=account,
        )

    def submit(self, work: PromptWork | FrameWork) -> None:
        if self._decoder is None:
            raise EngineError("the engine is not configured, or closed")
        if self._result is not None:
            raise EngineBusy(
                f"work {work.work_id} was submitted before work {self._result.work_id} was claimed"
            )
        started = time.monotonic_ns()
        result = WorkResult(work.work_id, WorkStatus.DONE, started_ns=started)
        if self._failure:
            result.status, result.error = WorkStatus.FAILED, self._failure
        elif isinstance(work, PromptWork):
            self._check_slots(work.slots, len(work.tokens), "prompt")
            self._fill_prompt(work, result)
        else:
            self._check_slots(work.frame_slots, FRAME_TOKENS, "frame")
            self._check_slots(work.action_slots, self._spec.action_tokens, "action")
            self._check_slots(work.context_slots, len(work.context_slots), "context")
            self._run_frame(work, result)
        result.finished_ns = time.monotonic_ns()
        self._result = result

    def wait(self, until_ns: int) -> WorkResult | None:
        """The result of the submitted work, at once: it is complete when `submit` returns."""
        result, self._result = self._result, None
        return result

    def evict(self, slots: np.ndarray) -> None:
        self._decoder.forget(slots)

    def close(self) -> None:
        self._decoder = None
        if self._thread_limit is not None:
            self._thread_limit.restore_original_limits()
            self._thread_limit = None

    def _fill_prompt(self, work: PromptWork, result: WorkResult) -> None:
        decoder = self._decoder
        with np.errstate(all="ignore"):
            decoder.start(work.slots[:0])
            for first in range(0, len(work.tokens), decoder.max_tokens):
                chunk = slice(first, first + decoder.max_tokens)
                decoder.extend(decoder.embed_tokens(work.tokens[chunk]), work.slots[chunk])
        result.stages.prefill_ns = time.monotonic_ns() - result.started_ns

    def _run_frame(self, work: FrameWork, result: WorkResult) -> None:
        result.frame = self._frames.read_into(self._pixels)
        if result.frame is None:
            result.status = WorkStatus.NO_FRAME
            return
        result.stages.copy_ns = time.monotonic_ns() - result.started_ns
        with np.errstate(all="ignore"):
            self._pass(work, result)
        if self._failure:
            result.status, result.error = WorkStatus.FAILED, self._failure

    def _pass(self, work: FrameWork, result: WorkResult) -> None:
        decoder, stages, n_actions = self._decoder, result.stages, self._spec.action_tokens
        began = time.monotonic_ns()
        states = self._embed_frame()
        result.embedding = np.mean(states, axis=0)
        embedded = time.monotonic_ns()
        stages.vision_ns = embedded - began

        decoder.start(work.context_slots)
        decoder.extend(states, work.frame_slots)
        prefilled = time.monotonic_ns()
        stages.prefill_ns = prefilled - embedded

        first_action = self._config.vocab_size - ACTION_ROWS
        result.tokens = np.zeros((1, n_actions), np.int32)
        result.top_probability = np.zeros((1, n_actions), np.float32)
        result.entropy = np.zeros((1, n_actions), np.float32)
        token = first_action - 1
        for step in range(n_actions):
            normed = decoder.extend(
                decoder.embed_tokens(np.array([token])), work.action_slots[step : step + 1]
            )
            np.matmul(decoder.embed[first_action:], normed[0], out=self._logits)
            if not np.isfinite(self._logits).all():
                self._failure = f"logits of decode step {step} are not finite; the engine must be replaced"
                break
            action = int(np.argmax(self._logits))
            token = first_action + action
            result.tokens[0, step] = token
            result.top_probability[0, step], result.entropy[0, step] = _confidence(self._logits)
        stages.decode_ns = time.monotonic_ns() - prefilled

    def _embed_frame(self) -> np.ndarray:
        patches(self._pixels, self._patches)
        np.matmul(self._patches, self._patch_weight.T, out=self._frame_states)
        self._frame_states += self._patch_bias
        return self._frame_states

    def _check_slots(self, slots: np.ndarray, n: int, kind: str) -> None:
        if len(slots) != n:
            raise ValueError(f"{len(slots)} {kind} slots for {n} tokens")
        if n and not 0 <= int(slots.min()) <= int(slots.max()) < self._spec.n_slots:
            raise ValueError(f"a {kind} slot lies outside 0..{self._spec.n_slots - 1}")

    def _warm_up(self) -> None:
        slots = np.arange(self._spec.n_slots, dtype=np.int32)
        result = WorkResult(0, WorkStatus.DONE, stages=StageTimes())
        a = self._spec.action_tokens
        frame, actions = slots[:FRAME_TOKENS], slots[FRAME_TOKENS : FRAME_TOKENS + a]
        with np.errstate(all="ignore"):
            self._pass(FrameWork(0, slots[:0], frame, actions), result)
        if self._failure:
            raise EngineError(f"warm-up failed: {self._failure}")
        self._decoder.forget(slots)


def account_bytes(config: ModelConfig, n_slots: int) -> dict[str, int]:
    """Bytes that an engine of this geometry allocates, by purpose; all float32."""
    sizes = {
        "weights": weight_buffers(config) | {"vision": (config.hidden_size, PATCH_SIZE + 1)},
        "kv": kv_buffers(config, n_slots),
        "workspace": work_buffers(config, n_slots, FRAME_TOKENS),
    }
    return {
        purpose: 4 * sum(math.prod(shape) for shape in buffers.values()) for purpose, buffers in sizes.items()
    }


def _confidence(logits: np.ndarray) -> tuple[float, float]:
    """Top probability and entropy (nats) of the softmax over `logits` (256,)."""
    shifted = logits - logits.max()
    weights = np.exp(shifted)
    total = weights.sum()
    return float(1 / total), float(np.log(total) - (weights * shifted).sum() / total)


def _plan_id() -> str:
    """What fixes the order of summation: the BLAS, its kernels and its threads."""
    for library in threadpool_info():
        if library["user_api"] == "blas":
            parts = (library["internal_api"], library["version"], library.get("architecture"))
            return "numpy-" + "-".join(str(part) for part in parts) + f"-{library['num_threads']}t"
    return "numpy-unknown-blas"
