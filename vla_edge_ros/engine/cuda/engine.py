"""The CUDA engine: `Engine` over a decoder on the device, driven by one thread that owns the context."""

import importlib.util
import queue
import threading
import time
from contextlib import ExitStack, suppress

import numpy as np

from vla_edge_ros.engine.cuda.account import planned_account, require_budget
from vla_edge_ros.engine.cuda.compiler import find_build
from vla_edge_ros.engine.cuda.decoder import CudaDecoder, FrameMemory
from vla_edge_ros.engine.cuda.device import Device
from vla_edge_ros.engine.cuda.kernels import Kernels, part_ends_ns
from vla_edge_ros.engine.cuda.plan import Plan, make_plan, plan_of_id
from vla_edge_ros.engine.cuda.tuning import plan_of_device
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
)
from vla_edge_ros.engine.model_config import ModelConfig
from vla_edge_ros.engine.pace import STEP, CannotEnd, Countdown, Pace
from vla_edge_ros.engine.weights import open_weights
from vla_edge_ros.perception.frame import FrameMeta

for _module, _package in (("pycuda", "pycuda"), ("cuda.bindings", "cuda-bindings")):
    # A folder named `cuda`, as this repository's, passes for a package of that name.
    if not (importlib.util.find_spec(_module.partition(".")[0]) and importlib.util.find_spec(_module)):
        raise ImportError(f"{_package} is not installed: pip install {_package}")

_PARTS = ("copy", "vision", "prefill")
_NO_FRAME, _OVERTAKEN = 1, 2
_MAX_ATTEMPTS = 8
"""Passes tried when the frame is overtaken while the device reads it, as in perception/frame_buffer.py."""


