"""What the node makes of images, instructions, parameters and clocks, and what it says on every tick."""

import time
from itertools import cycle

import cv2
import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.time import Time
from robot import LATCHED, NEWEST, assert_consecutive, noise
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Float64, Header, String


def noise_around(level: int) -> Image:
    """64x48 rgb8 of one grey level, with noise enough that it is not taken for a frozen camera."""
    pixels = level + np.random.default_rng().integers(-3, 4, (48, 64, 3))
    return Image(height=48, width=64, encoding="rgb8", step=192, data=pixels.astype(np.uint8).tobytes())


OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR


# Ticks


def test_every_tick_is_published_once_and_says_what_was_decided_and_why(robot):
    robot.until_tick(decision="FRESH")
    ticks = robot.next_ticks(30)
    assert_consecutive(ticks)
    effects = [int(tick["effect_stamp_ns"]) for tick in ticks]
    assert effects == sorted(set(effects))
    fresh = robot.until_tick(decision="FRESH")
    for figure in ("frame_age_ms", "predicted_ms", "pass_ms", "prefill_ms", "decode_ms", "start_error_ms"):
        assert float(fresh[figure]) >= 0
    assert float(fresh["pass_ms"]) >= 5, "the fake engine takes 5 ms"
    assert int(fresh["frame_stamp_ns"]) > 1e18
    assert int(fresh["retained_frames"]) >= 1
    assert fresh["is_enabled"] == "False"


def test_every_figure_has_a_topic_of_its_own(robot):
    names = [
        name.rpartition("/")[2]
        for name, types in robot.node.get_topic_names_and_types()
        if name.startswith("/vla_edge_node/telemetry/") and types == ["std_msgs/msg/Float64"]
    ]
    assert {"pass_ms", "frame_age_ms", "retained_frames", "is_fresh", "start_error_ms"} <= set(names)
    heard = {}

    def listen(name):
        robot.listen(Float64, f"telemetry/{name}", lambda message: heard.update({name: message.data}))

    for name in names:
        listen(name)
    robot.until(lambda: heard.keys() == set(names))
    robot.until(lambda: heard["is_fresh"] == 1.0 and heard["pass_ms"] >= 5)


def test_telemetry_misses_no_tick_and_keeps_their_order(robot):
    robot.picture = None
    robot.until_tick(decision="HOLD_NO_FRAME")
    streaks = []
    robot.listen(Float64, "telemetry/hold_streak", lambda message: streaks.append(message.data))
    robot.until(lambda: len(streaks) >= 30)
    assert streaks == [streaks[0] + i for i in range(len(streaks))]


def test_without_a_camera_it_holds_then_stops_and_diagnostics_say_so(robot):
    robot.until_tick(decision="FRESH")
    robot.until_status("control", OK)
    assert robot.value("control", "is_enabled") == "False"
    robot.until_status("camera", OK)
    assert float(robot.value("camera", "rate_hz")) > 0
    robot.until_status("engine", OK)
    robot.picture = None
    assert robot.until_tick(decision="HOLD_NO_FRAME")["reason"] == "no frame newer than the last used"
    assert "no fresh action for" in robot.until_tick(decision="SAFE_STOP")["reason"]
    robot.until_status("camera", ERROR, "no images arrive")
    robot.until_status("control", ERROR, "SAFE_STOP")
    robot.picture = noise
    robot.until_tick(decision="FRESH")


# Images


def test_best_effort_vga_images_become_fresh_actions(robot):
    robot.picture = lambda: noise(640, 480)
    robot.next_ticks(3)
    assert robot.until_tick(decision="FRESH")["retained_frames"] != "0"


def test_bad_images_are_refused_counted_and_warned_of_and_the_next_good_one_is_acted_upon(robot):
    changes = {
        "step": {"step": 128},
        "depth": {"encoding": "16UC1"},
        "empty": {"data": b"", "width": 0, "height": 0, "step": 0},
        "encoding": {"encoding": "rgb12"},
        "size": {"data": bytes(100)},
    }
    bad = []
    for change in changes.values():
        bad.append(noise())
        for field, value in change.items():
            setattr(bad[-1], field, value)
    began_s = time.monotonic()
    robot.picture = cycle(bad).__next__
    for kind in changes:
        robot.until(lambda kind=kind: int(robot.value("camera", f"refused_{kind}") or 0) > 0)
    reason = robot.until_status("camera", WARN, "wanted").message
    assert reason.startswith("/image: ")
    warnings = [line for line in robot.edge.log_lines() if "[WARN]" in line and "/image" in line]
    assert 1 <= len(warnings) <= 1 + (time.monotonic() - began_s) / 5
    assert all(line.count("image") == 1 for line in warnings)
    assert "Traceback" not in robot.log()
    robot.picture = noise
    robot.until_tick(decision="FRESH")


