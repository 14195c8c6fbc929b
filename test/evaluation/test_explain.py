"""What is said of a tick: the right sentence for each decision, and none without a record."""

import json
from pathlib import Path

import numpy as np
import pytest
from control_rig import MS, Aborts, Rig
from recorded import SAMPLE

from vla_edge_ros.cli import main
from vla_edge_ros.control.events import Enable, EngineReplaced, Instruction, ResetMemory
from vla_edge_ros.control.reuse import Reuse
from vla_edge_ros.evaluation.explain.page import explain
from vla_edge_ros.evaluation.explain.recorded_ticks import RecordedTicks
from vla_edge_ros.evaluation.explain.tick_list import list_lines, notable, place_of
from vla_edge_ros.perception.frame_log import FrameLog
from vla_edge_ros.perception.picture import CELLS_SHAPE, picture_cells

PARAMETERS = {
    "memory.policy": "fifo",
    "control.period_ms": 33.0,
    "control.deadline_ms": 33.0,
    "control.margin_ms": 2.0,
    "actions.ttl_ms": 200.0,
    "actions.max_hold_ms": 300.0,
}


def told(rig: Rig, **parameters) -> RecordedTicks:
    records = json.loads(json.dumps([record.to_json() for record in rig.sink.records]))
    return RecordedTicks(PARAMETERS | parameters, records)


def page(run: RecordedTicks, name: str | int) -> str:
    return "\n".join(line for section in explain(run, place_of(run, str(name))) for line in section.lines)


def enabled(rig: Rig) -> Rig:
    rig.controller.post(Enable(True))
    return rig


def test_a_fresh_tick_has_its_frame_its_times_and_what_the_arm_is_sent():
    rig = enabled(Rig(service_ms=20.0))
    rig.run(8, each=lambda tick: rig.observe_joints())
    said = page(told(rig), 7)
    record = rig.sink.records[7]
    age_ms = record.frame_age_ns / 1e6
    assert "An action of this tick's own, in time." in said
    assert "It began 0.00 ms after its time, 0.231 s after the first tick of the record." in said
    assert f"The action is of frame {record.frame_index}, newer than any used before." in said
    assert f"It was {age_ms:.2f} ms old when the tick began" in said
    assert (
        "A pass was predicted to take 20.00 ms (prefill 5.00 ms, decode 10.00 ms, transfer 5.00 ms)." in said
    )
    assert "31.00 ms were left until the cut-off" in said
    assert "So a whole pass was begun, with 11.00 ms to spare." in said
    assert (
        "Its pass ended after 20.00 ms (prefill 5.00 ms, decode 10.00 ms), 11.00 ms before the cut-off."
        in said
    )
    assert f"Its frame {record.frame_index} was put into memory." in said
    assert "The trajectory was handed over 20.00 ms after its time." in said
    assert "31.00 ms after its time, 2.00 ms before its effect time: in time." in said
    assert "A new trajectory was sent, and it is executed (values, limited: " in said
    assert "miss" not in said


def test_a_deadline_that_counts_from_capture_is_told_with_what_it_left():
    rig = Rig(frames_ms=[32.0, 66.0 - 12.0], service_ms=10.0, counts_from_capture=True)
    rig.run(3)
    said = page(told(rig), 2)
    assert "It had to be decided 31.00 ms after its time (the cut-off)" in said
    assert "A pass over the newest frame had to end 12.00 ms before that: its deadline counts from" in said
    assert "19.00 ms were left until the cut-off" in said
    assert "9.00 ms before the cut-off." in said
    rig = Rig()
    rig.run(3)
    assert "from capture" not in page(told(rig), 2)


def test_a_refused_tick_has_what_was_needed_and_what_was_left_and_no_work():
    rig = enabled(Rig(service_ms=20.0))
    rig.run(5, each=lambda tick: rig.observe_joints())
    rig.clock.sleep_until(rig.schedule.times(5).start_ns + 15 * MS)
    rig.run(6)
    said = page(told(rig), "last-refused")
    assert "The reason given: a pass needs 20.0 ms, 16.0 ms are left." in said
    assert "It began 15.00 ms after its time" in said
    assert "16.00 ms were left until the cut-off" in said
    assert "What was found to be needed, allowance included: a whole pass 20.00 ms." in said
    assert "So a pass was refused, before any work began." in said
    assert (
        "No trajectory was sent: its controller goes on with the one before to its end, at most 200 ms"
        in said
    )
    assert "was 33.00 ms ago; longer than 300 ms is a SAFE_STOP." in said
    assert "Its pass" not in said


