"""The bare sleep loop: what it counts, and that nothing of it stays behind."""

import pytest
from processes import becomes_true, has_ended, run_python

from vla_edge_ros.control import bare_loop
from vla_edge_ros.control.bare_loop import BareLoop, run_loop

START_NS, PERIOD_NS, CUTOFF_NS, EFFECT_NS = 10**9, 1_000_000, 900_000, 950_000


class EndOfScript(Exception):
    pass


def count(delays_ns, began_ns=0):
    """Run the loop on a clock that wakes it each time the next of `delays_ns` too late."""
    counts = memoryview(bytearray(bare_loop._COUNTS_BYTES)).cast("q")
    now_ns = began_ns
    sleeps = []
    delays = iter(delays_ns)

    def sleep_until(until_ns):
        nonlocal now_ns
        delay_ns = next(delays, None)
        if delay_ns is None:
            raise EndOfScript
        sleeps.append(until_ns)
        now_ns = max(now_ns, until_ns) + delay_ns

    with pytest.raises(EndOfScript):
        run_loop(counts, START_NS, PERIOD_NS, CUTOFF_NS, EFFECT_NS, lambda: now_ns, sleep_until)
    ticks, late, skipped, max_error_ns = counts[:4].tolist()
    ticks_slept = [(until_ns - START_NS - CUTOFF_NS) / PERIOD_NS for until_ns in sleeps]
    return ticks_slept, dict(ticks=ticks, late=late, skipped=skipped, max_error_ns=max_error_ns)


def test_it_sleeps_to_the_cut_off_of_every_tick():
    slept, counts = count([0, 1000, 0])
    assert slept == [0, 1, 2]
    assert counts == dict(ticks=3, late=0, skipped=0, max_error_ns=1000)


def test_a_wake_up_after_the_effect_time_is_late_and_at_it_is_not():
    margin_ns = EFFECT_NS - CUTOFF_NS
    assert count([margin_ns])[1]["late"] == 0
    assert count([margin_ns + 1])[1]["late"] == 1


def test_wholly_missed_ticks_are_skipped_and_counted_and_never_caught_up_in_a_burst():
    slept, counts = count([3 * PERIOD_NS + 200_000, 0, 0])
    # Woken 0.1 ms into tick 4: ticks 1 to 3 are gone, tick 4 can still be kept.
    assert slept == [0, 4, 5]
    assert counts == dict(ticks=3, late=1, skipped=3, max_error_ns=3 * PERIOD_NS + 200_000)


def test_it_joins_at_the_next_tick_without_counting_those_before_it_was_there():
    slept, counts = count([0], began_ns=START_NS + 5 * PERIOD_NS + 1)
    assert slept == [6]
    assert counts["skipped"] == 0


def test_a_real_loop_counts_reports_and_ends():
    loop = BareLoop(0, PERIOD_NS, CUTOFF_NS, EFFECT_NS)
    assert becomes_true(lambda: loop.ticks >= 20)
    assert loop.is_running
    loop.close()
    loop.close()
    assert not loop.is_running
    ticks = loop.ticks
    assert ticks >= 20 and 0 <= loop.late <= ticks
    errors_ns = [loop.error_percentile_ns(percent) for percent in (1, 50, 99, 100)]
    assert errors_ns == sorted(errors_ns)
    assert errors_ns[0] > 0 and errors_ns[-1] == loop.max_error_ns


def test_percentiles_are_those_of_the_errors_within_the_width_of_a_bin():
    loop = BareLoop(2**62, PERIOD_NS, CUTOFF_NS, EFFECT_NS)
    errors_ns = [20_000 + 1_000 * i for i in range(1000)]
    for error_ns in errors_ns:
        loop._counts[bare_loop._BINS + bare_loop._bin(error_ns)] += 1
    loop._counts[bare_loop._MAX_ERROR_NS] = errors_ns[-1]
    loop.close()
    for percent, exact_ns in ((50, errors_ns[499]), (99, errors_ns[989]), (100, errors_ns[-1])):
        assert exact_ns <= loop.error_percentile_ns(percent) <= 1.045 * exact_ns + 45


@pytest.mark.parametrize(
    "times_ns",
    [(0, 0, 0, 0), (0, 100, 90, 80), (0, 100, 90, 110), (0, 100, -1, 80)],
    ids=["no period", "effect before cut-off", "effect after period", "negative cut-off"],
)
def test_times_out_of_order_are_refused(times_ns):
    with pytest.raises(ValueError, match="in this order"):
        BareLoop(*times_ns)


def test_it_does_not_outlive_its_parent():
    code = (
        "import os; from vla_edge_ros.control.bare_loop import BareLoop;"
        "loop = BareLoop(0, 10**6, 10, 20)\n"
        "while not loop.ticks: pass\n"
        "print(loop.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = run_python(code)
    assert becomes_true(lambda: has_ended(int(done.stdout)))


def test_its_process_stays_small():
    code = "import sys, vla_edge_ros.control.bare_loop; print('numpy' in sys.modules)"
    done = run_python(code)
    assert done.stdout.strip() == "False"
