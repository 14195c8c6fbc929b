"""A model on the device: weights, KV cache and workspaces in one arena, and its passes as captured graphs."""

import ctypes
import struct
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass

import numpy as np

from vla_edge_ros.engine.cuda.arena import Arena, account_of
from vla_edge_ros.engine.cuda.device import Device, check
from vla_edge_ros.engine.cuda.device_clock import DeviceClock
from vla_edge_ros.engine.cuda.kernels import (
    BLOCK_LAUNCHES,
    Arguments,
    Kernels,
    command_dtype,
    last_mark_ns,
    result_dtype,
)
from vla_edge_ros.engine.cuda.plan import Plan
from vla_edge_ros.engine.cuda.upload import Uploader, bf16_bits, fill_random, rope_table
from vla_edge_ros.engine.cuda.waiting import Waiting
from vla_edge_ros.engine.interface import FRAME_TOKENS, EngineError
from vla_edge_ros.engine.model_config import ACTION_ROWS
from vla_edge_ros.engine.weights import EMBEDDING, WeightSource

EPOCHS = 512
"""Tags of exchanged words that one pass may use, as in cuda/geometry.cuh."""

PASSES_BETWEEN_SWEEPS = 1 << 20
"""Tags are 32 bit: before they come round again, the words they mark are cleared."""

NEVER_NS = (1 << 64) - 1

_LONGEST_LAYER_NS = (1 << 32) - 1
_FOREVER_NS = 1 << 62

_COMMAND_HEADER = struct.Struct("=8IQ2I")
"""`Command` before its slots, as in `command_dtype`; NumPy takes a microsecond for each field of a record."""
_NOT_KNOWN = (0, 0, 0)
"""is_void, is_aborted and frame_index, which the device writes."""

_NOT_READY = 600
"""CUDA_ERROR_NOT_READY: the answer to a query, and no error."""

_NO_SLOTS = np.zeros(0, np.int32)

_PIXELS_OFFSETS_WORD = 32
_PIXELS_OFFSET = 4096


@dataclass(frozen=True, slots=True)
class FrameMemory:
    """Where a frame buffer lies in this process: see the layout of perception/frame_buffer.py."""

    address: int
    size_bytes: int


def arena_regions(plan: Plan, sizes: dict[str, int]) -> tuple[dict[str, int], dict[str, str]]:
    """Bytes of every region on the device, and the purpose that each is accounted under."""
    config = plan.config
    layers, hidden = config.num_hidden_layers, config.hidden_size
    kv_bytes = layers * plan.n_slots * config.kv_size * 4
    layer_bytes = sum(sizes[name] for name in ("qkv", "output", "gate_up", "down"))
    weights = {
        "weights": layers * layer_bytes + sizes["head"],
        "vision": sizes["vision"],
        "vision_bias": 4 * hidden,
        "norms": 4 * hidden * (2 * layers + 1),
        "qkv_bias": 4 * layers * (config.query_size + 2 * config.kv_size),
        "rows": 2 * hidden * (1 + ACTION_ROWS),
        "rope": 4 * plan.n_slots * config.head_dim,
    }
    kv = {"cache": kv_bytes, "ranked": kv_bytes, "ranked_slots": 4 * plan.n_slots}
    workspace = {
        "command": sizes["command"],
        "prompt_rows": 2 * FRAME_TOKENS * hidden,
        "words": sizes["words"],
        "prefill": sizes["prefill"],
    }
    purposes = {
        **dict.fromkeys(weights, "weights"),
        **dict.fromkeys(kv, "kv"),
        **dict.fromkeys(workspace, "workspace"),
    }
    return {**weights, **kv, **workspace}, purposes


def arena_account(plan: Plan, sizes: dict[str, int]) -> dict[str, int]:
    """Bytes of the arena by purpose."""
    return account_of(*arena_regions(plan, sizes))