class CudaEngine:
    """`frames` is a perception FrameBuffer, whose pages are locked and read by the device.

    `submit` hands work to the engine's thread and returns; that thread waits for the device without the
    interpreter lock. A CUDA error is sticky: this and every later result is FAILED, and the process that
    holds the engine must be replaced.
    """

    def __init__(self, spec: EngineSpec, frames):
        self._spec = spec
        self._frames = frames
        self._work: queue.SimpleQueue = queue.SimpleQueue()
        self._results: queue.SimpleQueue = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._unclaimed: int | None = None
        self._failure = ""
        self._pace = Pace()

    def configure(self) -> EngineInfo:
        """Raises EngineError; nothing stays allocated then."""
        if not 1 <= self._spec.action_tokens <= MAX_ACTION_TOKENS:
            raise EngineError(f"action_tokens is {self._spec.action_tokens}; wanted 1 to {MAX_ACTION_TOKENS}")
        self._thread = threading.Thread(target=self._run, name="cuda engine", daemon=True)
        self._thread.start()
        info = self._results.get()
        if isinstance(info, Exception):
            self._thread.join()
            self._thread = None
            raise info
        return info

    def submit(self, work: PromptWork | FrameWork) -> None:
        if self._thread is None:
            raise EngineError("the engine is not configured, or closed")
        if self._unclaimed is not None:
            raise EngineBusy(f"work {work.work_id} was submitted before work {self._unclaimed} was claimed")
        self._check_slots(work)
        self._unclaimed = work.work_id
        self._work.put(work)

    def wait(self, until_ns: int) -> WorkResult | None:
        if self._unclaimed is None:
            return None
        remaining = (until_ns - time.monotonic_ns()) / 1e9
        try:
            result = self._results.get(timeout=remaining) if remaining > 0 else self._results.get_nowait()
        except queue.Empty:
            return None
        self._unclaimed = None
        return result

    def evict(self, slots: np.ndarray) -> None:
        """Nothing to do: every pass compares ranks with slots, and a slot is written before it is read."""

    def close(self) -> None:
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
            self._thread = None

    def _check_slots(self, work: PromptWork | FrameWork) -> None:
        if isinstance(work, PromptWork):
            lists = {
                "prompt": (work.slots, len(work.tokens)),
                "context": (work.context_slots, len(work.context_slots)),
            }
            n_ranks = len(work.context_slots) + len(work.tokens)
            if n_ranks > self._spec.n_slots:
                raise ValueError(f"a prompt of {n_ranks} tokens: there are {self._spec.n_slots} slots")
        else:
            lists = {
                "frame": (work.frame_slots, FRAME_TOKENS),
                "action": (work.action_slots, self._spec.action_tokens),
                "context": (work.context_slots, len(work.context_slots)),
            }
            most = self._spec.n_slots - FRAME_TOKENS - MAX_ACTION_TOKENS
            if len(work.context_slots) > most:
                raise ValueError(
                    f"{len(work.context_slots)} context slots: {self._spec.n_slots} slots leave {most}"
                )
        for kind, (slots, n) in lists.items():
            if len(slots) != n:
                raise ValueError(f"{len(slots)} {kind} slots for {n} tokens")
            if n and not 0 <= int(slots.min()) <= int(slots.max()) < self._spec.n_slots:
                raise ValueError(f"a {kind} slot lies outside 0..{self._spec.n_slots - 1}")

    def _run(self) -> None:
        """The engine's thread: the CUDA context is current here and nowhere else."""
        with ExitStack() as releases:
            try:
                decoder, info = self._open(releases)
            except Exception as error:
                _free_what_can_be(releases)
                self._results.put(error)
                return
            self._serve(decoder, info)
            if self._failure:
                _free_what_can_be(releases)

    def _serve(self, decoder: CudaDecoder, info: EngineInfo) -> None:
        self._results.put(info)
        while (work := self._work.get()) is not None:
            result = WorkResult(work.work_id, WorkStatus.DONE, started_ns=time.monotonic_ns())
            if not self._failure:
                try:
                    if isinstance(work, PromptWork):
                        decoder.fill_prompt(work.tokens, work.slots, work.context_slots)
                        result.stages.prefill_ns = time.monotonic_ns() - result.started_ns
                    else:
                        self._pass(decoder, work, result)
                except EngineError as error:
                    self._failure = str(error)
            if self._failure:
                result.status, result.error = WorkStatus.FAILED, self._failure
            result.finished_ns = time.monotonic_ns()
            self._results.put(result)

    def _open(self, releases: ExitStack) -> tuple[CudaDecoder, EngineInfo]:
        """Whatever is made here is freed by `releases`."""
        spec = self._spec
        config, weights = open_weights(spec.model, spec.seed)
        device = Device()
        releases.callback(device.close)
        plan, notes = self._choose(device, config)
        account = planned_account(device, plan, self._frames.size_bytes)
        require_budget(spec, account)
        frames = FrameMemory(self._frames.address, self._frames.size_bytes)
        decoder = CudaDecoder(device, plan, Kernels(device, plan), weights, frames)
        releases.callback(decoder.close)
        decoder.warm_up()
        account["cuda_context"] = max(0, device.process_bytes() - decoder.arena.total_bytes)
        self._first_action = config.first_action
        info = EngineInfo(
            backend="cuda",
            plan_id=decoder.plan_id,
            vocabulary_size=config.vocab_size,
            embedding_size=config.hidden_size,
            account_bytes=account,
            notes=(
                f"{device.name}, {device.architecture}, driver {device.driver_version}",
                *notes,
                *weights.notes,
            ),
        )
        return decoder, info

    def _choose(self, device: Device, config: ModelConfig) -> tuple[Plan, tuple[str, ...]]:
        """The plan asked for, or this device's own; the budget is checked before anything is measured."""
        spec = self._spec
        if spec.plan:
            build = find_build(device.architecture)
            return plan_of_id(spec.plan, config, spec.n_slots, device.multiprocessors, build), ()
        by_rule = make_plan(config, spec.n_slots, device.multiprocessors, device.shared_bytes)
        require_budget(spec, planned_account(device, by_rule, self._frames.size_bytes))
        return plan_of_device(device, config, spec.n_slots)

    def _pass(self, decoder: CudaDecoder, work: FrameWork, result: WorkResult) -> None:
        limits = self._limits(decoder, work)
        for _ in range(_MAX_ATTEMPTS):
            now_ns = time.monotonic_ns()
            countdown = Countdown(self._pace, work, _PARTS, now_ns)
            try:
                countdown.look(now_ns)
            except CannotEnd:
                countdown.stop(now_ns, result)
                return
            decoder.begin(work.context_slots, work.frame_slots, self._spec.action_tokens, **limits)
            told = decoder.finish()
            if told["is_void"] != _OVERTAKEN:
                break
        if told["is_void"]:
            result.status = WorkStatus.NO_FRAME
            return
        countdown = Countdown(self._pace, work, _PARTS, int(told["fetched_ns"]))
        for mark_ns in part_ends_ns(told):
            countdown.part_ended(mark_ns)
        if told["is_aborted"]:
            countdown.stop(int(told["stopped_ns"]), result)
            return
        n = self._spec.action_tokens
        logits = told["logits"][:n].copy()
        if int(told["steps_done"]) != n or not np.isfinite(logits).all():
            self._failure = (
                f"the pass ended after {told['steps_done']} of {n} steps or its logits are not finite"
            )
            return
        countdown.tell(result)
        result.frame = FrameMeta(*(int(value) for value in told["frame_meta"]))
        result.tokens = (told["actions"][None, :n] + self._first_action).astype(np.int32)
        result.top_probability, result.entropy = confidence(logits[None])
        result.embedding = told["embedding"].copy()

    def _limits(self, decoder: CudaDecoder, work: FrameWork) -> dict[str, int]:
        """What the device compares its own time with, for `CudaDecoder.begin`."""
        abort_ns = decoder.clock.device_ns(work.deadline_ns) if work.deadline_ns else None
        if abort_ns is None:
            return {}
        n_context, n_layers = len(work.context_slots), decoder.config.num_hidden_layers
        return {
            "abort_ns": abort_ns,
            "prefill_layer_ns": self._pace.least_ns("prefill", n_context) // n_layers,
            "decode_layer_ns": self._pace.least_ns(STEP, n_context) // n_layers,
        }


def _free_what_can_be(releases: ExitStack) -> None:
    """After a failure: a device in error refuses each of these calls too, and the first reason counts."""
    with suppress(Exception):
        releases.close()


def confidence(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Top probability and entropy (nats) of the softmax over the last axis, float32."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    weights = np.exp(shifted)
    total = weights.sum(axis=-1)
    entropy = np.log(total) - (weights * shifted).sum(axis=-1) / total
    return (1 / total).astype(np.float32), entropy.astype(np.float32)
