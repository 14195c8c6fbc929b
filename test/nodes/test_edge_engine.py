"""The engine dies, hangs, is slow or is a real model: the node goes on saying so on every tick."""

import os
import signal

from diagnostic_msgs.msg import DiagnosticStatus
from processes import has_ended
from robot import assert_consecutive

OK, ERROR = DiagnosticStatus.OK, DiagnosticStatus.ERROR


def kill_engine(robot) -> None:
    robot.mark()
    os.kill(robot.engine_pid(), signal.SIGKILL)


def test_a_killed_engine_is_a_fault_then_replaced_and_the_arm_stays_stopped_until_enabled(robot):
    robot.move()
    seen = len(robot.ticks)
    kill_engine(robot)
    assert robot.until_tick(decision="FAULT")["reason"].startswith("engine process ")
    robot.until_rest()
    robot.until_event("engine_replaced")
    latched = robot.until_tick(decision="SAFE_STOP")
    assert latched["reason"] == "a fault was latched; call ~/enable to go on"
    assert "call ~/enable to move again" in robot.until_logged("engine replaced (1 of 3)")
    robot.until_status("control", ERROR, "SAFE_STOP")
    assert {tick["decision"] for tick in robot.next_ticks(10)} == {"SAFE_STOP"}
    assert_consecutive(robot.ticks[seen:])
    assert robot.enable().success
    tick = robot.until_tick(decision="FRESH", is_enabled="True")
    assert int(tick["retained_frames"]) <= 3, "the new process has an empty cache"
    robot.until_status("control", OK)
    assert robot.value("engine", "restarts") == "1"


def test_it_is_replaced_so_often_and_then_stays_a_fault_until_configured_again(robot):
    robot.reconfigure(engine__restart_limit=1)
    robot.move()
    kill_engine(robot)
    robot.until_event("engine_replaced")
    robot.move()
    kill_engine(robot)
    robot.until_logged("the engine failed after 1 replacements; not replaced again (engine.restart_limit)")
    robot.until_tick(decision="FAULT")
    ticks = robot.next_ticks(15)
    assert {tick["decision"] for tick in ticks} == {"FAULT"}
    assert_consecutive(ticks)
    refusal = robot.enable()
    assert not refusal.success
    assert refusal.message == f"not enabled: {ticks[-1]['reason']}"
    robot.until_status("control", ERROR, "FAULT")
    robot.until_status("engine", ERROR, "gone")
    robot.bring_to("inactive")
    robot.bring_to("active")
    robot.until_tick(decision="FAULT")
    robot.restore()
    robot.until_tick(decision="FRESH")


def test_an_engine_that_hangs_makes_holds_then_a_stop_and_is_used_again_when_it_wakes(robot):
    robot.move()
    pid = robot.engine_pid()
    seen = len(robot.ticks)
    os.kill(pid, signal.SIGSTOP)
    try:
        robot.until_tick(decision="HOLD_LATE")
        assert "still runs" in robot.until_tick(decision="HOLD_BUSY")["reason"]
        assert "no fresh action for" in robot.until_tick(decision="SAFE_STOP")["reason"]
        robot.until_rest()
    finally:
        os.kill(pid, signal.SIGCONT)
    robot.until_tick(decision="FRESH", is_enabled="True")
    assert_consecutive(robot.ticks[seen:])
    assert robot.engine_pid() == pid


def test_an_engine_that_hangs_for_too_long_is_replaced_while_ticks_go_on(robot):
    robot.reconfigure(engine__stall_timeout_ms=300.0)
    robot.move()
    robot.mark()
    pid, seen = robot.engine_pid(), len(robot.ticks)
    os.kill(pid, signal.SIGSTOP)
    assert "the engine hangs: a frame should have been" in robot.until_tick(decision="FAULT")["reason"]
    robot.until_rest()
    robot.until_event("engine_replaced")
    robot.until_logged("engine replaced (1 of 3)")
    robot.until_tick(decision="SAFE_STOP")
    assert robot.enable().success
    robot.until_tick(decision="FRESH", is_enabled="True")
    assert_consecutive(robot.ticks[seen:])
    assert robot.engine_pid() != pid
    assert has_ended(pid)


def test_a_pass_that_cannot_end_in_time_is_stopped_and_keeps_no_tick_busy(robot):
    robot.reconfigure(engine__model="fake:service_ms=45")
    assert robot.until_tick(decision="HOLD_LATE")["reason"].endswith("which stops it")
    ticks = robot.next_ticks(30)
    assert not any("an earlier frame" in tick["reason"] for tick in ticks)
    robot.until(lambda: int(robot.value("control", "aborted_passes") or 0) > 1)


def test_the_engine_may_be_replaced_while_the_node_is_not_active(robot):
    robot.move()
    kill_engine(robot)
    robot.until_tick(decision="FAULT")
    robot.bring_to("inactive")
    robot.until_logged("engine replaced")
    robot.bring_to("active")
    robot.until_tick(decision="SAFE_STOP", reason="a fault was latched; call ~/enable to go on")
    robot.until(lambda: robot.enable().success)
    robot.until_tick(decision="FRESH", is_enabled="True")


def test_late_results_serve_the_next_tick_where_that_is_asked_for(robot):
    robot.reconfigure(engine__model="fake:service_ms=45", actions__late_result="next_tick")
    assert "the pass of an earlier tick" in robot.until_tick(decision="FRESH_LATE")["reason"]


def test_a_real_model_decides_remembers_and_forgets(robot):
    robot.reconfigure(
        engine__backend="numpy",
        engine__model="tiny",
        memory__slots=256,
        memory__policy="fifo",
        control__period_ms=100.0,
        control__deadline_ms=95.0,
        actions__ttl_ms=400.0,
    )
    tick = robot.until(lambda: [t for t in robot.ticks[-3:] if t["decision"] == "FRESH" and t["evicted"]])[0]
    for stage in ("vision_ms", "prefill_ms", "decode_ms"):
        assert float(tick[stage]) > 0
    # floor((256 slots - 54 prompt bytes - 8) / 32)
    assert tick["retained_frames"] == "6"
    assert 0 < float(tick["top_probability"]) <= 1
