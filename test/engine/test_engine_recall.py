"""Blocks that went to the host ring and came back, in the NumPy engine and through the engine's process."""

import numpy as np
import pytest

from vla_edge_ros.engine import factory
from vla_edge_ros.engine.factory import make_engine
from vla_edge_ros.engine.interface import (
    EngineError,
    EngineSpec,
    FrameWork,
    PromptWork,
    WorkResult,
    WorkStatus,
)
from vla_edge_ros.engine.numpy_engine import NumpyEngine
from vla_edge_ros.engine.process import ProcessEngine
from vla_edge_ros.perception.frame_buffer import FrameBuffer

P, A, N_SLOTS = 20, 7, 400
FOREVER_NS = 1 << 62
BLOCK_BYTES = 4 * 2 * 4 * 32 * 64
"""float32, keys and values, 4 layers, 32 tokens, 1 KV head of 64: the preset `tiny`."""


class Bench:
    """An engine with a prompt and three frames in shuffled slots, and what a fourth one leads to."""

    def __init__(self, make, **spec):
        self.buffer = FrameBuffer.create()
        self.engine = make(EngineSpec(n_slots=N_SLOTS, action_tokens=A, **spec), self.buffer)
        self.info = self.engine.configure()
        slots = np.random.default_rng(2).permutation(N_SLOTS).astype(np.int32)
        self.prompt, self.actions = slots[:P], slots[P : P + A]
        self.blocks = [slots[start : start + 32] for start in range(P + A, N_SLOTS - 32, 32)]
        self.run(PromptWork(0, np.arange(P, dtype=np.int32), self.prompt))
        for number in range(3):
            self.see(number, self.blocks[:number], self.blocks[number])

    def see(self, number: int, context: list[np.ndarray], block: np.ndarray) -> WorkResult:
        """A pass over frame `number`, into `block`, behind the prompt and the blocks of `context`."""
        pixels = np.random.default_rng(number).integers(0, 256, (64, 128, 3), np.uint8)
        self.buffer.write(pixels, number, number, number)
        return self.run(FrameWork(1, np.concatenate([self.prompt, *context]), block, self.actions))

    def run(self, work) -> WorkResult:
        self.engine.submit(work)
        result = self.engine.wait(FOREVER_NS)
        assert result.status is WorkStatus.DONE, result.error
        return result

    def close(self) -> None:
        self.engine.close()
        self.buffer.close()


def bits(result: WorkResult) -> tuple:
    return tuple(part.tobytes() for part in (result.tokens, result.top_probability, result.entropy))


@pytest.fixture(params=[NumpyEngine, ProcessEngine])
def bench(request):
    bench = Bench(request.param, host_bytes=3 * BLOCK_BYTES + 1)
    yield bench
    bench.close()


def test_a_pass_over_a_block_that_came_back_to_other_slots_has_the_bits_of_one_that_stayed(bench):
    first, second, third, scratch, other = bench.blocks[:5]
    stayed = bits(bench.see(9, [first, second, third], scratch))
    without = bits(bench.see(9, [first, third], scratch))
    assert stayed != without

    bench.engine.stash(2, second)
    bench.engine.evict(second)
    bench.see(5, [first, third], second)
    bench.engine.restore(2, other)
    assert bits(bench.see(9, [first, other, third], scratch)) == stayed
    # The ring keeps its copy.
    bench.engine.evict(other)
    bench.engine.restore(2, second)
    assert bits(bench.see(9, [first, second, third], scratch)) == stayed


def test_a_block_goes_and_another_comes_to_its_slots_between_two_passes(bench):
    first, second, third, scratch = bench.blocks[:4]
    stayed = bits(bench.see(9, [first, second, third], scratch))
    bench.engine.stash(0, second)
    bench.engine.evict(second)
    bench.see(5, [first, third], scratch)
    bench.engine.stash(1, third)
    bench.engine.evict(third)
    bench.engine.restore(0, third)
    bench.engine.restore(1, second)
    assert bits(bench.see(9, [first, third, second], scratch)) == stayed


def test_keys_and_values_come_back_bit_by_bit():
    bench = Bench(NumpyEngine, host_bytes=BLOCK_BYTES)
    cached = bench.engine.decoder.cached_keys, bench.engine.decoder.cached_values
    first, other = bench.blocks[0], bench.blocks[7]
    before = [array[:, first].tobytes() for array in cached]
    bench.engine.stash(0, first)
    bench.engine.evict(first)
    bench.engine.restore(0, other)
    assert [array[:, other].tobytes() for array in cached] == before
    assert np.isnan(cached[0][:, first]).all()
    bench.close()


def test_the_ring_has_as_many_blocks_as_fit_and_is_in_the_account(bench):
    assert (bench.info.ring_blocks, bench.info.block_bytes) == (3, BLOCK_BYTES)
    assert bench.info.account_bytes["host_ring"] == 3 * BLOCK_BYTES


def test_without_host_bytes_there_is_no_ring():
    bench = Bench(NumpyEngine)
    assert bench.info.ring_blocks == 0
    assert "host_ring" not in bench.info.account_bytes
    bench.close()


def test_an_engine_chosen_by_auto_has_the_ring_of_its_choice(monkeypatch):
    monkeypatch.setattr(factory, "cuda_obstacle", lambda *_: "no NVIDIA driver")
    bench = Bench(make_engine, backend="auto", host_bytes=BLOCK_BYTES)
    first, other, scratch = (bench.blocks[i] for i in (0, 4, 5))
    stayed = bits(bench.see(9, [first], scratch))
    bench.engine.stash(0, first)
    bench.engine.evict(first)
    bench.engine.restore(0, other)
    assert bits(bench.see(9, [other], scratch)) == stayed
    bench.close()


def test_a_ring_that_holds_no_block_is_refused():
    with pytest.raises(
        EngineError, match=rf"^memory.host_bytes is 1000 and a frame .* {BLOCK_BYTES} bytes: raise"
    ):
        NumpyEngine(EngineSpec(host_bytes=1000), None).configure()


def test_a_ring_beyond_the_budget_is_refused():
    with pytest.raises(EngineError, match=r"host_ring 99\.\d.* memory.budget_bytes is 50.0 MB"):
        NumpyEngine(EngineSpec(host_bytes=100_000_000, budget_bytes=50_000_000), None).configure()


def test_the_cuda_engine_has_no_ring_and_says_so():
    with pytest.raises(EngineError, match="backend cuda has no host ring: use backend numpy"):
        make_engine(EngineSpec(backend="cuda", host_bytes=1_000_000), None)


def test_the_fake_engine_has_a_ring_with_nothing_in_it():
    buffer = FrameBuffer.create()
    engine = make_engine(EngineSpec(backend="fake", model="fake", host_bytes=1_000_000), buffer)
    assert engine.configure().ring_blocks == 1_000_000 // 4096
    engine.stash(0, np.arange(32))
    engine.restore(0, np.arange(32))
    buffer.close()