def woken_late(rig: Rig, *delays_ms: float) -> Rig:
    """The next ticks begin so late."""
    for delay_ms in delays_ms:
        rig.clock.sleep_until(rig.schedule.times(rig._tick).start_ns + round(delay_ms * MS))
        rig.run(rig._tick + 1)
    return rig


CONFORMAL = {"admission.estimator": "conformal", "admission.target_miss_rate": 0.001}
SPARED = ", no more than predictions were wrong by, and misses were to spare: a whole pass was begun as a try"


def test_a_try_that_misses_to_spare_allow_has_by_how_much_it_was_too_long():
    rig = Rig(service_ms=20.0, admission="conformal")
    rig.run(5)
    run = told(woken_late(rig, 11.5), **CONFORMAL)
    assert run.ticks[5]["is_probe"]
    said = page(run, 5)
    assert f"It was too long by 0.50 ms{SPARED} (a probe)." in said
    assert "refused" not in said
    assert SPARED in page(told(rig), 5)


def test_and_that_it_is_one_where_a_pass_had_been_refused_before_it():
    rig = Rig(service_ms=20.0, admission="conformal")
    rig.run(5)
    run = told(woken_late(rig, 15.0, 13.0), **CONFORMAL)
    assert [tick["decision"] for tick in run.ticks[5:]] == ["HOLD_REFUSED", "HOLD_LATE"]
    assert f"ms{SPARED} (a probe)." in page(run, 6)


def test_a_try_after_refused_passes_has_how_many_they_were():
    rig = Rig(service_ms=20.0, admission="conformal")
    rig.run(5)
    run = told(woken_late(rig, 15.0, 11.5), **CONFORMAL)
    assert run.ticks[6]["is_probe"]
    assert (
        "What was measured last does not fit; a whole pass was begun as a try (a probe) after 1 refused in a "
        "row."
    ) in page(run, 6)


def test_a_try_that_only_patience_explains_is_one_after_refused_passes():
    rig = Rig(service_ms=20.0, admission="fixed")
    rig.run(40)
    run = told(woken_late(rig, *[15.0] * 9), **{"admission.estimator": "fixed"})
    assert [tick["decision"] for tick in run.ticks[40:48]] == ["HOLD_REFUSED"] * 8
    said = "It was too long by 4.00 ms; a whole pass was begun as a try (a probe) after 8 refused in a row."
    assert said in page(run, 48)
    assert said in page(told(rig, **CONFORMAL | {"admission.target_miss_rate": 0.125}), 48)
    begun_since = RecordedTicks(run.parameters, run.ticks[44:])
    assert "4.00 ms; a whole pass was begun as a try (a probe)." in page(begun_since, 48)


def test_a_tick_refused_for_the_misses_alone_is_not_said_to_lack_time():
    rig = Rig(service_ms=10.0, admission="conformal")
    rig.run(6)
    for _ in range(19):
        rig.controller.admission.settle(is_miss=True)
    rig.run(7)
    said = page(told(rig), "last-refused")
    assert "Admission let no pass begin: none was expected to end in time, or the misses that the" in said
    assert "The reason given: the misses that the target allows are spent." in said
    assert "That fits: a pass was refused for the reason given above, before any work began." in said


def test_a_stopped_pass_has_its_stage_and_what_was_still_to_come():
    rig = Rig(service_ms=20.0)
    rig.run(5)
    rig.engine.script_next(Aborts(24 * MS, 30 * MS))
    rig.run(7)
    said = page(told(rig), "last-miss")
    assert "a pass was begun and was late, stopped or failed" in said
    assert (
        "Its pass was stopped by the engine after 24.00 ms (prefill 6.00 ms, decode 12.00 ms) in decode with "
        "0 tokens decoded: 30.00 ms were still to come at least."
    ) in said
    assert "Motion was disabled: no action was sent, whatever the decision." in said


def test_a_pass_without_an_end_in_its_tick_has_the_tick_that_saw_it_and_the_busy_one_what_ran():
    rig = Rig(service_ms=20.0)
    rig.run(5)
    rig.engine.script_next(80.0)
    rig.run(9)
    run = told(rig)
    assert [run.ticks[i]["decision"] for i in (5, 6)] == ["HOLD_LATE", "HOLD_BUSY"]
    own = run.ticks[5]["submitted_work"]
    said = page(run, 5)
    assert f"Its pass (work {own}) had not ended at the cut-off. Tick 8 saw its end, 80.00 ms after" in said
    assert "A pass had been begun 33.00 ms before the tick began: tick 8 saw its end, 80.00 ms after" in page(
        run, 6
    )
    assert "An earlier pass (of tick 5) ended after 80.00 ms" in page(run, 8)