class CudaDecoder:
    """Allocates, uploads and captures here; afterwards a pass is one write of a command and one graph launch.

    kernels: belong to the decoder from here on, which unloads them at the end.
    frames: the frame buffer to page-lock.
    weights: None leaves random ones in the arena, for measuring time.
    clock: the device's clock against the steady one, as of the latest pass.
    Raises EngineError; nothing stays allocated then.
    """

    def __init__(
        self,
        device: Device,
        plan: Plan,
        kernels: Kernels,
        weights: WeightSource | None,
        frames: FrameMemory,
    ):
        self.device, self.plan, self.config = device, plan, plan.config
        self.kernels, self.plan_id = kernels, kernels.plan_id
        self._weights = weights
        with ExitStack() as releases:
            self._releases = releases
            releases.callback(kernels.close)
            self._allocate(frames)
            if weights is None:
                fill_random(device, self.arena)
            else:
                self._upload(weights)
            self.poison()
            self._passes = 0
            self._launched_ns = 0
            self._waiting = Waiting(self._is_over)
            self.clock = DeviceClock()
            self.frame_graph = self.capture(*BLOCK_LAUNCHES, "decode")
            self.prompt_graph = self.capture(*BLOCK_LAUNCHES)
            self._releases = releases.pop_all()

    def _allocate(self, frames: FrameMemory) -> None:
        driver, sizes = self.device.driver, self.kernels.sizes
        command, result = command_dtype(self.plan.n_slots), result_dtype(self.config.hidden_size)
        for name, dtype in (("command", command), ("result", result)):
            if -(-dtype.itemsize // 8) * 8 != sizes[name]:
                raise EngineError(
                    f"{name} is {dtype.itemsize} bytes here and {sizes[name]} in the kernels: install again"
                )
        self.arena = Arena(self.device, *arena_regions(self.plan, sizes))
        self._releases.callback(self.arena.close)
        self.stream = self._made(
            driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING), driver.cuStreamDestroy
        )
        written, command_address = self._page_locked(command, sizes["command"])
        self._header = written.view(np.uint8)[: _COMMAND_HEADER.size]
        self._token_slots, self._context_slots = written["token_slots"][0], written["context_slots"][0]
        told, result_address = self._page_locked(result, sizes["result"])
        self._result = told[0]
        self.arguments = Arguments(host_command=command_address, result=result_address)
        for name in self._region_names():
            setattr(self.arguments, name, self.arena[name])
        self._register(frames)

    def _made(self, returned: tuple, destroy):
        """What a call has made, to be destroyed at the end."""
        made = check(returned)
        self._releases.callback(lambda: check(destroy(made)))
        return made

    def _upload(self, weights: WeightSource) -> None:
        with closing(Uploader(self.device, self.kernels, self.config, weights)) as uploader:
            uploader.upload(self.arena)
        self.device.upload(self.arena["rope"], rope_table(self.config, self.plan.n_slots))

    def _region_names(self) -> tuple[str, ...]:
        fields = {name for name, _ in Arguments._fields_}
        return tuple(name for name in arena_regions(self.plan, self.kernels.sizes)[0] if name in fields)

    def _page_locked(self, dtype: np.dtype, n_bytes: int) -> tuple[np.ndarray, int]:
        """A zeroed record in page-locked memory that the device maps, and its device address."""
        driver = self.device.driver
        host = int(
            self._made(driver.cuMemHostAlloc(n_bytes, driver.CU_MEMHOSTALLOC_DEVICEMAP), driver.cuMemFreeHost)
        )
        memory = np.ctypeslib.as_array((ctypes.c_uint8 * n_bytes).from_address(host))
        memory[:] = 0
        return memory[: dtype.itemsize].view(dtype)[0:1], int(
            check(driver.cuMemHostGetDevicePointer(host, 0))
        )

    def _register(self, frames: FrameMemory) -> None:
        driver = self.device.driver
        check(
            driver.cuMemHostRegister(frames.address, frames.size_bytes, driver.CU_MEMHOSTREGISTER_DEVICEMAP)
        )
        self._releases.callback(lambda: check(driver.cuMemHostUnregister(frames.address)))
        self.arguments.frame_buffer = int(check(driver.cuMemHostGetDevicePointer(frames.address, 0)))
        second = ctypes.c_uint64.from_address(frames.address + _PIXELS_OFFSETS_WORD).value
        self.arguments.pixel_offsets[0], self.arguments.pixel_offsets[1] = _PIXELS_OFFSET, second

    def capture(self, *names: str):
        """The graph of these kernels; it lives as long as the decoder."""
        graph = self.kernels.capture(names, self.arguments, self.stream)
        self._releases.callback(lambda: check(self.device.driver.cuGraphExecDestroy(graph)))
        return graph

    def poison(self) -> None:
        """Fill caches and workspaces with NaN patterns: whoever reads what was not written shows it."""
        for name in ("cache", "ranked", "words", "prefill", "prompt_rows"):
            self.arena.fill(name, 0xFF)
        self.arena.fill("ranked_slots", 0xFE)
        self.arena.fill("command", 0)
        self.device.synchronize()

    def _clear(self, name: str) -> None:
        """Zero a region, in order with the passes."""
        check(self.device.driver.cuMemsetD8Async(self.arena[name], 0, self.arena.size(name), self.stream))

    def warm_up(self) -> None:
        """Run every kernel once, so that the first pass finds all loaded.

        Raises EngineError where the weights give logits that are not finite.
        """
        slots = np.arange(FRAME_TOKENS, dtype=np.int32)
        self.fill_prompt(np.zeros(FRAME_TOKENS, np.int32), slots)
        self.begin(slots[:0], slots, n_steps=1)
        self.finish()
        # Without a frame yet that pass was void; this one decodes behind the prompt's rows in any case.
        self.begin(slots[:0], slots, n_steps=1, is_frame=False, graph=self.frame_graph)
        if not np.isfinite(self.finish()["logits"][0]).all():
            raise EngineError("first pass: the logits of decode step 0 are not finite: look at the weights")
        self.poison()

    def fill_prompt(
        self, tokens: np.ndarray, slots: np.ndarray, context_slots: np.ndarray = _NO_SLOTS
    ) -> None:
        """Write keys and values of `tokens` (P,) to `slots` (P,), ranked behind `context_slots`, and wait."""
        for first in range(0, len(tokens), FRAME_TOKENS):
            piece = slice(first, first + FRAME_TOKENS)
            rows = np.zeros((FRAME_TOKENS, self.config.hidden_size), np.float32)
            for row, token in zip(rows, tokens[piece], strict=False):
                self._weights.read(EMBEDDING, row[None], int(token))
            rows = bf16_bits(rows)
            copy = self.device.driver.cuMemcpyHtoDAsync
            check(copy(self.arena["prompt_rows"], rows.ctypes.data, rows.nbytes, self.stream))
            before = np.concatenate([context_slots, slots[:first]])
            self.begin(before, slots[piece], n_steps=0, is_frame=False)
            self.finish()

    def begin(
        self,
        context_slots: np.ndarray,
        token_slots: np.ndarray,
        n_steps: int,
        abort_ns: int = NEVER_NS,
        is_frame: bool = True,
        graph=None,
        prefill_layer_ns: int = 0,
        decode_layer_ns: int = 0,
    ) -> None:
        """Launch a pass: a frame (or a piece of a prompt) to `token_slots`, then `n_steps` tokens.

        abort_ns: device time by which it must end. It stops as soon as it cannot, where each layer that is
            still to come takes `prefill_layer_ns` or `decode_layer_ns`.
        """
        n_context, n_tokens = len(context_slots), len(token_slots)
        if self._passes % PASSES_BETWEEN_SWEEPS == 0:
            for name in ("words", "prefill"):
                self._clear(name)
        epoch = self._passes % PASSES_BETWEEN_SWEEPS * EPOCHS
        self._passes += 1
        least_ns = min(prefill_layer_ns, _LONGEST_LAYER_NS), min(decode_layer_ns, _LONGEST_LAYER_NS)
        given = epoch, n_context, n_tokens, n_steps, is_frame
        _COMMAND_HEADER.pack_into(self._header, 0, *given, *_NOT_KNOWN, abort_ns, *least_ns)
        self._token_slots[:n_tokens] = token_slots
        self._context_slots[:n_context] = context_slots
        if graph is None:
            graph = self.frame_graph if is_frame else self.prompt_graph
        self._launched_ns = time.monotonic_ns()
        check(self.device.driver.cuGraphLaunch(graph, self.stream))

    def is_over_by(self, until_ns: int, least_ns: int = 0) -> bool:
        """True as soon as the pass in flight is over, False once the steady clock reads `until_ns`.

        least_ns: what it takes at least from its launch on; until shortly before, the processor is free.
        """
        return self._waiting.until(until_ns, self._launched_ns + least_ns)

    def finish(self, least_ns: int = 0) -> np.void:
        """Wait for the pass in flight, however long; its `outcome`. `least_ns`: as above."""
        self.is_over_by(_FOREVER_NS, least_ns)
        return self.outcome()

    def outcome(self) -> np.void:
        """The `Result` of a pass that is over; the next one overwrites it."""
        told = self._result
        self.clock.observe(
            self._launched_ns, int(told["fetched_ns"]), last_mark_ns(told), time.monotonic_ns()
        )
        return told

    def _is_over(self) -> bool:
        # Of the stream: to record an event at the pass's end would take another 7 us of each.
        returned = self.device.driver.cuStreamQuery(self.stream)
        if int(returned[0]) == _NOT_READY:
            return False
        check(returned)
        return True

    def close(self) -> None:
        self._releases.close()
