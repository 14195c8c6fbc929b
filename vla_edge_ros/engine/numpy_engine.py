"""The reference engine: a pass in NumPy, in the calling thread."""

import math
import time
from collections.abc import Callable
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
    WorkResult,
    WorkStatus,
    ring_blocks,
)
from vla_edge_ros.engine.key_summary import key_summary
from vla_edge_ros.engine.model_config import ModelConfig
from vla_edge_ros.engine.numpy_decoder import (
    NumpyDecoder,
    block_shape,
    kv_buffers,
    weight_buffers,
    work_buffers,
)
from vla_edge_ros.engine.pace import CannotEnd, Countdown, Pace
from vla_edge_ros.engine.vision import (
    FRAME_HEIGHT,
    FRAME_WIDTH,
    PATCH_SIZE,
    PatchEmbedding,
    vision_shapes,
)
from vla_edge_ros.engine.weights import open_weights, read_vision
from vla_edge_ros.memory.signals import PassSignals
from vla_edge_ros.perception.frame import FrameMeta


class FrameSource(Protocol):
    def read_into(self, out: np.ndarray) -> FrameMeta | None:
        """Copy the newest whole frame to `out` (64, 128, 3) uint8; None where there is none."""


class NumpyEngine:
    """`Engine` in the calling thread: `submit` computes before it returns, and `wait` hands the result out.

    Use it for replay and tests, and as the arithmetic inside an engine process; a control thread that must
    not wait gives it a process of its own. `submit` raises ValueError, with nothing computed, for slots or
    tokens that do not exist.

    decoder: the decoder, between `configure` and `close`; for checks of its cache and of its layers.
    """

    def __init__(self, spec: EngineSpec, frames: FrameSource):
        self._spec = spec
        self._frames = frames
        self.decoder: NumpyDecoder | None = None
        self._vision: PatchEmbedding | None = None
        self._pixels = np.zeros((FRAME_HEIGHT, FRAME_WIDTH, 3), np.uint8)
        self._token = np.zeros(1, np.intp)
        self._ring: np.ndarray | None = None
        self._pace = Pace()
        self._result: WorkResult | None = None
        self._failure = ""
        self._thread_limit: threadpool_limits | None = None

    def configure(self) -> EngineInfo:
        spec = self._spec
        if not 1 <= spec.action_tokens <= MAX_ACTION_TOKENS:
            raise EngineError(f"action_tokens is {spec.action_tokens}: wanted 1 to {MAX_ACTION_TOKENS}")
        if spec.n_slots < FRAME_TOKENS + MAX_ACTION_TOKENS:
            least = FRAME_TOKENS + MAX_ACTION_TOKENS
            raise EngineError(f"n_slots is {spec.n_slots}: one frame and its action tokens need {least}")
        config, weights = open_weights(spec.model, spec.seed)
        account = account_bytes(config, spec.n_slots)
        block_bytes = math.prod(block_shape(config)) * 4
        n_blocks = ring_blocks(spec.host_bytes, block_bytes)
        if n_blocks:
            account["host_ring"] = n_blocks * block_bytes
        _require_budget(spec, account)
        if spec.blas_threads > 0:
            self._thread_limit = threadpool_limits(spec.blas_threads, user_api="blas")
        self.decoder = NumpyDecoder(config, weights, spec.n_slots, FRAME_TOKENS)
        self._vision = read_vision(weights, config.hidden_size)
        # Not zeros: their pages would be fetched while passes run.
        self._ring = np.full((n_blocks, *block_shape(config)), np.nan, np.float32)
        self._warm_up()
        return EngineInfo(
            backend="numpy",
            plan_id=_plan_id(),
            vocabulary_size=config.vocab_size,
            embedding_size=config.hidden_size
            if spec.embedding == "pooled"
            else FRAME_TOKENS * config.kv_size,
            account_bytes=account,
            notes=weights.notes,
            ring_blocks=n_blocks,
            block_bytes=block_bytes,
        )

    def submit(self, work: PromptWork | FrameWork) -> None:
        self._require_decoder()
        if self._result is not None:
            raise EngineBusy(
                f"work {work.work_id} was submitted before the result of {self._result.work_id} was claimed"
            )
        self._check(work)
        result = WorkResult(work.work_id, WorkStatus.DONE, started_ns=time.monotonic_ns())
        if not self._failure:
            with np.errstate(all="ignore"):
                self._compute(work, result)
        if self._failure:
            result.status, result.error = WorkStatus.FAILED, self._failure
        result.finished_ns = time.monotonic_ns()
        self._result = result

    def wait(self, until_ns: int) -> WorkResult | None:
        """The result of the submitted work, at once: it is complete when `submit` returns."""
        result, self._result = self._result, None
        if result is None and self._failure:
            now = time.monotonic_ns()
            return WorkResult(-1, WorkStatus.FAILED, self._failure, started_ns=now, finished_ns=now)
        return result

    def evict(self, slots: np.ndarray) -> None:
        """Fill `slots` with NaN: a pass that reads one of them fails instead of acting on it."""
        self._require_decoder().forget(slots)

    def stash(self, place: int, slots: np.ndarray) -> None:
        self._require_decoder().copy_block(slots, self._ring[place])

    def restore(self, place: int, slots: np.ndarray) -> None:
        self._require_decoder().write_block(self._ring[place], slots)

    def close(self) -> None:
        self.decoder = self._vision = self._result = self._ring = None
        if self._thread_limit is not None:
            self._thread_limit.restore_original_limits()
            self._thread_limit = None

    def _compute(self, work: PromptWork | FrameWork, result: WorkResult) -> None:
        if isinstance(work, PromptWork):
            self._fill_prompt(work)
            result.stages.prefill_ns = time.monotonic_ns() - result.started_ns
            return
        countdown = Countdown(self._pace, work, ("copy", "vision", "prefill"), result.started_ns)
        result.frame = self._frames.read_into(self._pixels)
        if result.frame is None:
            result.status = WorkStatus.NO_FRAME
            return
        countdown.part_ended(time.monotonic_ns())
        self._run_pass(work, result, countdown)

    def _fill_prompt(self, work: PromptWork) -> None:
        decoder = self.decoder
        decoder.count_attention(0, None)
        decoder.start(work.context_slots)
        for first in range(0, len(work.tokens), decoder.max_tokens):
            chunk = slice(first, first + decoder.max_tokens)
            decoder.extend(decoder.embed_tokens(work.tokens[chunk]), work.slots[chunk])

    def _run_pass(self, work: FrameWork, result: WorkResult, countdown: Countdown) -> None:
        """Vision, prefill and decode; stopped where `countdown` says that they cannot end in time."""
        try:
            self._look_and_decide(work, result, countdown)
        except CannotEnd:
            countdown.stop(time.monotonic_ns(), result)
            # Half written: whoever reads them shows it.
            self.decoder.forget(work.frame_slots)
            self.decoder.forget(work.action_slots)
        else:
            countdown.tell(result)

    def _look_and_decide(self, work: FrameWork, result: WorkResult, countdown: Countdown) -> None:
        decoder, now_ns = self.decoder, time.monotonic_ns
        n_layers = decoder.config.num_hidden_layers

        def layer_ended(layer: int) -> None:
            countdown.look(now_ns(), (layer + 1) / n_layers)

        countdown.look(now_ns())
        states = self._vision.embed(self._pixels)
        result.embedding = np.mean(states, axis=0)
        countdown.part_ended(now_ns())
        countdown.look(now_ns())
        decoder.start(work.context_slots)
        attention = self._count_attention(work)
        decoder.extend(states, work.frame_slots, layer_ended)
        if self._spec.embedding == "key_summary":
            result.embedding = key_summary(decoder.cached_keys[0, work.frame_slots])
        by_frame = attention.astype(np.float32)
        countdown.part_ended(now_ns())
        n_actions = len(work.action_slots)
        result.tokens = np.zeros((1, n_actions), np.int32)
        result.top_probability = np.zeros((1, n_actions), np.float32)
        result.entropy = np.zeros((1, n_actions), np.float32)
        self._token[0] = decoder.config.action_start
        for step in range(n_actions):
            countdown.look(now_ns())
            self._decode(step, work.action_slots, result, layer_ended)
            if self._failure:
                return
            countdown.part_ended(now_ns())
        if self._spec.gives_signals:
            values = decoder.cached_values[:, work.frame_slots]
            by_action = (attention - by_frame).astype(np.float32)
            result.signals = PassSignals(by_frame, by_action, float(np.linalg.norm(values, axis=2).mean()))

    def _count_attention(self, work: FrameWork) -> np.ndarray:
        """(n,) float64, where the decoder counts attention to each retained frame, if it does."""
        n_frames = (len(work.context_slots) - work.prompt_tokens) // FRAME_TOKENS
        attention = np.zeros(n_frames if self._spec.gives_signals else 0)
        self.decoder.count_attention(work.prompt_tokens, attention if len(attention) else None)
        return attention

    def _decode(
        self, step: int, slots: np.ndarray, result: WorkResult, layer_ended: Callable[[int], None]
    ) -> None:
        decoder = self.decoder
        states = decoder.embed_tokens(self._token)
        normed = decoder.extend(states, slots[step : step + 1], layer_ended)
        logits = decoder.action_logits(normed[0])
        if not np.isfinite(logits).all():
            self._failure = f"the logits of decode step {step} are not finite: the engine must be replaced"
            return
        self._token[0] = decoder.config.first_action + int(np.argmax(logits))
        result.tokens[0, step] = self._token[0]
        result.top_probability[0, step], result.entropy[0, step] = _confidence(logits)

    def _check(self, work: PromptWork | FrameWork) -> None:
        if isinstance(work, PromptWork):
            self._check_range("prompt token", work.tokens, self.decoder.config.vocab_size)
            self._check_slots("prompt", work.slots, len(work.tokens))
            self._check_slots("context", work.context_slots, len(work.context_slots))
            self._check_ranks(len(work.context_slots) + len(work.tokens))
            return
        self._check_slots("context", work.context_slots, len(work.context_slots))
        self._check_slots("frame", work.frame_slots, FRAME_TOKENS)
        n_actions = len(work.action_slots)
        if not 1 <= n_actions <= self._spec.action_tokens:
            raise ValueError(f"{n_actions} action slots were given: wanted 1 to {self._spec.action_tokens}")
        self._check_slots("action", work.action_slots, n_actions)
        if not 0 <= work.prompt_tokens <= len(work.context_slots):
            raise ValueError(
                f"{work.prompt_tokens} prompt tokens stand in {len(work.context_slots)} context slots"
            )
        self._check_ranks(len(work.context_slots) + FRAME_TOKENS + n_actions)

    def _check_ranks(self, n_ranks: int) -> None:
        if n_ranks > self._spec.n_slots:
            raise ValueError(f"a sequence of {n_ranks} tokens does not fit in {self._spec.n_slots} slots")

    def _check_slots(self, kind: str, slots: np.ndarray, n: int) -> None:
        if len(slots) != n:
            raise ValueError(f"{len(slots)} {kind} slots were given for {n} tokens")
        self._check_range(f"{kind} slot", slots, self._spec.n_slots)

    @staticmethod
    def _check_range(kind: str, values: np.ndarray, end: int) -> None:
        if len(values) and (values.min() < 0 or values.max() >= end):
            raise ValueError(f"a {kind} lies in {values.min()}..{values.max()}: wanted 0..{end - 1}")

    def _require_decoder(self) -> NumpyDecoder:
        if self.decoder is None:
            raise EngineError("the engine is not configured, or it is closed")
        return self.decoder

    def _warm_up(self) -> None:
        """One pass over an empty memory and a black frame, then a cache that is empty again."""
        slots = np.arange(FRAME_TOKENS + self._spec.action_tokens, dtype=np.int32)
        work = FrameWork(0, slots[:0], slots[:FRAME_TOKENS], slots[FRAME_TOKENS:])
        # A cold start tells nothing of the least that a pass takes: it has a pace of its own.
        countdown = Countdown(Pace(), work, ("vision", "prefill"), time.monotonic_ns())
        with np.errstate(all="ignore"):
            self._run_pass(work, WorkResult(0, WorkStatus.DONE), countdown)
        if self._failure:
            raise EngineError(f"model {self._spec.model!r}, first pass: {self._failure}")
        self.decoder.forget(slots)


