"""A real engine process: what it answers, and what is said of one that stops, fails or dies."""

import os
import signal
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from processes import becomes_true, has_ended, run_python

from vla_edge_ros.engine import process
from vla_edge_ros.engine.fake import FakeEngine
from vla_edge_ros.engine.interface import (
    EngineBusy,
    EngineError,
    EngineInfo,
    EngineSpec,
    FrameWork,
    PromptWork,
    WorkStatus,
    pinned,
)
from vla_edge_ros.engine.numpy_engine import NumpyEngine
from vla_edge_ros.engine.process import ProcessEngine
from vla_edge_ros.perception.frame_buffer import FrameBuffer

LONG_NS = 60_000_000_000
SLOTS = np.arange(64, dtype=np.int32)


def spec(model="fake", **fields):
    return EngineSpec(backend="fake", model=model, n_slots=256, **fields)


def frame_work(work_id, deadline_ns=0):
    return FrameWork(work_id, SLOTS, SLOTS[:32], SLOTS[:7], deadline_ns)


def later(ns=LONG_NS):
    return time.monotonic_ns() + ns


@pytest.fixture
def frames():
    buffer = FrameBuffer.create()
    buffer.write(np.zeros((64, 128, 3), np.uint8), stamp_ns=11, capture_ns=22, receipt_ns=33)
    yield buffer
    buffer.close()


@pytest.fixture
def start(frames):
    engines = []

    def start(model="fake", configured=True, **options):
        engine = ProcessEngine(spec(model), frames, **options)
        engines.append(engine)
        if configured:
            engine.configure()
        return engine

    yield start
    for engine in engines:
        engine.close()


def test_a_pass_in_the_child_equals_one_in_this_process(start, frames):
    model = "fake:steps=8,hidden=1536"
    engine = start(model)
    reference = FakeEngine(spec(model), frames)
    for work_id in (1, 2**63 + 5):
        for each in (engine, reference):
            each.submit(frame_work(work_id))
        got, expected = engine.wait(later()), reference.wait(later())
        assert (got.work_id, got.status, got.frame) == (work_id, WorkStatus.DONE, expected.frame)
        assert got.tokens.shape == (8, 7)
        for name in ("tokens", "top_probability", "entropy", "embedding"):
            np.testing.assert_array_equal(getattr(got, name), getattr(expected, name), strict=True)
        frames.write(np.ones((64, 128, 3), np.uint8), 44, 55, 66)


def test_the_numpy_engine_computes_the_same_bits_in_the_child(frames):
    numpy_spec = EngineSpec(backend="numpy", n_slots=256)
    engines = [ProcessEngine(numpy_spec, frames), NumpyEngine(numpy_spec, frames)]
    slots = np.arange(256, dtype=np.int32)
    infos = [engine.configure() for engine in engines]
    assert infos[0] == infos[1]
    results = []
    for engine in engines:
        engine.submit(PromptWork(1, slots[5:15], slots[:10]))
        assert engine.wait(later()).status is WorkStatus.DONE
        engine.submit(PromptWork(2, slots[50:60], slots[10:20], context_slots=slots[:10]))
        assert engine.wait(later()).status is WorkStatus.DONE
        engine.submit(FrameWork(3, slots[:20], slots[40:72], slots[72:79], prompt_tokens=20))
        results.append(engine.wait(later()))
    for name in ("tokens", "top_probability", "entropy", "embedding"):
        np.testing.assert_array_equal(*[getattr(result, name) for result in results], strict=True)
    for engine in engines:
        engine.close()


def test_fewer_tokens_come_through_the_mailbox_as_fewer(start):
    engine = start("fake:steps=8,hidden=1536")
    for n in (7, 1, 5):
        engine.submit(FrameWork(n, SLOTS, SLOTS[:32], SLOTS[:n]))
        result = engine.wait(later())
        assert result.tokens.shape == result.top_probability.shape == result.entropy.shape == (8, n)
        assert result.steps_done == n and result.embedding.shape == (1536,)


def test_a_pass_is_stopped_in_the_child_at_its_deadline_and_the_next_one_is_whole(start):
    engine = start("fake:service_ms=30")
    engine.submit(frame_work(1, deadline_ns=later(20_000_000)))
    result = engine.wait(later())
    assert (result.work_id, result.status, result.tokens, result.frame) == (1, WorkStatus.ABORTED, None, None)
    assert result.stages.total_ns + result.remaining.total_ns == 30_000_000
    assert result.steps_done == 7 * result.stages.decode_ns // 15_000_000
    engine.submit(frame_work(2, deadline_ns=later()))
    result = engine.wait(later())
    assert (result.work_id, result.status, result.steps_done) == (2, WorkStatus.DONE, 7)


def test_configure_tells_what_the_engine_is(start, frames):
    engine = start(configured=False)
    assert engine.configure() == FakeEngine(spec(), frames).configure()
    assert engine.rss_bytes() > 1_000_000


