"""The CUDA engine: `Engine` over a decoder on the device."""

import importlib.util
import time
import traceback
from collections.abc import Callable
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
_OVERTAKEN = 2
"""`Result.is_void` of a pass whose frame was overtaken by a newer one while the device read it."""
_MAX_ATTEMPTS = 8
"""Passes tried when the frame is overtaken while the device reads it, as in perception/frame_buffer.py."""


class CudaEngine:
    """`frames` is a perception FrameBuffer, whose pages are locked and read by the device.

    All calls come from the thread that configured it, where the CUDA context is current. `submit` launches a
    pass and returns; `wait` sleeps and asks the device, without a thread between it and the answer. A prompt
    is written before `submit` returns. A CUDA error is sticky and a defect leaves nobody knows what: this and
    every later result is FAILED, and the process that holds the engine must be replaced.
    """

    def __init__(self, spec: EngineSpec, frames):
        self._spec = spec
        self._frames = frames
        self._releases = ExitStack()
        self._decoder: CudaDecoder | None = None
        self._running: FrameWork | None = None
        self._result: WorkResult | None = None
        self._failure = ""
        self._pace = Pace()

    def configure(self) -> EngineInfo:
        """Raises EngineError, or what a defect raises; nothing stays allocated then."""
        if not 1 <= self._spec.action_tokens <= MAX_ACTION_TOKENS:
            raise EngineError(f"action_tokens is {self._spec.action_tokens}; wanted 1 to {MAX_ACTION_TOKENS}")
        try:
            self._decoder, info = self._open(self._releases)
        except BaseException:
            _free_what_can_be(self._releases)
            raise
        return info

    def submit(self, work: PromptWork | FrameWork) -> None:
        if self._decoder is None:
            raise EngineError("the engine is not configured, or closed")
        if self._result is not None:
            raise EngineBusy(
                f"work {work.work_id} was submitted before work {self._result.work_id} was claimed"
            )
        self._check_slots(work)
        self._result = WorkResult(work.work_id, WorkStatus.DONE, started_ns=time.monotonic_ns())
        self._advance(self._begin, work)

    def wait(self, until_ns: int) -> WorkResult | None:
        if self._running is not None:
            self._advance(self._await_pass, until_ns)
        if self._running is not None:
            return None
        result, self._result = self._result, None
        if result is None and self._failure:
            now_ns = time.monotonic_ns()
            return WorkResult(-1, WorkStatus.FAILED, self._failure, started_ns=now_ns, finished_ns=now_ns)
        return result

    def evict(self, slots: np.ndarray) -> None:
        """Nothing to do: every pass compares ranks with slots, and a slot is written before it is read."""

    def close(self) -> None:
        decoder, running = self._decoder, self._running
        self._decoder = self._running = self._result = None
        if self._failure:
            _free_what_can_be(self._releases)
            return
        if running is not None:
            with suppress(EngineError):
                decoder.finish()
        self._releases.close()

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
                "action": (work.action_slots, len(work.action_slots)),
                "context": (work.context_slots, len(work.context_slots)),
            }
            if not 1 <= len(work.action_slots) <= self._spec.action_tokens:
                raise ValueError(
                    f"{len(work.action_slots)} action slots: wanted 1 to {self._spec.action_tokens}"
                )
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

    def _advance(self, step: Callable, argument) -> None:
        """Take the work in hand further by `step`: it is over where nothing runs on the device afterwards."""
        result = self._result
        if not self._failure:
            try:
                step(argument)
            except EngineError as error:
                self._failure = str(error)
            except Exception as error:
                traceback.print_exc()
                self._failure = " ".join(f"{type(error).__name__}: {error}".split())
        if self._failure:
            self._running = None
            result.status, result.error = WorkStatus.FAILED, self._failure
        if self._running is None:
            result.finished_ns = time.monotonic_ns()

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

    def _begin(self, work: PromptWork | FrameWork) -> None:
        if isinstance(work, PromptWork):
            self._decoder.fill_prompt(work.tokens, work.slots, work.context_slots)
            self._result.stages.prefill_ns = time.monotonic_ns() - self._result.started_ns
        else:
            self._attempts_left = _MAX_ATTEMPTS
            self._launch(work)

    def _launch(self, work: FrameWork) -> None:
        self._running = None
        now_ns = time.monotonic_ns()
        countdown = Countdown(self._pace, work, _PARTS, now_ns)
        try:
            countdown.look(now_ns)
        except CannotEnd:
            countdown.stop(now_ns, self._result)
            return
        self._attempts_left -= 1
        self._least_ns = countdown.left_ns
        limits = self._limits(work)
        self._decoder.begin(work.context_slots, work.frame_slots, len(work.action_slots), **limits)
        self._running = work

    def _await_pass(self, until_ns: int) -> None:
        # No deadline lies before the least that a pass takes: it would not have been launched.
        while self._running is not None and self._decoder.is_over_by(until_ns, self._least_ns):
            work, told = self._running, self._decoder.outcome()
            if told["is_void"] == _OVERTAKEN and self._attempts_left:
                self._launch(work)
            else:
                self._running = None
                self._tell(work, told)

    def _tell(self, work: FrameWork, told: np.void) -> None:
        """What a pass came to, as its result."""
        result = self._result
        if told["is_void"]:
            result.status = WorkStatus.NO_FRAME
            return
        countdown = Countdown(self._pace, work, _PARTS, int(told["fetched_ns"]))
        for mark_ns in part_ends_ns(told):
            countdown.part_ended(mark_ns)
        if told["is_aborted"]:
            countdown.stop(int(told["stopped_ns"]), result)
            return
        n, steps_done = len(work.action_slots), int(told["steps_done"])
        logits = told["logits"][None, :n]
        if steps_done != n or not np.isfinite(logits).all():
            raise EngineError(f"the pass ended after {steps_done} of {n} steps or its logits are not finite")
        countdown.tell(result)
        result.frame = FrameMeta(*told["frame_meta"].tolist())
        result.tokens = told["actions"][None, :n] + self._first_action
        result.top_probability, result.entropy = confidence(logits)
        result.embedding = told["embedding"].copy()

    def _limits(self, work: FrameWork) -> dict[str, int]:
        """What the device compares its own time with, for `CudaDecoder.begin`."""
        decoder = self._decoder
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