def test_a_tick_with_a_late_result_has_the_older_frame():
    rig = Rig(service_ms=20.0, uses_late_result=True)
    rig.run(5)
    n_submitted = len(rig.engine.submitted)
    rig.engine.script = {n_submitted: 60.0, n_submitted + 1: 60.0}
    rig.run(8)
    run = told(rig)
    assert run.ticks[7]["decision"] == "FRESH_LATE"
    said = page(run, 7)
    assert f"The action is of frame {run.ticks[7]['frame_index']}, which the earlier pass had used." in said
    assert f"When the tick looked, the newest was {run.ticks[7]['seen_frame']}." in said


def test_a_late_publish_has_by_how_much():
    rig = Rig(service_ms=20.0)
    rig.run(3)
    send = rig.sink.tick
    rig.sink.tick = lambda record: (rig.clock.sleep_until(rig.clock.now_ns() + 5 * MS), send(record))
    rig.run(4)
    said = page(told(rig), "last-late")
    assert "36.00 ms after its time, 3.00 ms after its effect time: late." in said
    assert "The wait for the cut-off ended 0.00 ms after it, and publishing took 5.00 ms." in said


def test_and_that_it_was_the_wait_for_the_cut_off_where_it_was():
    rig = Rig(service_ms=20.0)
    rig.run(3)
    sleep_until, cutoff_ns = rig.clock.sleep_until, rig.schedule.times(3).cutoff_ns
    rig.clock.sleep_until = lambda until_ns: sleep_until(until_ns + 4 * MS * (until_ns == cutoff_ns))
    rig.run(4)
    assert "ended 4.00 ms after it, and publishing took 0.00 ms." in page(told(rig), "last-late")


def test_a_reused_action_has_that_no_pass_was_begun():
    rig = Rig()
    log = FrameLog(picture_cells, CELLS_SHAPE, np.float32)
    rig.controller._work._reuse = Reuse(log, 1.0, 3)
    write = rig.frames.write

    def logged(pixels, *stamps):
        log.put(rig.frames.next_index, pixels)
        return write(pixels, *stamps)

    rig.frames.write = logged
    rig.run(6)
    rig.clock.sleep_until(rig.schedule.times(6).start_ns + 20 * MS)
    rig.run(7)
    said = page(told(rig), 6)
    assert "So no pass was begun: the picture was still that of the last one" in said
    assert "using the last action again 0.00 ms" in said
    assert f"The newest frame was {rig.sink.records[6].frame_index}, newer than any used before." in said


def test_a_fault_has_its_reason_and_is_said_once_to_stop_motion():
    rig = enabled(Rig(service_ms=20.0))
    rig.run(5, each=lambda tick: rig.observe_joints())
    rig.engine.script_next("fail")
    rig.run(7, each=lambda tick: rig.observe_joints())
    run = told(rig)
    assert [tick["decision"] for tick in run.ticks[5:]] == ["FAULT", "FAULT"]
    said = page(run, 5)
    assert "The reason given: the engine process ended." in said
    assert "Motion is being stopped: a trajectory that is being followed is braked to rest" in said
    assert "frame yet" not in said
    assert "Motion had been stopped, and no fresh action has ended that." in page(run, "last-stop")


def test_a_tick_without_a_frame_says_whether_there_ever_was_one():
    rig = Rig(frames_ms=[40.0])
    rig.run(4)
    run = told(rig)
    assert [tick["decision"] for tick in run.ticks] == [
        "HOLD_NO_FRAME",
        "HOLD_NO_FRAME",
        "FRESH",
        "HOLD_NO_FRAME",
    ]
    assert "There was no frame yet." in page(run, 0)
    assert "The newest frame, 1, was not newer than the last one used." in page(run, 3)
    assert "Admission was not asked: no pass was in question." in page(run, 3)


