"""What the CUDA engine does when it is configured, on a driver that computes nothing: no GPU is needed."""

import importlib
import json
import sys
from dataclasses import replace
from types import ModuleType

import fake_cuda
import numpy as np
import pytest

from vla_edge_ros.engine.cuda.compiler import Compiler, find_build
from vla_edge_ros.engine.cuda.kernels import command_dtype
from vla_edge_ros.engine.cuda.plan import candidates
from vla_edge_ros.engine.interface import EngineError, EngineSpec
from vla_edge_ros.engine.presets import PRESETS
from vla_edge_ros.engine.weights import SeededWeights
from vla_edge_ros.perception.frame_buffer import FrameBuffer

ENGINE = "vla_edge_ros.engine.cuda.engine"
SPEC = EngineSpec(backend="cuda", model="tiny", n_slots=512)
DEVICE = (132, 232_448)


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """The driver, PyCUDA and a way to make the engine."""
    tiny = replace(PRESETS["tiny"], num_hidden_layers=1)
    monkeypatch.setitem(PRESETS, "tiny", tiny)
    monkeypatch.setattr(SeededWeights, "read", lambda self, name, out, first_row=0: out)
    driver, pycuda = fake_cuda.install(monkeypatch, tmp_path, tiny.hidden_size, SPEC.n_slots)
    monkeypatch.setitem(sys.modules, ENGINE, ModuleType(ENGINE))
    del sys.modules[ENGINE]
    engine = importlib.import_module(ENGINE)
    frames = FrameBuffer.create()
    yield driver, pycuda, lambda spec=SPEC: engine.CudaEngine(spec, frames)
    frames.close()


def rule(n: int = 0):
    return candidates(PRESETS["tiny"], SPEC.n_slots, *DEVICE)[n]


def id_of(n: int = 0) -> str:
    return rule(n).identity(find_build("sm_90"))


def test_what_configuring_takes_is_accounted_and_given_back(fake):
    driver, _, make = fake
    engine = make()
    info = engine.configure()
    account = info.account_bytes
    assert list(account) == ["weights", "kv", "workspace", "cuda_context", "page_locked"]
    on_device = sum(size for purpose, size in account.items() if purpose != "page_locked")
    assert on_device == fake_cuda.TOTAL_BYTES - driver.free_bytes
    # The frame buffer, the command with its 512 slots, and the result.
    assert account["page_locked"] > 2 * 64 * 128 * 3 + 4 * 512
    engine.close()
    assert driver.held == set()


def test_configuring_that_fails_at_any_call_gives_everything_back(fake):
    driver, _, make = fake
    spec = replace(SPEC, plan=id_of())
    engine = make(spec)
    engine.configure()
    n_calls = len(driver.calls)
    engine.close()
    assert n_calls > 60
    for nth in range(1, n_calls + 1):
        driver.calls.clear()
        driver.fail_at = nth
        with pytest.raises(EngineError, match="CUDA_ERROR_UNKNOWN"):
            make(spec).configure()
        assert driver.held == set(), f"after call {nth}, {driver.calls[nth - 1]}"


def test_a_budget_too_small_is_refused_with_the_account_before_anything_is_taken(fake, monkeypatch):
    driver, _, make = fake

    def read(*_):
        raise AssertionError("weights were read")

    monkeypatch.setattr(SeededWeights, "read", read)
    with pytest.raises(
        EngineError,
        match=r"512 slots needs \d+ MB \(weights .*, kv .*, workspace .*, cuda context 500.0, page locked .*"
        r"\), and memory.budget_bytes is 100 MB",
    ):
        make(replace(SPEC, budget_bytes=100_000_000)).configure()
    assert not {"cuMemAlloc", "cuMemHostAlloc", "cuGraphLaunch"} & set(driver.calls)
    assert driver.held == set()


@pytest.mark.parametrize("logit", [np.nan, np.inf])
def test_weights_that_give_no_finite_logits_are_refused_and_everything_is_given_back(fake, logit):
    driver, _, make = fake
    driver.logit = logit
    with pytest.raises(EngineError, match=r"^first pass: the logits of decode step 0 are not finite"):
        make().configure()
    assert driver.held == set()