def test_a_prompt_is_answered_without_a_frame(start):
    engine = start()
    engine.submit(PromptWork(1, SLOTS, SLOTS))
    result = engine.wait(later())
    assert (result.work_id, result.status, result.frame) == (1, WorkStatus.DONE, None)


def test_an_empty_frame_buffer_gives_no_frame():
    with closing(FrameBuffer.create()) as empty, closing(ProcessEngine(spec(), empty)) as engine:
        engine.configure()
        engine.submit(frame_work(1))
        assert engine.wait(later()).status is WorkStatus.NO_FRAME


def test_a_result_is_handed_out_once_and_work_is_refused_until_then(start):
    engine = start()
    engine.submit(frame_work(1))
    with pytest.raises(EngineBusy, match=r"work 2 .* work 1"):
        engine.submit(frame_work(2))
    assert engine.wait(later()).work_id == 1
    assert engine.wait(later(1_000_000)) is None
    engine.evict(SLOTS[:32])
    engine.submit(frame_work(2))
    assert engine.wait(later()).work_id == 2


def test_results_need_no_new_buffers(start):
    engine = start()
    embeddings = []
    for work_id in (1, 2):
        engine.submit(frame_work(work_id))
        embeddings.append(engine.wait(later()).embedding)
    assert np.shares_memory(*embeddings)


def test_a_stopped_child_holds_a_wait_to_its_bound_only(start):
    engine = start()
    os.kill(engine.pid, signal.SIGSTOP)
    engine.submit(frame_work(1))
    until_ns = later(20_000_000)
    assert engine.wait(until_ns) is None
    assert time.monotonic_ns() >= until_ns
    os.kill(engine.pid, signal.SIGCONT)
    assert engine.wait(later()).status is WorkStatus.DONE


@pytest.mark.parametrize("moment", ["before submit", "while a pass runs", "after the pass"])
def test_a_killed_child_is_a_failed_result_at_once_and_for_ever(start, moment):
    engine = start("fake:service_ms=60000" if moment == "while a pass runs" else "fake")
    if moment != "before submit":
        engine.submit(frame_work(7))
    if moment == "after the pass":
        assert engine.wait(later()).status is WorkStatus.DONE
    os.kill(engine.pid, signal.SIGKILL)
    if moment != "while a pass runs":
        engine.submit(frame_work(7))
    until_ns = later()
    failure = engine.wait(until_ns)
    assert time.monotonic_ns() < until_ns
    assert (failure.work_id, failure.status) == (7, WorkStatus.FAILED)
    assert failure.error == "engine process ended with signal 9"
    engine.submit(frame_work(8))
    engine.evict(SLOTS)
    again = engine.wait(until_ns)
    assert (again.work_id, again.status, again.error) == (8, WorkStatus.FAILED, failure.error)


def test_a_failed_pass_ends_the_child_and_keeps_its_reason(start):
    engine = start("fake:fail_after=1")
    pid = engine.pid
    for work_id, status in ((1, WorkStatus.DONE), (2, WorkStatus.FAILED), (3, WorkStatus.FAILED)):
        engine.submit(frame_work(work_id))
        result = engine.wait(later())
        assert (result.work_id, result.status) == (work_id, status)
    assert result.error == "the fake engine fails after 1 frames"
    assert becomes_true(lambda: has_ended(pid))


def test_a_failed_engine_works_again_after_close_and_configure(start):
    engine = start("fake:fail_after=1")
    for _ in range(2):
        for work_id in (1, 2):
            engine.submit(frame_work(work_id))
            result = engine.wait(later())
        assert result.status is WorkStatus.FAILED
        engine.close()
        engine.configure()
    engine.submit(frame_work(3))
    assert engine.wait(later()).status is WorkStatus.DONE


def test_a_replacement_is_asked_for_the_plan_of_the_first(start, monkeypatch):
    engine = start(configured=False)
    cuda = EngineInfo("cuda", "cuda-1x8", vocabulary_size=513, embedding_size=192)
    monkeypatch.setattr(process, "info_from_json", lambda text: cuda)
    engine.configure()
    with pytest.raises(EngineError, match=r"cuda"):
        engine.configure()


def test_an_engine_is_pinned_by_its_backend_and_by_a_plan_where_it_has_one():
    asked = EngineSpec(backend="auto", seed=3)
    described = EngineInfo("cuda", "cuda-1x8", vocabulary_size=513, embedding_size=192)
    assert pinned(asked, described) == EngineSpec(backend="cuda", seed=3, plan="cuda-1x8")
    described = EngineInfo("numpy", "numpy-openblas", vocabulary_size=513, embedding_size=192)
    assert pinned(asked, described) == EngineSpec(backend="numpy", seed=3)


def test_an_engine_that_cannot_be_configured_says_why_in_one_line(start):
    engine = start("fake:steps=0", configured=False)
    with pytest.raises(EngineError, match=r"^fake engine setting steps=0: use 1 to 16$"):
        engine.configure()
    assert engine.pid is None
    assert engine.wait(later()).status is WorkStatus.FAILED