def test_events_and_forgotten_frames_are_told_with_their_reasons():
    rig = Rig(n_slots=4 * 32 + 24)
    rig.run(8)
    rig.controller.post(Instruction("go\x1b[2J", np.arange(12, dtype=np.int32)))
    rig.controller.post(ResetMemory())
    rig.controller.post(EngineReplaced(rig.controller._info))
    rig.run(9)
    run = told(rig)
    said = page(run, 8)
    assert r"A new instruction, 'go\x1b[2J': what was planned before was cancelled." in said
    assert "Memory was to be emptied" in said
    assert "A fresh engine took over, plan scripted" in said
    line = next(tick for tick in run.ticks if tick["journal"])
    evicted = line["journal"][0]
    assert f"Frame {evicted['frame']} was forgotten by the policy fifo: {evicted['reason']}." in page(
        run, line["tick"]
    )


def test_what_an_instruction_cancelled_is_not_said_to_go_on():
    rig = enabled(Rig(service_ms=20.0))
    rig.run(5, each=lambda tick: rig.observe_joints())
    rig.controller.post(Instruction("another", np.arange(400, dtype=np.int32)))
    rig.engine.script_next(50.0)
    rig.run(6)
    run = told(rig)
    assert run.ticks[5]["decision"] == "HOLD_BUSY"
    said = page(run, 5)
    assert "What was planned had been cancelled by an event" in said
    assert "goes on with the one before" not in said


def test_of_a_record_that_lacks_everything_else_the_decision_alone_is_told():
    run = RecordedTicks({}, [{"tick": 3, "decision": "HOLD_REFUSED"}])
    assert page(run, 3) == (
        "Admission let no pass begin: none was expected to end in time, or the misses that the target allows "
        "are spent."
    )


@pytest.mark.parametrize("name", sorted(Rig().run(3)[2].to_json()))
def test_no_sentence_needs_a_field_that_a_run_may_lack(name):
    rig = enabled(Rig(service_ms=20.0))
    rig.run(6, each=lambda tick: rig.observe_joints())
    run = told(rig)
    if name not in ("tick", "decision"):
        del run.ticks[5][name]
    assert "None" not in page(run, 5)


def test_the_list_has_ticks_that_are_alike_in_one_line_and_ends_with_the_range():
    rig = Rig(service_ms=20.0)
    rig.run(5)
    rig.engine.script_next(120.0)
    rig.run(12)
    run = told(rig)
    assert [(group.first, group.last, group.decision) for group in notable(run)] == [
        (0, 0, "HOLD_NO_FRAME"),
        (5, 5, "HOLD_LATE"),
        (6, 8, "HOLD_BUSY"),
        (9, 11, "HOLD_REFUSED"),
    ]
    lines = list_lines(run)
    assert lines[1].startswith("tick 5      HOLD_LATE (misses: 1): the pass had not finished")
    assert lines[2] == "ticks 6-8   3 x HOLD_BUSY, the last: an earlier frame still runs"
    assert lines[-1] == "12 ticks, 4 of them FRESH; ticks 0 to 11 are there"


def write_lines(path, run: RecordedTicks, cut: int = 0):
    items = [{"run": {"parameters": run.parameters}}, {"begin": {"at_ns": 0, "frame": 0}}]
    text = "".join(json.dumps(item) + "\n" for item in [*items, *({"tick": tick} for tick in run.ticks)])
    path.write_text(text[: len(text) - cut])
    return path


@pytest.fixture
def recorded(tmp_path):
    rig = Rig(service_ms=20.0)
    rig.run(6)
    return write_lines(tmp_path / "run.jsonl", told(rig))