def test_a_frozen_camera_is_reported_and_its_frames_are_not_used(robot):
    picture = noise()
    robot.picture = lambda: picture
    robot.until_status("camera", ERROR, "frozen")
    robot.until_logged("/image: the camera is frozen")
    robot.until_tick(decision="SAFE_STOP")
    robot.picture = noise
    robot.until_tick(decision="FRESH")
    robot.until_status("camera", OK)


# Instructions


def test_a_new_text_empties_memory_and_an_equal_one_changes_nothing(robot):
    publisher = robot.tell("stack the cups", NEWEST)
    robot.until_event("instruction")
    robot.until(lambda: int(robot.ticks[-1]["retained_frames"]) >= 5)
    seen = len(robot.ticks)
    publisher.publish(String(data="stack the cups"))
    robot.next_ticks(6)
    assert all(tick["events"] == "" and int(tick["retained_frames"]) >= 5 for tick in robot.ticks[seen:])
    robot.mark()
    publisher.publish(String(data="unstack the cups"))
    tick = robot.until_event("instruction")
    assert int(tick["retained_frames"]) == 0
    robot.until_tick(decision="FRESH")


@pytest.mark.parametrize("qos", [NEWEST, LATCHED], ids=["volatile", "transient_local"])
def test_publishers_of_either_durability_are_heard(robot, qos):
    robot.tell(f"grasp with {qos.durability.name}", qos)
    robot.until_event("instruction")


def test_an_instruction_that_was_latched_before_the_node_was_configured_is_heard(robot):
    robot.bring_to("unconfigured")
    robot.tell("said early")
    seen = len(robot.ticks)
    robot.bring_to("active")
    # the parameter's and this one
    robot.until(lambda: sum(tick["events"].count("instruction") for tick in robot.ticks[seen:]) == 2)


def test_a_text_that_leaves_no_room_is_refused_and_memory_is_kept(robot):
    robot.until(lambda: int(robot.ticks[-1]["retained_frames"]) >= 2)
    seen = len(robot.ticks)
    robot.tell("x" * 5000)
    assert "shorten them or raise memory.slots" in robot.until_logged("[ERROR]")
    robot.next_ticks(3)
    assert all(tick["events"] == "" and int(tick["retained_frames"]) >= 2 for tick in robot.ticks[seen:])
    assert robot.log().count("shorten them") == 1


def test_the_memory_strip_shows_the_retained_frames_to_who_watches(robot):
    """Grey pictures, newer ones brighter: one cell of 64x32 pixels for each retained frame, oldest first."""
    levels = cycle(range(60, 240))
    robot.picture = lambda: noise_around(next(levels))
    robot.until_tick(decision="FRESH")
    robot.reset_memory()
    robot.until_event("reset_memory")
    strips = []
    robot.listen(Image, "memory_strip", strips.append)
    robot.until(lambda: len(strips) >= 3 and int(robot.ticks[-1]["retained_frames"]) >= 2)
    strip = strips[-1]
    assert (strip.width, strip.height % 32, strip.encoding, strip.step) == (1024, 0, "rgb8", 3072)
    cells = np.frombuffer(strip.data, np.uint8).reshape(-1, 32, 16, 64, 3).mean(axis=(1, 3, 4)).ravel()
    shown = cells[cells > 40]
    assert len(shown) >= 2 and (np.diff(shown) > 0).sum() >= len(shown) - 2, "the levels wrap at most once"


def test_resetting_memory_empties_it(robot):
    robot.until(lambda: int(robot.ticks[-1]["retained_frames"]) >= 2)
    robot.reset_memory()
    assert robot.until_event("reset_memory")["retained_frames"] == "0"
    robot.until_tick(decision="FRESH")


# Parameters


def test_live_parameters_take_effect_while_ticks_run(robot):
    robot.until_tick(decision="FRESH")
    assert robot.set(camera__max_age_ms=1) == "", "a whole number for a double"
    assert "allowed are 1 ms" in robot.until_tick(decision="HOLD_STALE_FRAME")["reason"]
    assert robot.set(camera__max_age_ms=100.0) == ""
    robot.until_tick(decision="FRESH")


