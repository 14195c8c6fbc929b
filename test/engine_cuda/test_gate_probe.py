"""How the gate reaches into the CUDA engine, on a device that is host memory and kernels that do nothing."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the gate's references run in torch (the `test` extra)")

from emulated import CONFIG, N_PASSES, N_SLOTS  # noqa: E402

from vla_edge_ros.engine.cuda import gate_probe  # noqa: E402
from vla_edge_ros.engine.cuda.kernels import Arguments, result_dtype  # noqa: E402
from vla_edge_ros.engine.cuda.plan import make_plan  # noqa: E402
from vla_edge_ros.engine.interface import EngineError  # noqa: E402

LAYERS, KV, HEAD = CONFIG.num_hidden_layers, CONFIG.num_key_value_heads, CONFIG.head_dim
QKV_ROWS = CONFIG.query_size + 2 * CONFIG.kv_size
PACKED = {"qkv": 4096, "output": 512, "gate_up": 1024, "down": 256}


class HostDevice:
    def __init__(self):
        self.held = []
        self.driver = SimpleNamespace(cuGraphExecDestroy=lambda graph: (0,))

    def allocate(self, n_bytes, purpose):
        self.held.append(np.zeros(n_bytes, np.uint8))
        return self.held[-1].ctypes.data

    def free(self, address):
        pass

    def upload(self, address, array):
        assert array.flags.c_contiguous
        ctypes.memmove(address, array.ctypes.data, array.nbytes)

    def download(self, array, address):
        ctypes.memmove(array.ctypes.data, address, array.nbytes)
        return array

    def synchronize(self):
        pass


class HostKernels:
    """`capture` gives what was captured, with the trace's address."""

    sizes = PACKED

    def __init__(self, device, plan, flags=()):
        self.flags, self.packed = flags, []

    def capture(self, names, arguments, stream):
        return names, self.flags, arguments.trace

    def pack(self, name, source, packed, stream):
        self.packed.append((name, source, packed))

    def close(self):
        pass


class HostArena:
    def __init__(self, device):
        self._sizes = {
            "weights": LAYERS * sum(PACKED.values()),
            "qkv_bias": 4 * LAYERS * QKV_ROWS,
            "rows": 2 * 257 * CONFIG.hidden_size,
            "rope": 4 * N_SLOTS * HEAD,
            "cache": LAYERS * N_SLOTS * KV * 2 * HEAD * 2,
            "prompt_rows": 2 * 32 * CONFIG.hidden_size,
            **dict.fromkeys(("words", "prefill", "ranked", "ranked_slots"), 64),
        }
        self._at = {name: device.allocate(size, name) for name, size in self._sizes.items()}
        self.filled = []

    def __getitem__(self, name):
        return self._at[name]

    def size(self, name):
        return self._sizes[name]

    def fill(self, name, byte):
        self.filled.append(name)


class HostDecoder:
    def __init__(self, device, plan, kernels, weights, frames):
        self.kernels, self.plan_id, self.stream = kernels, "host", None
        self.arena, self.arguments = HostArena(device), Arguments()
        self.begun = []
        self.told = np.zeros((), result_dtype(CONFIG.hidden_size))
        self.told["steps_done"] = 8

    def begin(self, context, slots, n_steps, is_frame=True, graph=None):
        self.begun.append((len(context), len(slots), n_steps, is_frame, graph))

    def finish(self):
        return self.told

    def close(self):
        pass


@pytest.fixture
def probe(tensors, monkeypatch):
    monkeypatch.setattr(gate_probe, "Kernels", HostKernels)
    monkeypatch.setattr(gate_probe, "CudaDecoder", HostDecoder)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    probe = gate_probe.GpuProbe(HostDevice(), make_plan(CONFIG, N_SLOTS, 132, 232_448), tensors)
    yield probe
    probe.close()


