import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from vla_edge_ros.engine import numpy_engine
from vla_edge_ros.engine.interface import (
    EngineBusy,
    EngineError,
    EngineSpec,
    FrameWork,
    PromptWork,
    WorkResult,
    WorkStatus,
)
from vla_edge_ros.engine.numpy_engine import NumpyEngine
from vla_edge_ros.engine.presets import PRESETS
from vla_edge_ros.engine.recording import NoiseFrames
from vla_edge_ros.engine.vision import cut_patches
from vla_edge_ros.memory.frame_memory import FrameMemory
from vla_edge_ros.memory.policies import make_policy
from vla_edge_ros.perception.frame import FrameMeta

N_SLOTS = 256
PROMPT = np.frombuffer(b"put the red cup on the blue plate", np.uint8).astype(np.int32)


class Robot:
    """An engine, its memory and a camera of seeded noise; slots are those of the memory, permuted."""

    def __init__(
        self,
        permutation=None,
        action_tokens=7,
        n_slots=N_SLOTS,
        frames=None,
        policy="fifo",
        prompt=PROMPT,
        **spec,
    ):
        self.spec = EngineSpec(n_slots=n_slots, action_tokens=action_tokens, **spec)
        self.engine = NumpyEngine(self.spec, frames or NoiseFrames(0))
        self.info = self.engine.configure()
        self.memory = FrameMemory(n_slots, action_tokens, make_policy(policy))
        self.permutation = np.arange(n_slots, dtype=np.int32) if permutation is None else permutation
        self.tick = 0
        self.run(PromptWork(1, prompt, self.permutation[self.memory.set_prompt(len(prompt))]))

    def run(self, work) -> WorkResult:
        self.engine.submit(work)
        return self.engine.wait(0)

    def work(self) -> FrameWork:
        self.tick += 1
        for evicted in self.memory.make_room(self.tick):
            self.engine.evict(self.permutation[evicted.slots])
        return FrameWork(
            self.tick,
            self.permutation[self.memory.context_slots()],
            self.permutation[self.memory.frame_slots],
            self.permutation[self.memory.action_slots],
            prompt_tokens=self.memory.prompt_tokens,
        )

    def look(self) -> WorkResult:
        result = self.run(self.work())
        if result.status is WorkStatus.DONE:
            self.memory.retain(result.frame, result.embedding, self.tick)
        return result


class NoFrames:
    def read_into(self, out):
        return None


class BlackFrames:
    def read_into(self, out):
        out[:] = 0
        return FrameMeta(1, 0, 0, 0)


def outputs(result: WorkResult) -> tuple:
    parts = (result.tokens, result.top_probability, result.entropy, result.embedding)
    return tuple(part.tobytes() for part in parts)


@pytest.mark.parametrize("action_tokens", [1, 7, 8])
def test_a_pass_gives_one_action_token_a_dimension_from_the_last_256_rows(action_tokens):
    robot = Robot(action_tokens=action_tokens)
    result = robot.look()
    assert result.status is WorkStatus.DONE
    assert result.tokens.shape == result.entropy.shape == result.top_probability.shape == (1, action_tokens)
    assert result.tokens.dtype == np.int32
    assert (result.tokens >= 513 - 256).all()
    assert (result.tokens < 513).all()
    assert ((result.top_probability > 1 / 256) & (result.top_probability <= 1)).all()
    assert ((result.entropy >= 0) & (result.entropy < math.log(256))).all()


def test_fewer_action_slots_give_the_first_tokens_of_all_bit_for_bit():
    robot = Robot(frames=BlackFrames())
    robot.look()
    work = robot.work()
    whole = robot.run(work)
    for n in range(1, 7):
        part = robot.run(replace(work, action_slots=work.action_slots[:n]))
        assert (part.status, part.steps_done) == (WorkStatus.DONE, n)
        for name in ("tokens", "top_probability", "entropy"):
            assert getattr(part, name).tobytes() == getattr(whole, name)[:, :n].tobytes()
        assert part.embedding.tobytes() == whole.embedding.tobytes()


def test_a_pass_reports_the_frame_that_it_used():
    robot = Robot()
    robot.look()
    result = robot.look()
    assert result.frame == FrameMeta(2, 2, 2, 2)
    patches = cut_patches(robot.engine._frames.given[1], np.empty((32, 768), np.float32))
    weights = robot.engine._vision
    wanted = (patches.astype(np.float64) @ weights._weight.T + weights._bias).mean(axis=0)
    np.testing.assert_allclose(result.embedding, wanted, rtol=1e-4, atol=1e-5)


