"""The CUDA engine: `Engine` over a decoder on the device, driven by one thread that owns the context."""

import importlib.util
import queue
import threading
import time

import numpy as np

from vla_edge_ros.engine.cuda.decoder import CudaDecoder, FrameMemory, arena_regions
from vla_edge_ros.engine.cuda.device import Device
from vla_edge_ros.engine.cuda.kernels import Kernels, part_ends_ns
from vla_edge_ros.engine.cuda.plan import make_plan
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
from vla_edge_ros.engine.pace import STEP, CannotEnd, Countdown, Pace
from vla_edge_ros.engine.weights import open_weights
from vla_edge_ros.perception.frame import FrameMeta

for _module, _package in (("pycuda", "pycuda"), ("cuda", "cuda-bindings")):
    if importlib.util.find_spec(_module) is None:
        raise ImportError(f"{_package} is not installed")

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
        if isinstance(info, EngineError):
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
            lists = {"prompt": (work.slots, len(work.tokens))}
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
        device = decoder = None
        try:
            device, decoder, info = self._open()
        except EngineError as error:
            if device is not None:
                device.close()
            self._results.put(error)
            return
        self._results.put(info)
        while (work := self._work.get()) is not None:
            result = WorkResult(work.work_id, WorkStatus.DONE, started_ns=time.monotonic_ns())
            if not self._failure:
                try:
                    if isinstance(work, PromptWork):
                        decoder.fill_prompt(work.tokens, work.slots)
                        result.stages.prefill_ns = time.monotonic_ns() - result.started_ns
                    else:
                        self._pass(decoder, work, result)
                except EngineError as error:
                    self._failure = str(error)
            if self._failure:
                result.status, result.error = WorkStatus.FAILED, self._failure
            result.finished_ns = time.monotonic_ns()
            self._results.put(result)
        if not self._failure:
            decoder.close()
        device.close()

    def _open(self) -> tuple[Device, CudaDecoder, EngineInfo]:
        spec = self._spec
        config, weights = open_weights(spec.model, spec.seed)
        device = Device()
        context_bytes = device.used_bytes()
        plan = make_plan(config, spec.n_slots, device.multiprocessors, device.shared_bytes)
        kernels = Kernels(device, plan)
        regions, purposes = arena_regions(plan, kernels.sizes)
        account = {purpose: 0 for purpose in purposes.values()}
        for name, n_bytes in regions.items():
            account[purposes[name]] += n_bytes
        account["cuda context"] = context_bytes
        total = sum(account.values())
        if total > spec.budget_bytes:
            parts = ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in account.items())
            raise EngineError(
                f"model {spec.model!r} with {spec.n_slots} slots needs {total / 1e6:.0f} MB ({parts}) and "
                f"memory.budget_bytes is {spec.budget_bytes / 1e6:.0f} MB: raise it, or take fewer slots or "
                "a smaller model"
            )
        frames = FrameMemory(self._frames.address, self._frames.size_bytes)
        decoder = CudaDecoder(device, plan, kernels, weights, frames)
        decoder.warm_up()
        account["cuda context"] = device.used_bytes() - decoder.arena.total_bytes
        self._first_action = config.first_action
        info = EngineInfo(
            backend="cuda",
            plan_id=decoder.plan_id,
            vocabulary_size=config.vocab_size,
            embedding_size=config.hidden_size,
            account_bytes=account,
            notes=(f"{device.name}, {device.architecture}, driver {device.driver_version}",),
        )
        return device, decoder, info

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


def confidence(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Top probability and entropy (nats) of the softmax over the last axis, float32."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    weights = np.exp(shifted)
    total = weights.sum(axis=-1)
    entropy = np.log(total) - (weights * shifted).sum(axis=-1) / total
    return (1 / total).astype(np.float32), entropy.astype(np.float32)