def test_a_child_killed_while_configuring_hints_at_memory(start):
    engine = start("fake:configure_ms=60000", configured=False)
    killer = threading.Thread(
        target=lambda: becomes_true(lambda: engine.pid) and os.kill(engine.pid, signal.SIGKILL)
    )
    killer.start()
    with pytest.raises(EngineError) as refusal:
        engine.configure()
    killer.join()
    assert str(refusal.value) == "engine process ended with signal 9 while configuring (out of memory?)"


def test_a_child_that_makes_no_progress_while_configuring_is_given_up(start):
    engine = start("fake:configure_ms=60000", configured=False, stall_timeout_s=0.5)
    with pytest.raises(EngineError, match="hangs or is stopped"):
        engine.configure()
    assert engine.pid is None


def test_configuring_is_abandoned_when_asked_for(start):
    engine = start("fake:configure_ms=60000", configured=False, should_abandon=lambda: engine.pid is not None)
    with pytest.raises(EngineError, match="closed while configuring"):
        engine.configure()
    assert engine.pid is None


def test_close_from_another_thread_ends_configure(start):
    engine = start("fake:configure_ms=60000", configured=False)
    closer = threading.Thread(target=lambda: becomes_true(lambda: engine.pid) and engine.close())
    closer.start()
    with pytest.raises(EngineError, match="closed while configuring"):
        engine.configure()
    closer.join()
    assert engine.pid is None


def test_close_from_another_thread_ends_a_wait_and_a_busy_child(start):
    engine = start("fake:service_ms=60000")
    pid = engine.pid
    engine.submit(frame_work(1))
    results = []
    waiter = threading.Thread(target=lambda: results.append(engine.wait(later())))
    waiter.start()
    engine.close()
    waiter.join()
    assert (results[0].status, results[0].error) == (WorkStatus.FAILED, "the engine is closed")
    assert has_ended(pid)
    engine.close()
    engine.submit(frame_work(2))
    assert engine.wait(later()).error == "the engine is closed"


def test_close_ends_a_stopped_child(start):
    engine = start()
    pid = engine.pid
    os.kill(pid, signal.SIGSTOP)
    engine.close()
    assert has_ended(pid)
    assert (engine.pid, engine.rss_bytes()) == (None, 0)


def test_signals_meant_for_the_parent_leave_the_child_at_work(start):
    engine = start()
    assert os.getsid(engine.pid) == engine.pid, "Ctrl-C in the terminal must not reach it"
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(engine.pid, number)
    engine.submit(frame_work(1))
    assert engine.wait(later()).status is WorkStatus.DONE


def test_the_thread_that_configures_may_end(start):
    engine = start(configured=False)
    thread = threading.Thread(target=engine.configure)
    thread.start()
    thread.join()
    engine.submit(frame_work(1))
    assert engine.wait(later()).status is WorkStatus.DONE


@pytest.mark.parametrize(("blas_threads", "expected"), [(3, "3"), (0, None)])
def test_the_number_of_blas_threads_is_set_before_numpy_is_imported(
    frames, monkeypatch, blas_threads, expected
):
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    engine = ProcessEngine(spec(blas_threads=blas_threads), frames)
    engine.configure()
    environment = Path(f"/proc/{engine.pid}/environ").read_bytes().decode().split("\0")
    engine.close()
    set_variables = dict(entry.split("=", 1) for entry in environment if entry)
    assert [set_variables.get(name) for name in names] == [expected] * 3


def test_the_child_runs_below_the_real_time_priority_of_its_parent(start):
    seen = []

    def configure_at_priority():
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(20))
        except PermissionError:
            return
        engine = start()
        seen.append((os.sched_getscheduler(engine.pid), os.sched_getparam(engine.pid).sched_priority))

    thread = threading.Thread(target=configure_at_priority)
    thread.start()
    thread.join()
    if not seen:
        pytest.skip("SCHED_FIFO is not permitted here")
    assert seen == [(os.SCHED_FIFO, 19)]


PARENT = """
import os, signal, sys
import numpy as np
from vla_edge_ros.engine.interface import EngineSpec, PromptWork
from vla_edge_ros.engine.numpy_engine import NumpyEngine
from vla_edge_ros.engine.process import ProcessEngine
from vla_edge_ros.perception.frame_buffer import FrameBuffer
engine = ProcessEngine(EngineSpec(backend="fake", model="fake:service_ms=60000"), FrameBuffer.create())
engine.configure()
engine.submit(PromptWork(1, np.zeros(1, np.int32), np.zeros(1, np.int32)))
print(engine.pid, flush=True)
{end}
"""


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "sys.exit(0)"])
def test_a_busy_child_does_not_outlive_its_parent(end):
    done = run_python(PARENT.format(end=end))
    pid = int(done.stdout)
    assert becomes_true(lambda: has_ended(pid))
    assert "Traceback" not in done.stderr