def test_a_device_without_room_is_one_line(fake):
    driver, _, make = fake
    driver.fail_with["cuMemAlloc"] = fake_cuda.Result.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(
        EngineError, match=r"^no \d+ MB of device memory for the engine's arena: 15500 of 16000"
    ):
        make().configure()


def test_a_driver_older_than_the_compiler_is_named(fake):
    driver, pycuda, make = fake
    driver.fail_with["cuModuleLoadData"] = fake_cuda.Result.CUDA_ERROR_NO_BINARY_FOR_GPU
    pycuda.driver_version = 12_040
    with pytest.raises(
        EngineError, match=r"as nvcc13.0.48 compiled it: update the driver, which is of CUDA 12.4"
    ):
        make().configure()
    pycuda.driver_version = 11_080
    with pytest.raises(
        EngineError, match=r"the NVIDIA driver is of CUDA 11.8: the engine needs 12.0, update it"
    ):
        make().configure()


def test_a_device_too_old_or_too_small_is_named(fake):
    _, pycuda, make = fake
    pycuda.capability = (7, 5)
    with pytest.raises(EngineError, match="Fake GPU is sm_75: the kernels need sm_80 or later"):
        make().configure()
    pycuda.capability = (8, 7)
    pycuda.attributes["shared_bytes"] = 166_912
    with pytest.raises(EngineError, match=r"needs 200000 bytes of shared memory a block.*gives 166912"):
        make().configure()
    pycuda.attributes["shared_bytes"] = 49_152
    with pytest.raises(
        EngineError, match="the device gives a block 49152 bytes of shared memory: it takes 99000"
    ):
        make().configure()


def test_a_defect_while_configuring_is_told_and_does_not_hang(fake, monkeypatch):
    driver, _, make = fake

    def read(*_):
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(SeededWeights, "read", read)
    with pytest.raises(ZeroDivisionError, match="a defect"):
        make().configure()
    assert driver.held == set()


# The choice of a plan


def grid_132_is_fastest(options: str) -> int:
    return 900_000 if "-DGRID=132" in options else 1_000_000


def test_the_fastest_plan_is_chosen_once_and_kept(fake):
    driver, _, make = fake
    driver.pass_ns = grid_132_is_fastest
    engine = make()
    info = engine.configure()
    engine.close()
    assert info.plan_id.startswith("cuda-132x8-s3072x8-f2.1-sm_90-nvcc13.0.48-k")
    assert any("a pass takes 900 us" in note for note in info.notes)
    n_measured = driver.calls.count("cuGraphLaunch")
    assert n_measured > 100

    driver.calls.clear()
    again = make()
    assert again.configure().plan_id == info.plan_id
    again.close()
    assert driver.calls.count("cuGraphLaunch") < 5


def test_a_gain_within_the_noise_keeps_the_plan_by_rule(fake):
    driver, _, make = fake
    driver.pass_ns = lambda options: 995_000 if "-DGRID=132" in options else 1_000_000
    engine = make()
    assert engine.configure().plan_id == id_of()
    engine.close()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"device": "another", "plan_id": "cuda-1x8"}', "null"])
def test_a_plan_file_that_is_none_is_said_and_written_again(fake, content, tmp_path):
    driver, _, make = fake
    driver.pass_ns = grid_132_is_fastest
    engine = make()
    engine.configure()
    engine.close()
    (kept,) = tmp_path.rglob("plans/*.json")
    kept.write_text(content)
    engine = make()
    info = engine.configure()
    engine.close()
    assert info.plan_id.startswith("cuda-132x8-")
    assert sum("is no record of a plan for this device" in note for note in info.notes) == 1
    assert json.loads(kept.read_text())["plan_id"] == info.plan_id


def test_a_plan_that_does_not_compile_is_passed_over(fake, monkeypatch):
    driver, _, make = fake
    driver.pass_ns = grid_132_is_fastest
    cubin = Compiler.cubin

    def refuse(self, name):
        if name == "prefill" and "-DGRID=132" in self._flags:
            raise EngineError("nvcc could not compile prefill.cu")
        return cubin(self, name)

    monkeypatch.setattr(Compiler, "cubin", refuse)
    engine = make()
    assert engine.configure().plan_id == id_of()
    engine.close()