def held(probe, name: str, dtype) -> np.ndarray:
    arena, itemsize = probe._decoder.arena, np.dtype(dtype).itemsize
    return probe._device.download(np.empty(arena.size(name) // itemsize, dtype), arena[name])


def test_passes_run_in_the_build_that_robots_run_or_in_the_one_that_was_asked_for(probe, passes):
    arguments = (passes.context(1), passes.block_slots(1), passes.frames[1], int(passes.starts[1]))
    assert probe.run(*arguments, is_traced=False).trace is None
    traced = probe.run(*arguments)
    probe.lose_split(True)
    probe.run(*arguments)
    probe.lose_split(False)
    probe.run(*arguments)
    graphs = [graph for *_, graph in probe._decoder.begun]
    assert graphs[0] is None
    assert [graph[1] for graph in graphs[1:]] == [
        ("-DTRACED",),
        ("-DTRACED", "-DLOST_SPLIT=0"),
        ("-DTRACED",),
    ]
    assert all(graph[0][-1] == "decode" and graph[2] for graph in graphs[1:])
    assert traced.trace.shape == (40, LAYERS, probe._trace.shape[-1])
    # What the engine itself captures later writes no trace.
    assert probe._decoder.arguments.trace is None or probe._decoder.arguments.trace == 0


def test_decoding_begins_with_the_token_that_was_asked_for(probe, passes, tensors):
    probe.run(passes.context(1), passes.block_slots(1), passes.frames[1], 77)
    row = torch.from_numpy(held(probe, "rows", np.int16)[: CONFIG.hidden_size]).view(torch.bfloat16)
    assert torch.equal(row, tensors["model.embed_tokens.weight"][77])


def test_a_prompt_is_filled_in_by_pieces_of_32(probe, tensors):
    tokens = np.arange(45, dtype=np.int32)
    stream = probe.fill_prompt(tokens, np.arange(45, dtype=np.int32))
    assert stream.shape == (45, LAYERS, CONFIG.hidden_size)
    assert [begun[:4] for begun in probe._decoder.begun] == [(0, 32, 0, False), (32, 13, 0, False)]
    rows = torch.from_numpy(held(probe, "prompt_rows", np.int16)).view(torch.bfloat16)
    rows = rows.reshape(32, CONFIG.hidden_size)
    assert torch.equal(rows[:13], tensors["model.embed_tokens.weight"][32:45]) and not rows[13:].any()


def test_values_are_written_where_they_are_read_and_keys_stay(probe):
    shape = (LAYERS, N_SLOTS, KV, 2, HEAD)
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(0)).bfloat16()
    probe._device.upload(probe._decoder.arena["cache"], drawn.view(torch.int16).numpy())
    slots = np.array([7, 3, 150], np.int32)
    keys, values = probe.cached(slots)
    assert torch.equal(keys, drawn[:, slots.tolist(), :, 0])
    assert torch.equal(values, drawn[:, slots.tolist(), :, 1])
    probe.set_values(slots, values + 1)
    assert {"ranked", "ranked_slots"} <= set(probe._decoder.arena.filled)
    after_keys, after_values = probe.cached(np.arange(N_SLOTS, dtype=np.int32))
    assert torch.equal(after_keys, drawn[:, :, :, 0])
    others = [slot for slot in range(N_SLOTS) if slot not in slots]
    assert torch.equal(after_values[:, others], drawn[:, others, :, 1])
    assert torch.equal(after_values[:, slots.tolist()], values + 1)


def test_biases_and_matrices_go_to_their_layer(probe):
    biases = np.arange(QKV_ROWS, dtype=np.float32)
    probe.set_biases(1, biases)
    assert held(probe, "qkv_bias", np.float32).reshape(LAYERS, QKV_ROWS).tolist() == [
        [0] * QKV_ROWS,
        biases.tolist(),
    ]
    probe.set_qkv(1, np.ones((QKV_ROWS, CONFIG.hidden_size), np.float32))
    ((name, source, packed),) = probe._decoder.kernels.packed
    assert (name, packed) == ("qkv", probe._decoder.arena["weights"] + sum(PACKED.values()))
    assert source == probe._staging


def test_a_pass_that_did_not_end_is_no_result(probe, passes):
    probe._decoder.told["steps_done"] = 3
    with pytest.raises(EngineError, match="after 3 of 8 steps"):
        probe.run(passes.context(1), passes.block_slots(1), passes.frames[N_PASSES - 1], 0)