def account_bytes(config: ModelConfig, n_slots: int) -> dict[str, int]:
    """Bytes that an engine of this geometry allocates, by purpose."""
    frame = {"patches": (FRAME_TOKENS, PATCH_SIZE), "states": (FRAME_TOKENS, config.hidden_size)}
    buffers = {
        "weights": [weight_buffers(config), vision_shapes(config.hidden_size)],
        "kv": [kv_buffers(config, n_slots)],
        "workspace": [work_buffers(config, n_slots, FRAME_TOKENS), frame],
    }
    float32_bytes = 4
    return {
        purpose: float32_bytes * sum(math.prod(shape) for group in groups for shape in group.values())
        for purpose, groups in buffers.items()
    }


def _require_budget(spec: EngineSpec, account: dict[str, int]) -> None:
    total = sum(account.values())
    if total > spec.budget_bytes:
        parts = ", ".join(f"{purpose} {size / 1e6:.1f}" for purpose, size in account.items())
        raise EngineError(
            f"model {spec.model!r} with {spec.n_slots} slots needs {total / 1e6:.1f} MB ({parts}), and "
            f"memory.budget_bytes is {spec.budget_bytes / 1e6:.1f} MB: raise it or choose a smaller model"
        )


def _confidence(logits: np.ndarray) -> tuple[float, float]:
    """Top probability and entropy (nats) of the softmax over `logits` (256,)."""
    shifted = logits - logits.max()
    weights = np.exp(shifted)
    total = weights.sum()
    return float(1 / total), float(np.log(total) - (weights * shifted).sum() / total)


def _plan_id() -> str:
    """What fixes the order of summation: NumPy's BLAS, its kernels and its threads."""
    libraries = [library for library in threadpool_info() if library["user_api"] == "blas"]
    libraries.sort(key=lambda library: "numpy" not in library["filepath"])
    if not libraries:
        return "numpy-unknown_blas"
    blas = libraries[0]
    name = f"{blas['internal_api']}-{blas['version']}-{blas.get('architecture')}"
    return f"numpy-{name}-{blas['num_threads']}threads"