def test_fixed_parameters_are_refused_while_configured_unless_they_stay_as_they_are(robot):
    assert robot.set(control__period_ms=50.0) == (
        "control.period_ms is fixed while the node is configured: deactivate and clean it up first"
    )
    for name in ("actions.ttl_ms", "actions.max_hold_ms", "actions.joint_state_max_age_ms"):
        assert f"{name} is fixed" in robot.set(**{name: 250.0})
    assert robot.set(control__period_ms=33.333, memory__slots=1024) == ""


def test_bad_values_and_unknown_names_are_refused_in_one_line(robot):
    assert robot.set(camera__max_age_ms="soon") == (
        "camera.max_age_ms: 'soon' is not allowed, it must be a number from 1 to 10000, in ms"
    )
    out_of_range = robot.set(camera__max_age_ms=1e6)
    assert "camera.max_age_ms" in out_of_range and "10000.0" in out_of_range and "\n" not in out_of_range
    assert "camera.max_age_ms: 0 is not allowed" in robot.set(camera__max_age_ms=0)
    assert "is 5000" in robot.set(camera__max_age_ms=5000.0), "beyond camera.foreign_clock_ms"
    assert robot.set(camera__max_agems=5.0)
    robot.until_tick(decision="FRESH")


# Clocks


def test_jumps_of_the_ros_clock_empty_memory_and_small_steps_do_not(robot):
    clock = robot.node.create_publisher(Clock, "/clock", 10)
    robot.until(lambda: int(robot.ticks[-1]["retained_frames"]) >= 2)
    seen = len(robot.ticks)
    assert robot.set(use_sim_time=True) == ""
    robot.until_event("clock_jump")
    # without /clock the steady clock goes on giving ticks, and frames count from their receipt
    robot.until_tick(decision="FRESH")
    robot.until_status("camera", OK)

    def show(seconds):
        robot.mark()
        clock.publish(Clock(clock=Time(nanoseconds=round(seconds * 1e9)).to_msg()))

    robot.until(clock.get_subscription_count)
    show(100)
    robot.until_event("clock_jump")
    robot.until(lambda: int(robot.ticks[-1]["retained_frames"]) >= 2)
    seen = len(robot.ticks)
    for step in range(1, 31):
        show(100 + step / 30)
        robot.next_ticks(1)
    assert not any("clock_jump" in tick["events"] for tick in robot.ticks[seen:])
    assert 100e9 < int(robot.ticks[-1]["effect_stamp_ns"]) < 102e9
    show(50)
    tick = robot.until_event("clock_jump")
    assert tick["retained_frames"] == "0"
    assert float(tick["hold_ms"]) == 0
    robot.until_tick(decision="FRESH")
    assert robot.set(use_sim_time=False) == ""
    robot.until_event("clock_jump")
    robot.node.destroy_publisher(clock)


def test_the_memory_strip_comes_where_nothing_publishes_the_ros_clock(robot):
    assert robot.set(use_sim_time=True) == ""
    robot.until_event("clock_jump")
    strips = []
    robot.listen(Image, "memory_strip", strips.append)
    robot.until(lambda: len(strips) >= 2)
    assert robot.set(use_sim_time=False) == ""
    robot.until_event("clock_jump")


# Another configuration of the same process


def test_compressed_images_become_fresh_actions_and_a_broken_one_is_refused(robot):
    robot.reconfigure(camera__is_compressed=True, camera__resize="letterbox")
    robot.picture = None
    robot.replace_camera(CompressedImage)

    def send(data):
        stamp = robot.node.get_clock().now().to_msg()
        robot.camera.publish(CompressedImage(header=Header(stamp=stamp), format="jpeg", data=data))
        robot.next_ticks(1)

    def jpeg():
        picture = np.frombuffer(noise().data, np.uint8).reshape(48, 64, 3)
        return cv2.imencode(".jpg", picture)[1].tobytes()

    robot.until(lambda: send(jpeg()) or robot.ticks[-1]["decision"] == "FRESH")
    robot.until(lambda: send(b"no picture at all") or robot.value("camera", "refused_undecodable"))
    robot.until(lambda: send(jpeg()) or robot.ticks[-1]["decision"] == "FRESH")
    robot.replace_camera(Image)


def test_a_simulators_still_picture_is_used_where_withholding_is_off(robot):
    robot.reconfigure(camera__withhold_frozen=False)
    picture = noise()
    robot.picture = lambda: picture
    robot.until_status("camera", ERROR, "frozen")
    robot.until_tick(decision="FRESH")