def test_no_plan_is_measured_when_time_is_up():
    from vla_edge_ros.engine.cuda import tuning

    times = iter([0.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0])
    plans = {str(n): rule(n) for n in range(3)}
    measured, _ = tuning.measure_all(lambda plan: 1.0, plans, {}, lambda: next(times))
    assert list(measured) == ["0"]


# A plan that is asked for


def test_the_plan_asked_for_is_followed_without_measuring(fake):
    driver, _, make = fake
    for plan in (id_of(1), id_of(1).partition("-sm_90")[0]):
        driver.calls.clear()
        engine = make(replace(SPEC, plan=plan))
        assert engine.configure().plan_id == id_of(1)
        engine.close()
        assert driver.calls.count("cuGraphLaunch") < 5


def test_a_plan_that_cannot_be_built_again_is_refused_with_what_differs(fake):
    _, _, make = fake
    wanted = id_of()
    for plan, complaint in (
        (wanted.replace("sm_90", "sm_80"), r"different architecture \(sm_80 there, sm_90 here\); empty it"),
        (
            wanted.replace("nvcc13.0.48", "nvcc12.4"),
            r"different compiler \(nvcc12.4 there, nvcc13.0.48 here\)",
        ),
        (wanted[:-18] + "0" * 8 + wanted[-10:], r"different kernel sources \(00000000 there"),
        (wanted[:-8] + "0" * 8, r"different model or memory.slots \(00000000 there"),
        ("cuda-133x8-s3072x8-f2.1", "wants 133 multiprocessors and this device has 132"),
        ("numpy-openblas-1threads", "engine.plan is 'numpy-openblas-1threads': wanted the plan_id of a cuda"),
    ):
        with pytest.raises(EngineError, match=complaint):
            make(replace(SPEC, plan=plan)).configure()


def test_the_id_names_everything_that_a_plan_decides():
    build = find_build_of_nothing()
    plan = rule()
    ids = {plan.identity(build)}
    for change in ({"grid": 99}, {"stage_bytes": 2048}, {"ring_slots": 5}, {"stream_copies": 3}):
        ids.add(replace(plan, **change).identity(build))
    ids.add(replace(plan, exchange_copies=2).identity(build))
    ids.add(replace(plan, n_slots=1024).identity(build))
    ids.add(replace(plan, config=replace(plan.config, rope_theta=1e4)).identity(build))
    ids.add(plan.identity(replace(build, kernels="1" * 8)))
    assert len(ids) == 9


def find_build_of_nothing():
    from vla_edge_ros.engine.cuda.compiler import Build

    return Build("sm_90", "nvcc13.0.48", "0" * 8)


def test_a_pass_is_launched_with_all_of_its_command(fake):
    driver, _, make = fake
    engine = make(replace(SPEC, plan=id_of()))
    engine.configure()
    seen, dtype = [], command_dtype(SPEC.n_slots)

    def launch(graph, stream):
        (memory,) = (m for m in driver._host.values() if m.nbytes == driver.command_bytes)
        seen.append(memory[: dtype.itemsize].view(dtype)[0].copy())
        return (fake_cuda.Result.CUDA_SUCCESS,)

    driver.cuGraphLaunch = launch
    slots = np.arange(100, 300, dtype=np.int32)
    limits = {"abort_ns": 10**18, "prefill_layer_ns": 1 << 40, "decode_layer_ns": 7}
    for n_context in (150, 3):
        engine._decoder.begin(slots[:n_context], slots[-32:], 8, **limits)
    first, second = seen
    names = ("n_context", "n_tokens", "n_steps", "is_frame", "is_void", "is_aborted", "abort_ns")
    assert [int(first[name]) for name in names] == [150, 32, 8, 1, 0, 0, 10**18]
    assert (first["prefill_layer_ns"], first["decode_layer_ns"]) == (2**32 - 1, 7), "as long as 32 bits tell"
    assert second["n_context"] == 3 and second["epoch"] > first["epoch"]
    for command, n_context in ((first, 150), (second, 3)):
        assert np.array_equal(command["context_slots"][:n_context], slots[:n_context])
        assert np.array_equal(command["token_slots"], slots[-32:])
    engine.close()


def test_frames_of_passes_are_not_needed_to_configure(fake):
    _, _, make = fake
    engine = make()
    assert engine.configure().embedding_size == 192
    engine.evict(np.arange(3))
    engine.close()
    engine.close()
