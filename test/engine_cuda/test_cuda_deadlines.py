"""The CUDA engine against deadlines, on a device that is made up; test_on_device.py has the real one."""

import importlib
import importlib.util
import sys
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest

from vla_edge_ros.engine.cuda.device_clock import DeviceClock
from vla_edge_ros.engine.cuda.kernels import command_dtype, last_mark_ns, part_ends_ns, result_dtype
from vla_edge_ros.engine.interface import (
    EngineBusy,
    EngineError,
    EngineInfo,
    EngineSpec,
    FrameWork,
    PromptWork,
    StageTimes,
    WorkStatus,
)
from vla_edge_ros.engine.pace import STEP

A, N_LAYERS, HIDDEN, MS = 7, 4, 16, 1_000_000
NOW = 10**15
"""The steady clock stands still: a made-up pass takes no time."""

LONG_NS = 60 * 10**9
SLOTS = np.arange(64, dtype=np.int32)
NAME = "vla_edge_ros.engine.cuda.engine"


@pytest.fixture(scope="module")
def engine_module():
    """The engine's module, which asks for packages that only a machine with a GPU has."""
    found, packages = importlib.util.find_spec, ("pycuda", "cuda", "cuda.bindings")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: name in packages or found(name))
        yield importlib.import_module(NAME)
    sys.modules.pop(NAME, None)


class MadeUpDevice:
    """Takes no time: a pass of these parts is told in device time, and stops after layers as the kernels do.

    voids: what the next passes find instead of a whole frame, as in `Result.is_void`.
    waits: (until_ns, least_ns) of every wait. is_done, fault: what the next ones find.
    """

    copy_ns, vision_ns, prefill_ns, step_ns = MS, MS, 4 * MS, 2 * MS

    def __init__(self):
        self.config = SimpleNamespace(num_hidden_layers=N_LAYERS)
        self.clock = DeviceClock()
        self.offset_ns = 10**18
        self.told = np.zeros((), result_dtype(HIDDEN))
        self.begun: list[dict] = []
        self.voids: list[int] = []
        self.waits: list[tuple[int, int]] = []
        self.is_done, self.fault = True, None
        self.clock.observe(NOW, NOW + self.offset_ns, NOW + self.offset_ns, NOW)

    def close(self):
        pass

    def fill_prompt(self, tokens, slots, context_slots):
        if self.fault is not None:
            raise self.fault

    def begin(self, context_slots, frame_slots, n_steps, **limits):
        self.begun.append(limits)
        told, now = self.told, NOW + self.offset_ns
        told["is_aborted"] = told["steps_done"] = 0
        told["fetched_ns"] = now
        told["is_void"] = self.voids.pop(0) if self.voids else 0
        if told["is_void"]:
            return
        end_ns = limits.get("abort_ns", 1 << 63)
        told["frame_meta"] = (1, 2, 3, 4)
        told["prefill_began_ns"] = now = now + self.copy_ns
        told["embedded_ns"] = now = now + self.vision_ns
        steps_ns = n_steps * N_LAYERS * limits.get("decode_layer_ns", 0)
        for left in range(N_LAYERS, -1, -1):
            if now + left * limits.get("prefill_layer_ns", 0) + steps_ns > end_ns:
                return self._stop(now, in_prefill=True)
            now += self.prefill_ns // N_LAYERS * (left > 0)
        told["prefill_ended_ns"] = now
        for step in range(n_steps):
            for layer in range(N_LAYERS):
                left = (n_steps - step) * N_LAYERS - layer
                if now + left * limits.get("decode_layer_ns", 0) > end_ns:
                    return self._stop(now + 1, in_prefill=False)
                now += self.step_ns // N_LAYERS
            told["step_ended_ns"][step] = now
            told["steps_done"] = step + 1

    def _stop(self, now, in_prefill):
        self.told["is_aborted"] = 1
        self.told["stopped_ns"] = now
        if in_prefill:
            self.told["prefill_ended_ns"] = now

    def is_over_by(self, until_ns, least_ns):
        self.waits.append((until_ns, least_ns))
        if self.fault is not None:
            raise self.fault
        return self.is_done

    def outcome(self):
        return self.told

    finish = outcome