def test_patches_are_cut_row_by_row_and_normalised():
    frame = np.zeros((64, 128, 3), np.uint8)
    frame[16:32, 32:48] = 255
    frame[16, 33] = (0, 51, 102)
    patches = cut_patches(frame, np.empty((32, 768), np.float32))
    assert (patches[[n for n in range(32) if n != 8 + 2]] == -1).all()
    np.testing.assert_allclose(patches[10, :9], [1, 1, 1, -1, -0.6, -0.2, 1, 1, 1], rtol=1e-6)


def test_engines_of_one_seed_agree_bit_for_bit_and_other_frames_give_other_tokens():
    first, second = Robot(), Robot()
    results = [(first.look(), second.look()) for _ in range(6)]
    assert all(outputs(a) == outputs(b) for a, b in results)
    assert len({outputs(a)[0] for a, _ in results}) >= 4


def test_another_instruction_gives_another_action():
    other = np.frombuffer(b"wave", np.uint8).astype(np.int32)
    assert outputs(Robot().look())[1:3] != outputs(Robot(prompt=other).look())[1:3]


def test_a_prompt_may_be_empty():
    assert Robot(prompt=PROMPT[:0]).look().status is WorkStatus.DONE


@pytest.mark.parametrize("policy", ["fifo", "semantic"])
def test_permuting_the_physical_slots_leaves_outputs_bit_identical(policy):
    plain = Robot(policy=policy)
    shuffled = Robot(np.random.default_rng(0).permutation(N_SLOTS).astype(np.int32), policy=policy)
    for _ in range(plain.memory.capacity_frames + 3):
        assert outputs(plain.look()) == outputs(shuffled.look())


def test_after_an_eviction_layer_0_equals_a_fresh_build_and_deeper_layers_remember():
    robot = Robot(policy="semantic")
    for _ in range(robot.memory.capacity_frames + 2):
        robot.look()
    kept = [frame.meta.index for frame in robot.memory.frames]
    assert kept != list(range(kept[0], kept[0] + len(kept))), "frames were forgotten in the middle"
    given = robot.engine._frames.given

    class KeptFrames:
        indices = iter(kept)

        def read_into(self, out):
            index = next(self.indices)
            out[:] = given[index - 1]
            return FrameMeta(index, 0, 0, 0)

    fresh = Robot(frames=KeptFrames())
    for _ in kept:
        fresh.look()

    def cached(some: Robot) -> tuple[np.ndarray, np.ndarray]:
        slots, decoder = some.memory.context_slots(), some.engine.decoder
        return decoder.cached_keys[:, slots], decoder.cached_values[:, slots]

    for found, wanted in zip(cached(robot), cached(fresh), strict=True):
        assert found[0].tobytes() == wanted[0].tobytes()
        assert np.isfinite(found).all()
        assert not np.allclose(found[1:], wanted[1:], rtol=1e-3, atol=1e-3)


def test_reading_an_evicted_slot_fails_the_pass_and_the_engine_for_good():
    robot = Robot()
    robot.look()
    work = robot.work()
    forgotten = work.context_slots[-1:]
    robot.engine.evict(forgotten)
    assert np.isnan(robot.engine.decoder.cached_keys[:, forgotten]).all()
    assert np.isnan(robot.engine.decoder.cached_values[:, forgotten]).all()
    result = robot.run(work)
    assert result.status is WorkStatus.FAILED
    assert result.error == "the logits of decode step 0 are not finite: the engine must be replaced"
    assert robot.engine.wait(0).status is WorkStatus.FAILED
    assert robot.look().status is WorkStatus.FAILED


def test_reading_a_slot_that_was_never_written_fails_the_pass():
    robot = Robot()
    work = robot.work()
    work.context_slots = np.append(work.context_slots, np.int32(N_SLOTS - 1))
    assert robot.run(work).status is WorkStatus.FAILED


def test_without_a_frame_nothing_is_computed_or_written():
    robot = Robot(frames=NoFrames())
    work = robot.work()
    result = robot.run(work)
    assert result.status is WorkStatus.NO_FRAME
    assert result.tokens is None
    assert result.frame is None
    assert np.isnan(robot.engine.decoder.cached_keys[:, work.frame_slots]).all()


