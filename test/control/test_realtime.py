"""Sleeping to absolute times, skipping ticks, and what is said when real time is refused."""

import gc
import mmap
import os
import resource
import signal
import textwrap
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import run_python

from vla_edge_ros.control import realtime
from vla_edge_ros.control.realtime import set_fifo_priority, settle_memory
from vla_edge_ros.control.schedule import next_tick
from vla_edge_ros.engine.linux import libc, process_memory, sleep_until

PERIOD_NS = 33_333_000


def lines_of(code):
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_sleep_does_not_end_early():
    for milliseconds in (0, 1, 7):
        until_ns = time.monotonic_ns() + milliseconds * 1_000_000
        sleep_until(until_ns)
        assert time.monotonic_ns() >= until_ns


@pytest.mark.parametrize("past_ns", [-1, 0, 1_000_000_001])
def test_a_time_that_has_passed_is_not_slept_for(past_ns):
    sleep_until(past_ns)


def test_a_sleep_survives_signals_and_runs_their_handlers():
    handled = []
    previous = signal.signal(signal.SIGALRM, lambda *_: handled.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    until_ns = time.monotonic_ns() + 30_000_000
    try:
        sleep_until(until_ns)
        woke_ns = time.monotonic_ns()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert woke_ns >= until_ns
    assert handled


def test_an_interrupt_ends_a_sleep():
    def interrupt(*_):
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.005)
    try:
        with pytest.raises(KeyboardInterrupt):
            sleep_until(time.monotonic_ns() + 3_600_000_000_000)
    finally:
        signal.signal(signal.SIGALRM, previous)


@given(
    tick=st.integers(0, 10**6), start_ns=st.integers(0, 10**15), since_start_ns=st.integers(-(10**9), 10**14)
)
@settings(max_examples=200, deadline=None)
def test_the_next_tick_is_the_following_one_or_the_one_that_it_now_is(tick, start_ns, since_start_ns):
    now_ns = start_ns + since_start_ns
    following = next_tick(tick, now_ns, start_ns, PERIOD_NS)
    assert following > tick
    if following > tick + 1:
        assert start_ns + following * PERIOD_NS <= now_ns < start_ns + (following + 1) * PERIOD_NS


def test_a_tick_is_skipped_only_when_its_whole_period_has_passed():
    start_ns = 1000
    end_of_tick_1_ns = start_ns + 2 * PERIOD_NS
    assert next_tick(0, end_of_tick_1_ns - 1, start_ns, PERIOD_NS) == 1
    assert next_tick(0, end_of_tick_1_ns, start_ns, PERIOD_NS) == 2


@pytest.mark.parametrize("priority", [-1, 0, 100])
def test_a_priority_out_of_range_is_refused(priority):
    with pytest.raises(ValueError, match="1 to 99"):
        set_fifo_priority(priority)


def test_each_refusal_is_one_line_that_says_what_to_set():
    lines = lines_of("""
import os, resource
from vla_edge_ros.control.realtime import apply_realtime, settle_memory
resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))
resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, 4096))
if os.geteuid() == 0:
    os.setuid(65534)
for warning in apply_realtime(40) + settle_memory():
    print(warning)
""")
    assert len(lines) == 2
    assert "SCHED_FIFO 40 refused (rtprio limit 0)" in lines[0] and "'USER - rtprio 40'" in lines[0]
    assert "memory lock refused" in lines[1] and "'USER - memlock unlimited'" in lines[1]
    assert "limit 4096 bytes" in lines[1]


def test_threads_and_children_started_later_inherit_the_priority():
    lines = lines_of("""
import os, threading
from vla_edge_ros.control.realtime import apply_realtime
refused = any("SCHED_FIFO" in warning for warning in apply_realtime(40))
seen = []
thread = threading.Thread(target=lambda: seen.append(os.sched_getparam(0).sched_priority))
thread.start()
thread.join()
print(refused, os.sched_getscheduler(0) == os.SCHED_FIFO, seen[0])
""")
    if lines == ["True False 0"]:
        pytest.skip("SCHED_FIFO is not permitted here")
    assert lines == ["False True 40"]


def test_priority_0_leaves_the_scheduler_alone_and_timers_exact():
    lines = lines_of("""
import os, sys
from vla_edge_ros.control.realtime import apply_realtime
warnings = apply_realtime(0)
print(os.sched_getscheduler(0) == os.SCHED_OTHER, any("SCHED_FIFO" in warning for warning in warnings))
print(open("/proc/self/timerslack_ns").read().strip(), round(sys.getswitchinterval(), 6))
""")
    assert lines == ["True False", f"1 {realtime.SWITCH_INTERVAL_S}"]


@pytest.mark.skipif(not hasattr(libc, "mallopt"), reason="this C library has no mallopt, only glibc has")
def test_a_kept_heap_gives_the_same_pages_again_without_asking_the_kernel():
    code = """
        import resource
        from vla_edge_ros.control.realtime import keep_heap

        def faults():
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for _ in range(20):
                bytearray(4 << 20)
                bytearray(1 << 20)
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

        print(faults())
        keep_heap()
        faults()
        print(faults())
    """
    given_back, kept = map(int, lines_of(textwrap.dedent(code)))
    assert kept < given_back / 4


def test_settled_memory_is_out_of_garbage_collection():
    assert lines_of("""
import gc
from vla_edge_ros.control.realtime import settle_memory
settle_memory()
print(gc.get_freeze_count() > 1000)
""") == ["True"]


class RecordingLibc:
    def __init__(self):
        self.flags = []

    def mlockall(self, flags):
        self.flags.append(flags)
        return 0


@pytest.mark.parametrize(
    ("limit", "flags"),
    [(8 * 2**20, [1 | 4]), (resource.RLIM_INFINITY, [1 | 2 | 4])],
    ids=["finite", "infinite"],
)
def test_pages_are_locked_on_first_touch_and_later_mappings_only_under_an_infinite_limit(
    monkeypatch, limit, flags
):
    libc = RecordingLibc()
    monkeypatch.setattr(realtime, "libc", libc)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert settle_memory() == []
    gc.unfreeze()
    assert libc.flags == flags


def test_the_memory_of_a_process_is_read_and_of_none_is_zero():
    before = process_memory(os.getpid())
    # Pages of their own: an allocator may hand out what is resident already.
    with mmap.mmap(-1, 32_000_000) as block:
        block.write(b"\xff" * len(block))
        assert process_memory(os.getpid()) - before > len(block) // 2
    ended_pid = int(run_python("import os; print(os.getpid())").stdout)
    assert process_memory(ended_pid) == 0


def test_priority_goes_to_every_thread_and_comes_off_again():
    run = run_python(
        """
import os, threading
from vla_edge_ros.control.realtime import apply_realtime
waiting, done = threading.Event(), threading.Event()
threading.Thread(target=lambda: (waiting.set(), done.wait())).start()
waiting.wait()
policies = lambda: {os.sched_getscheduler(int(name)) for name in os.listdir("/proc/self/task")}
refused = bool(apply_realtime(5))
assert policies() == ({os.SCHED_OTHER} if refused else {os.SCHED_FIFO}), policies()
assert apply_realtime(0) == []
assert policies() == {os.SCHED_OTHER}, policies()
done.set()
"""
    )
    assert run.returncode == 0, run.stderr