@pytest.fixture
def made(engine_module, monkeypatch):
    """An engine and its device."""
    device = MadeUpDevice()
    monkeypatch.setattr(
        engine_module.CudaEngine, "_open", lambda self, _: (device, EngineInfo("cuda", "x", 513, HIDDEN))
    )
    monkeypatch.setattr(engine_module, "time", SimpleNamespace(monotonic_ns=lambda: NOW))
    engine = engine_module.CudaEngine(EngineSpec(n_slots=256, action_tokens=A), None)
    engine._first_action = 256
    engine.configure()
    with closing(engine):
        yield engine, device


def run(engine, deadline_ns=0, work_id=1):
    engine.submit(FrameWork(work_id, SLOTS[:32], SLOTS[32:64], SLOTS[:A], deadline_ns))
    return engine.wait(NOW + LONG_NS)


def test_the_stages_of_a_whole_pass_are_those_of_the_device(made):
    engine, device = made
    result = run(engine)
    assert (result.status, result.steps_done) == (WorkStatus.DONE, A)
    assert result.stages == StageTimes(MS, MS, 4 * MS, A * 2 * MS)
    assert result.tokens.shape == (1, A)
    assert device.begun == [{}], "without a deadline the device is not told one"


def test_fewer_action_slots_are_as_many_steps_and_none_or_too_many_are_refused(made):
    engine, device = made
    device.told["logits"][3:] = np.nan  # what an earlier pass left
    engine.submit(FrameWork(1, SLOTS[:32], SLOTS[32:64], SLOTS[:3]))
    result = engine.wait(NOW + LONG_NS)
    assert (result.status, result.steps_done) == (WorkStatus.DONE, 3)
    assert result.stages == StageTimes(MS, MS, 4 * MS, 3 * 2 * MS)
    assert result.tokens.shape == result.entropy.shape == result.top_probability.shape == (1, 3)
    for n in (0, A + 1):
        with pytest.raises(ValueError, match=f"{n} action slots: wanted 1 to {A}"):
            engine.submit(FrameWork(2, SLOTS[:32], SLOTS[32:64], SLOTS[:n]))