def test_equal_logits_give_the_lowest_action_row_at_even_odds():
    robot = Robot()
    robot.engine.decoder.weights["final_norm"][:] = 0
    result = robot.look()
    assert (result.tokens == 513 - 256).all()
    np.testing.assert_allclose(result.top_probability, 1 / 256, rtol=1e-5)
    np.testing.assert_allclose(result.entropy, math.log(256), rtol=1e-5)


def test_a_result_is_handed_out_once_and_work_waits_for_it():
    robot = Robot()
    assert robot.engine.wait(0) is None
    work = robot.work()
    robot.engine.submit(work)
    with pytest.raises(EngineBusy, match="before the result of 1 was claimed"):
        robot.engine.submit(work)
    assert robot.engine.wait(0).work_id == 1
    assert robot.engine.wait(0) is None


def test_stage_times_lie_within_the_time_of_the_pass():
    result = Robot().look()
    stages = result.stages
    parts = (stages.copy_ns, stages.vision_ns, stages.prefill_ns, stages.decode_ns)
    assert all(part > 0 for part in parts)
    assert sum(parts) <= result.finished_ns - result.started_ns


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("context_slots", [N_SLOTS], "a context slot lies in 256..256: wanted 0..255"),
        ("context_slots", [-1], "a context slot lies in -1..-1"),
        ("context_slots", list(range(N_SLOTS)), "a sequence of 295 tokens does not fit in 256 slots"),
        ("frame_slots", list(range(31)), "31 frame slots were given for 32 tokens"),
        ("action_slots", list(range(8)), "8 action slots were given: wanted 1 to 7"),
        ("action_slots", [], "0 action slots were given: wanted 1 to 7"),
    ],
)
def test_slots_that_do_not_exist_are_refused_and_the_engine_lives_on(field, value, message):
    robot = Robot()
    work = robot.work()
    setattr(work, field, np.array(value, np.int32))
    with pytest.raises(ValueError, match=message):
        robot.engine.submit(work)
    assert robot.look().status is WorkStatus.DONE


def test_a_prompt_token_outside_the_vocabulary_is_refused():
    robot = Robot()
    with pytest.raises(ValueError, match=r"a prompt token lies in 513..513: wanted 0..512"):
        robot.engine.submit(PromptWork(1, np.array([513], np.int32), np.array([0], np.int32)))


def test_a_pass_allocates_no_more_in_a_large_memory_than_in_a_small_one():
    def peak_bytes(n_slots: int) -> int:
        robot = Robot(n_slots=n_slots, frames=BlackFrames())
        robot.engine.decoder.cached_keys[:] = robot.engine.decoder.cached_values[:] = 0.1
        work = robot.work()
        work.context_slots = np.arange(40, n_slots, dtype=np.int32)
        robot.run(work)
        tracemalloc.start()
        assert robot.run(work).status is WorkStatus.DONE
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    # What is left are NumPy's own iteration buffers, of at most 32 KB an operand, freed with each call.
    assert peak_bytes(4096) < peak_bytes(1024) + 8_000


def test_the_account_is_what_is_allocated():
    robot = Robot()
    decoder, vision = robot.engine.decoder, robot.engine._vision
    weights = [*decoder.weights.values(), vision._weight, vision._bias]
    workspace = [*decoder._work.values(), vision._patches, vision._states]
    assert robot.info.account_bytes == {
        "weights": sum(array.nbytes for array in weights),
        "kv": decoder.cached_keys.nbytes + decoder.cached_values.nbytes,
        "workspace": sum(array.nbytes for array in workspace),
    }


def test_a_model_over_budget_is_refused_with_its_account_before_anything_is_allocated(monkeypatch):
    def allocate(*arguments):
        raise AssertionError("the decoder was allocated")

    monkeypatch.setattr(numpy_engine, "NumpyDecoder", allocate)
    spec = EngineSpec(model="qwen2.5-coder-1.5b", n_slots=4096, budget_bytes=4_000_000_000)
    # Weights: 1,543,714,304 + 1536 x 769 of 4 bytes; keys and values: 2 x 28 x 4096 x 256 of 4 bytes.
    with pytest.raises(
        EngineError, match=r"with 4096 slots needs .* \(weights 6179.6, kv 234.9, workspace .*4000.0 MB"
    ):
        NumpyEngine(spec, NoFrames()).configure()