def call(capsys, *words) -> tuple[int, str, str]:
    code = main(["explain", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command_prints_the_page_of_a_tick_and_the_list_without_one(capsys, recorded, tmp_path):
    code, out, err = call(capsys, recorded, "--tick", "last")
    assert (code, err) == (0, "")
    assert out.startswith("tick 5: FRESH\n  An action of this tick's own, in time.\n")
    assert call(capsys, recorded)[1] == call(capsys, recorded, "--list")[1] != ""
    ticks = [json.loads(line)["tick"] for line in recorded.read_text().splitlines()[2:]]
    document = tmp_path / "demo.json"
    document.write_text(json.dumps({"kind": "demo", "parameters": PARAMETERS, "records": ticks}))
    assert call(capsys, document, "--tick", 5)[1] == out


def test_the_page_that_the_documentation_shows_is_what_is_printed(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "118")
    text = (Path(__file__).parents[2] / "docs/decisions.md").read_text()
    shown = text.partition("```\ntick 8: HOLD_REFUSED\n")[2].partition("\n```")[0].splitlines()
    path = tmp_path / "slow.json"
    words = ["--service-ms", "40", "--seconds", "1", "--json", str(path)]
    assert main(["replay", str(SAMPLE), *words]) == 0
    capsys.readouterr()
    code, out, _ = call(capsys, path, "--tick", "last-refused")
    assert code == 0
    lines = iter(out.splitlines())
    assert next(lines) == "tick 8: HOLD_REFUSED"
    wanted = [line for line in shown if line.strip() != "..."]
    assert len(wanted) > 10
    assert [line for line in wanted if line not in lines] == []  # in their order


def test_of_a_run_whose_last_line_is_cut_the_others_are_told_and_that_is_said(capsys, tmp_path):
    rig = Rig()
    rig.run(6)
    path = write_lines(tmp_path / "run.jsonl", told(rig), cut=20)
    code, out, err = call(capsys, path, "--tick", 4)
    assert code == 0 and out.startswith("tick 4")
    assert err == f"{path}: the last line is cut and is left out\n"
    code, _, err = call(capsys, path, "--tick", 5)
    assert code == 2
    assert "tick 5 was not recorded: ticks 0 to 4 are there, and its last line is cut" in err


def test_the_last_of_the_ticks_with_a_number_is_told_where_the_node_was_activated_again(capsys, tmp_path):
    rig = Rig()
    rig.run(6)
    run = told(rig)
    again = [{"tick": 2, "decision": "HOLD_NO_FRAME"}]
    path = write_lines(tmp_path / "run.jsonl", RecordedTicks(run.parameters, run.ticks + again))
    out = call(capsys, path, "--tick", 2)[1]
    assert "there are 2 ticks 2" in out
    assert "tick 2: HOLD_NO_FRAME" in out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--tick", "77"], "tick 77 was not recorded: ticks 0 to 5 are there"),
        (["--tick", "-1"], "wanted is a tick's number or one of last, last-miss"),
        (["--tick", "soon"], "wanted is a tick's number or one of last, last-miss"),
        (["--tick", "9" * 40], "wanted is a tick's number or one of last, last-miss"),
        (["--tick", "last-stop"], "no stop was recorded: ticks 0 to 5 are there"),
    ],
)
def test_a_tick_that_is_not_there_is_refused_with_what_is(capsys, recorded, words, line):
    code, _, err = call(capsys, recorded, *words)
    assert code == 2
    assert line in err


RUN = '{"run": {"parameters": {}}}\n'


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "cannot be read: No such file"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"", "it is no JSON, or cut short"),
        (b"[1, 2]", "has no records of ticks"),
        (b'{"records": 5}', "records is 5, wanted a list"),
        (b'{"records": [{"tick": 1}]}', "records[0].decision is missing"),
        (b'{"records": [{"tick": 1, "decision": "MAYBE"}]}', "wanted a Decision"),
        (b'{"records": [{"tick": 1, "decision": "FRESH", "work": [7]}]}', "work[0] is 7, wanted an object"),
        (b'{"records": [{"tick": 1, "decision": "FRESH", "action": [NaN]}]}', "wanted a finite number"),
        (b'{"records": [], "parameters": {"control.margin_ms": "x"}}', "wanted a finite number"),
        (RUN.encode() + b'{"tick": nonsense}\n{"end": {}}\n', "has a line that is no JSON, the 2."),
        (RUN.encode() + b'{"tick": 5}\n', "records[0] is 5, wanted an object"),
        (b"[" * 100_000, "it is no JSON, or cut short"),
    ],
)
def test_a_file_that_is_no_run_is_refused_in_one_line(capsys, tmp_path, content, line):
    path = tmp_path / "run.jsonl"
    if content is not None:
        path.write_bytes(content)
    code, out, err = call(capsys, path, "--tick", 1)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert line in err


def test_figures_of_a_hostile_file_end_in_no_traceback(capsys, tmp_path):
    path = tmp_path / "run.json"
    work = {"work_id": 1, "kind": "frame\x1b[2J", "submitted_ns": -(2**61), "finished_ns": 2**61}
    tick = {"tick": 1, "decision": "FRESH", "scheduled_ns": 2**61, "started_ns": -(2**61), "is_enabled": True}
    tick |= {"work": [work], "submitted_work": 1, "action": [1e308], "reason": "\x1b]0;x\x07[bold]"}
    parameters = {"control.deadline_ms": 1e308, "control.margin_ms": -5, "actions.ttl_ms": 1e300}
    path.write_text(json.dumps({"records": [tick], "parameters": parameters}))
    code, out, _ = call(capsys, path, "--tick", 1)
    assert code == 0
    assert "\x1b" not in out and "[bold]" in out
