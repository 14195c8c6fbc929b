"""The CUDA engine as the gate looks at it: its passes with every operator's output, and ways to break it.

One arena serves three builds of the kernels, which differ in nothing that the host sees: the one that robots
run, the same with traces, and one that also loses a split.
"""

import numpy as np
import torch

from vla_edge_ros.engine.cuda.decoder import CudaDecoder, FrameMemory
from vla_edge_ros.engine.cuda.device import Device, check
from vla_edge_ros.engine.cuda.gate_passes import EnginePass
from vla_edge_ros.engine.cuda.gate_weights import HeldWeights, Tensors
from vla_edge_ros.engine.cuda.kernels import BLOCK_LAUNCHES, LOSES_SPLIT, TRACED, Kernels
from vla_edge_ros.engine.cuda.plan import Plan
from vla_edge_ros.engine.cuda.reference import Parts
from vla_edge_ros.engine.interface import FRAME_TOKENS, MAX_ACTION_TOKENS, EngineError
from vla_edge_ros.engine.weights import EMBEDDING
from vla_edge_ros.perception.frame_buffer import FrameBuffer

_FLAGS = {"plain": (), "traced": (TRACED,), "lost": (TRACED, LOSES_SPLIT)}


class GpuProbe:
    """A `Probe` of the kernels on `device`, with `tensors` on the same device. Raises EngineError."""

    def __init__(self, device: Device, plan: Plan, tensors: Tensors):
        self._device, self._config, self._tensors = device, plan.config, tensors
        self._on = tensors[EMBEDDING].device
        self._frames = FrameBuffer.create()
        self._kernels = {name: Kernels(device, plan, flags) for name, flags in _FLAGS.items()}
        self._decoder = CudaDecoder(
            device,
            plan,
            self._kernels["plain"],
            HeldWeights(tensors),
            FrameMemory(self._frames.address, self._frames.size_bytes),
        )
        self.plan_id = self._decoder.plan_id
        shape = (self._config.num_hidden_layers, Parts(self._config).size)
        self._trace = torch.zeros((MAX_ACTION_TOKENS, *shape), device=self._on)
        self._prefill_trace = torch.zeros((FRAME_TOKENS, *shape), device=self._on)
        self._graphs = {name: self._capture(self._kernels[name]) for name in ("traced", "lost")}
        self._traced = "traced"
        qkv_rows = self._config.query_size + 2 * self._config.kv_size
        self._staging = device.allocate(4 * qkv_rows * self._config.hidden_size, "a broken matrix")

    def _capture(self, kernels: Kernels) -> dict[bool, object]:
        """Graphs of a pass with a frame (True) and of a piece of the prompt (False), which write traces."""
        decoder = self._decoder
        arguments = decoder.arguments
        arguments.trace, arguments.prefill_trace = self._trace.data_ptr(), self._prefill_trace.data_ptr()
        graphs = {
            True: kernels.capture((*BLOCK_LAUNCHES, "decode"), arguments, decoder.stream),
            False: kernels.capture(BLOCK_LAUNCHES, arguments, decoder.stream),
        }
        arguments.trace = arguments.prefill_trace = 0
        return graphs

    def fill_prompt(self, tokens: np.ndarray, slots: np.ndarray) -> torch.Tensor:
        decoder, streams = self._decoder, []
        for first in range(0, len(tokens), FRAME_TOKENS):
            piece = slice(first, first + FRAME_TOKENS)
            n = len(tokens[piece])
            rows = torch.zeros((FRAME_TOKENS, self._config.hidden_size), dtype=torch.bfloat16)
            rows[:n] = self._tensors[EMBEDDING][
                torch.from_numpy(tokens[piece].astype(np.int64)).to(self._on)
            ].cpu()
            self._device.upload(decoder.arena["prompt_rows"], _bits(rows))
            graph = self._graphs[self._traced][False]
            torch.cuda.synchronize()
            decoder.begin(slots[:first], slots[piece], n_steps=0, is_frame=False, graph=graph)
            decoder.finish()
            streams.append(self._prefill_trace[:n, :, Parts(self._config).spans["out"]].clone())
        return torch.cat(streams)

    def run(
        self, context: np.ndarray, slots: np.ndarray, frame: np.ndarray, start: int, is_traced: bool = True
    ) -> EnginePass:
        decoder = self._decoder
        row = self._tensors[EMBEDDING][int(start)][None].cpu()
        self._device.upload(decoder.arena["rows"], _bits(row))
        self._frames.write(frame, 0, 0, 0)
        graph = self._graphs[self._traced][True] if is_traced else None
        torch.cuda.synchronize()
        decoder.begin(context, slots, MAX_ACTION_TOKENS, graph=graph)
        told = decoder.finish()
        if told["is_void"] or told["steps_done"] != MAX_ACTION_TOKENS:
            raise EngineError(
                f"a pass of the gate ended after {told['steps_done']} of {MAX_ACTION_TOKENS} steps "
                f"(is_void {told['is_void']}, is_aborted {told['is_aborted']})"
            )
        return EnginePass(
            told["embedding"].copy(),
            told["actions"].copy(),
            told["logits"].copy(),
            torch.cat([self._prefill_trace, self._trace]) if is_traced else None,
        )

    def _cache(self) -> torch.Tensor:
        """A copy of it on the CPU: (layers, slots, KV heads, key and value, head)."""
        config, arena = self._config, self._decoder.arena
        bits = self._device.download(np.empty(arena.size("cache") // 2, np.int16), arena["cache"])
        shape = (config.num_hidden_layers, -1, config.num_key_value_heads, 2, config.head_dim)
        return torch.from_numpy(bits).view(torch.bfloat16).reshape(shape)

    def cached(self, slots: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        both = self._cache()[:, torch.from_numpy(slots.astype(np.int64))].to(self._on)
        return both[..., 0, :], both[..., 1, :]

    def set_values(self, slots: np.ndarray, values: torch.Tensor) -> None:
        whole = self._cache()
        whole[:, torch.from_numpy(slots.astype(np.int64)), :, 1] = values.cpu()
        self._device.upload(self._decoder.arena["cache"], _bits(whole))
        # The next pass must gather them anew.
        self.poison_workspaces()

    def poison_workspaces(self) -> None:
        """Fill what a pass keeps for itself with NaN patterns."""
        arena = self._decoder.arena
        for name in ("words", "prefill", "ranked"):
            arena.fill(name, 0xFF)
        arena.fill("ranked_slots", 0xFE)
        self._device.synchronize()

    def set_rope(self, table: np.ndarray) -> None:
        self._device.upload(self._decoder.arena["rope"], np.ascontiguousarray(table, np.float32))

    def set_biases(self, layer: int, biases: np.ndarray) -> None:
        to = self._decoder.arena["qkv_bias"] + layer * biases.nbytes
        self._device.upload(to, np.ascontiguousarray(biases, np.float32))

    def set_qkv(self, layer: int, matrix: np.ndarray) -> None:
        sizes = self._decoder.kernels.sizes
        layer_bytes = sum(sizes[name] for name in ("qkv", "output", "gate_up", "down"))
        to = self._decoder.arena["weights"] + layer * layer_bytes
        self._device.upload(self._staging, np.ascontiguousarray(matrix, np.float32))
        self._decoder.kernels.pack("qkv", self._staging, to, 0)
        self._device.synchronize()

    def lose_split(self, is_lost: bool) -> None:
        self._traced = "lost" if is_lost else "traced"

    def close(self) -> None:
        for graphs in self._graphs.values():
            for graph in graphs.values():
                check(self._device.driver.cuGraphExecDestroy(graph))
        self._device.free(self._staging)
        self._decoder.close()
        for name in ("traced", "lost"):
            self._kernels[name].close()
        self._frames.close()


def _bits(values: torch.Tensor) -> np.ndarray:
    """The bits of bf16 values on the CPU, C-contiguous."""
    return np.ascontiguousarray(values.view(torch.int16).numpy())