def test_the_large_preset_fits_the_default_budget_in_float32():
    account = numpy_engine.account_bytes(PRESETS["qwen2.5-coder-1.5b"], 4096)
    assert sum(account.values()) < EngineSpec().budget_bytes


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_slots": 39}, "n_slots is 39: one frame and its action tokens need 40"),
        ({"action_tokens": 0}, "action_tokens is 0: wanted 1 to 8"),
        ({"action_tokens": 9}, "action_tokens is 9"),
    ],
)
def test_a_specification_that_cannot_work_is_refused(fields, message):
    with pytest.raises(EngineError, match=message):
        NumpyEngine(EngineSpec(**fields), NoFrames()).configure()


def test_closing_frees_the_decoder_and_may_be_done_twice():
    robot = Robot()
    work = robot.work()
    robot.engine.close()
    robot.engine.close()
    assert robot.engine.decoder is None
    for use in (lambda: robot.engine.submit(work), lambda: robot.engine.evict(work.frame_slots)):
        with pytest.raises(EngineError, match="not configured, or it is closed"):
            use()


def test_blas_threads_are_limited_while_the_engine_lives():
    def threads():
        return {library["filepath"]: library["num_threads"] for library in threadpool_info()}

    before = threads()
    engine = NumpyEngine(EngineSpec(blas_threads=1, n_slots=64), NoFrames())
    info = engine.configure()
    assert info.plan_id.endswith("-1threads")
    engine.close()
    assert threads() == before


def test_the_engine_says_what_fixes_its_sums_and_its_seed():
    info = Robot().info
    assert info.plan_id.startswith("numpy-")
    assert "unknown" not in info.plan_id
    assert info.notes == ("decoder and vision weights are random, of seed 0",)


# What an engine tells beside its actions


def test_every_query_gives_out_one_in_all():
    robot = Robot(prompt=np.arange(32, dtype=np.int32))
    decoder = robot.engine.decoder
    for _ in range(2):
        robot.look()
    context, block = robot.memory.context_slots(), robot.work().frame_slots
    counted = np.zeros(4)
    decoder.count_attention(0, counted)
    decoder.start(context)
    decoder.extend(decoder.embed_tokens(np.arange(32)), block)
    assert counted.sum() == pytest.approx(32, rel=1e-5), "prompt, two frames and the frame's own block"
    alone = np.zeros(1)
    decoder.count_attention(64, alone)
    decoder.start(context)
    decoder.extend(decoder.embed_tokens(np.arange(32)), block)
    assert alone[0] == pytest.approx(counted[2], rel=1e-6)


def test_signals_are_of_the_frames_before_and_do_not_change_the_pass():
    silent, telling = Robot(), Robot(gives_signals=True)
    for n_before in range(5):
        quiet, told = silent.look(), telling.look()
        assert outputs(quiet) == outputs(told) and quiet.signals is None
        signals = told.signals
        assert signals.frame_attention.shape == signals.action_attention.shape == (n_before,)
        assert signals.frame_attention.sum() < 32 and signals.action_attention.sum() < 7
        assert (signals.frame_attention > 0).all() and (signals.action_attention > 0).all()
        newest = telling.memory.context_slots()[-32:]
        values = telling.engine.decoder.cached_values[:, newest].astype(float)
        assert signals.value_norm == pytest.approx(np.sqrt((values**2).sum(axis=2)).mean(), rel=1e-5)


def test_signals_go_by_rank_and_not_by_slot():
    plain = Robot(gives_signals=True)
    shuffled = Robot(np.random.default_rng(1).permutation(N_SLOTS).astype(np.int32), gives_signals=True)
    for _ in range(8):
        first, second = plain.look().signals, shuffled.look().signals
        np.testing.assert_array_equal(first.frame_attention, second.frame_attention)
        np.testing.assert_array_equal(first.action_attention, second.action_attention)


def test_the_key_summary_is_that_of_the_frames_own_keys():
    robot = Robot(embedding="key_summary")
    result = robot.look()
    keys = robot.engine.decoder.cached_keys[0, robot.memory.context_slots()[-32:]].astype(float)
    wanted = keys / np.linalg.norm(keys, axis=1, keepdims=True)
    assert len(result.embedding) == robot.info.embedding_size == 32 * 64
    np.testing.assert_allclose(result.embedding, wanted.ravel(), rtol=1e-5, atol=1e-7)