def test_the_device_is_told_the_deadline_in_its_own_time_and_the_least_that_a_layer_takes(made):
    engine, device = made
    run(engine)
    deadline_ns = NOW + LONG_NS
    assert run(engine, deadline_ns).status is WorkStatus.DONE
    limits = device.begun[-1]
    # The clocks may drift apart by 500 ppm until then.
    assert 0 <= limits["abort_ns"] - (deadline_ns + device.offset_ns) <= LONG_NS // 2000 + 10
    assert (limits["prefill_layer_ns"], limits["decode_layer_ns"]) == (MS, MS // 2)


@pytest.mark.parametrize(
    ("budget_ms", "steps_done", "decodes"), [(3, 0, False), (5, 0, False), (7, 0, True), (11.2, 2, True)]
)
def test_a_pass_that_the_device_stops_says_how_far_it_came(made, budget_ms, steps_done, decodes):
    """Nothing is known yet, so that the deadline itself stops it: in prefill, then in a step."""
    engine, _ = made
    result = run(engine, NOW + round(budget_ms * MS))
    assert (result.status, result.steps_done) == (WorkStatus.ABORTED, steps_done)
    assert result.stages.copy_ns == result.stages.vision_ns == MS
    assert (result.stages.decode_ns > 0) == decodes
    if decodes:
        assert result.stages.prefill_ns == 4 * MS
    assert result.tokens is result.frame is result.embedding is None
    assert run(engine).status is WorkStatus.DONE


def test_what_passes_took_at_least_stops_one_before_the_device_hears_of_it(made):
    engine, device = made
    run(engine)
    # 20 ms at least: 1 + 1 + 4 + 7 x 2.
    result = run(engine, NOW + 19 * MS)
    assert (result.status, len(device.begun)) == (WorkStatus.ABORTED, 1)
    assert result.remaining == StageTimes(MS, MS, 4 * MS, 14 * MS)
    assert result.stages.total_ns == 0


def test_a_pass_that_slows_down_is_stopped_as_soon_as_its_layers_do_not_fit_any_more(made):
    engine, device = made
    run(engine)
    device.prefill_ns = 40 * MS
    # 14 ms are for the steps. After vision and two layers 22 are gone, after three 32.
    result = run(engine, NOW + 40 * MS)
    assert result.status is WorkStatus.ABORTED
    assert result.stages == StageTimes(MS, MS, 30 * MS)
    assert result.remaining == StageTimes(decode_ns=14 * MS)


def test_a_machine_that_has_become_faster_is_used_again(made):
    engine, device = made
    device.prefill_ns = 400 * MS
    run(engine)
    device.prefill_ns = 4 * MS
    n_stopped = 0
    while run(engine, NOW + 200 * MS).status is WorkStatus.ABORTED:
        n_stopped += 1
    assert 1 <= n_stopped < 10
    assert engine._pace.least_ns("prefill", 32) == 4 * MS
    assert engine._pace.least_ns(STEP, 32) > 0


def test_a_frame_that_is_overtaken_is_read_again_and_none_is_no_frame(made):
    engine, device = made
    device.voids = [2, 2]
    assert run(engine, NOW + LONG_NS).status is WorkStatus.DONE
    assert len(device.begun) == 3
    device.voids = [1]
    assert run(engine, NOW + LONG_NS).status is WorkStatus.NO_FRAME


def test_a_pass_is_waited_for_asleep_as_long_as_it_takes_at_least(made):
    engine, device = made
    run(engine)
    run(engine)
    # 20 ms at least: 1 + 1 + 4 + 7 x 2; of the first nothing was known.
    assert device.waits == [(NOW + LONG_NS, 0), (NOW + LONG_NS, 20 * MS)]


def test_a_pass_that_still_runs_is_no_result_and_can_be_waited_for_again(made):
    engine, device = made
    device.is_done = False
    assert run(engine) is None
    with pytest.raises(EngineBusy, match="work 2 was submitted before work 1 was claimed"):
        run(engine, work_id=2)
    device.is_done = True
    assert engine.wait(NOW + LONG_NS).status is WorkStatus.DONE
    assert engine.wait(NOW + LONG_NS) is None


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (
            EngineError("CUDA call failed: CUDA_ERROR_UNKNOWN (999)"),
            "CUDA call failed: CUDA_ERROR_UNKNOWN (999)",
        ),
        (ZeroDivisionError("a defect\nof two lines"), "ZeroDivisionError: a defect of two lines"),
    ],
)
def test_whatever_goes_wrong_is_a_failed_result_that_names_it_and_stays(made, fault, error):
    engine, device = made
    device.fault = fault
    result = run(engine)
    assert (result.work_id, result.status, result.error) == (1, WorkStatus.FAILED, error)
    device.fault = None
    for again in (engine.wait(NOW), run(engine, work_id=2)):
        assert (again.status, again.error) == (WorkStatus.FAILED, error)
    assert len(device.begun) == 1, "the device is left alone"


def test_a_prompt_that_cannot_be_written_is_a_failed_result(made):
    engine, device = made
    device.fault = KeyError("embedding")
    engine.submit(PromptWork(5, SLOTS[:3], SLOTS[:3]))
    result = engine.wait(NOW)
    assert (result.work_id, result.status, result.error) == (5, WorkStatus.FAILED, "KeyError: 'embedding'")


def test_a_pass_that_ends_early_or_without_numbers_is_a_failure(made, monkeypatch):
    engine, device = made
    begin = device.begin

    def begin_short(*arguments, **limits):
        begin(*arguments, **limits)
        device.told["steps_done"] = 3

    monkeypatch.setattr(device, "begin", begin_short)
    result = run(engine)
    assert result.status is WorkStatus.FAILED
    assert result.error == "the pass ended after 3 of 7 steps or its logits are not finite"


def test_marks_that_a_pass_did_not_come_to_are_not_taken_from_the_one_before():
    told = np.zeros((), result_dtype(HIDDEN))
    for at, name in enumerate(("fetched_ns", "prefill_began_ns", "embedded_ns", "prefill_ended_ns"), 1):
        told[name] = at
    told["step_ended_ns"], told["steps_done"] = np.arange(5, 13), 8
    assert (part_ends_ns(told), last_mark_ns(told)) == ([2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], 12)
    told["is_aborted"], told["steps_done"], told["stopped_ns"] = 1, 2, 99
    assert (part_ends_ns(told), last_mark_ns(told)) == ([2, 3, 4, 5, 6], 99)
    told["steps_done"], told["prefill_ended_ns"] = 0, 99
    assert (part_ends_ns(told), last_mark_ns(told)) == ([2, 3], 99)
    told["is_void"] = 1
    assert last_mark_ns(told) == 1


def test_the_command_lies_as_the_kernels_assert():
    assert command_dtype(64).fields["token_slots"][1] == 48
