"""Random runs against an independent account of what a controller does with the messages."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_edge_ros.actions import limits
from vla_edge_ros.actions.config import ActionConfig
from vla_edge_ros.actions.planner import ActionPlanner
from vla_edge_ros.actions.policy import Dimension, Group, Interface, Kind

MS = 1_000_000
PERIOD_NS = 33 * MS
VOCABULARY = 1000
SLACK = 1e-9

DIMENSIONS = [
    Dimension("a", Kind.POSITION, -1.0, 1.0, 1.0, 5.0),
    Dimension("b", Kind.JOINT_DELTA, -0.5, 2.0, 0.5),
    Dimension("c", Kind.POSITION, -1.0, 1.0, 2.0),
    Dimension("d", Kind.JOINT_DELTA, -0.5, 0.5, 1.0),
    Dimension("v", Kind.VELOCITY, -0.8, 1.0, 0.9),
    Dimension("x", Kind.EE_DELTA, -0.02, 0.02, 0.3),
    Dimension("g", Kind.GRIPPER, 0.0, 1.0, 3.0),
]
GROUPS = [
    Group("arm", Interface.TRAJECTORY, "~/trajectory", ("b", "a")),
    Group("joints", Interface.COMMAND, "~/joints", ("d", "c")),
    Group("rest", Interface.COMMAND, "~/rest", ("v", "x", "g")),
]
BY_NAME = {dimension.name: dimension for dimension in DIMENSIONS}
# The capture anchors absolute positions only.
ABSOLUTE = [replace(d, kind=Kind.POSITION) if d.kind is Kind.JOINT_DELTA else d for d in DIMENSIONS]
ABSOLUTE = [d for d in ABSOLUTE if not d.kind.is_motion]
ABSOLUTE_GROUPS = [*GROUPS[:2], Group("rest", Interface.COMMAND, "~/rest", ("g",))]
MEASURED = ("a", "b", "c", "d")

tick = st.integers(1, 4)
events = st.one_of(
    st.tuples(
        st.just("fresh"),
        tick,
        st.integers(0, 190),
        st.lists(st.lists(st.integers(744, 999), min_size=7, max_size=7), min_size=1, max_size=8),
    ),
    st.tuples(st.just("hold"), tick),
    st.tuples(st.just("see"), st.lists(st.floats(-2.5, 2.5), min_size=4, max_size=4)),
    st.tuples(st.just("cancel")),
    st.tuples(st.just("enable")),
)


class Robot:
    """Controllers that move in straight lines between points, as joint_trajectory_controller does."""

    def __init__(self) -> None:
        self.measured = dict.fromkeys(MEASURED, 0.0)
        self.knots = None
        self.sent = {}
        self.starts_afresh = True

    def position(self, now_ns):
        times, points = self.knots
        return np.array([np.interp(now_ns, times, points[:, i]) for i in range(points.shape[1])])

    def follow(self, trajectory, effect_ns):
        """Checks that each line is slow enough, and goes no further out than it starts."""
        joints = [BY_NAME[name] for name in trajectory.joints]
        if self.knots is None:
            start = np.array([self.measured[joint.name] for joint in joints])
        else:
            start = self.position(effect_ns)
        points = np.vstack([start, [point.positions for point in trajectory.points]])
        times = [effect_ns] + [effect_ns + point.time_from_start_ns for point in trajectory.points]
        assert np.isfinite(points).all()
        assert (np.diff(times) > 0).all()
        low, high = np.array([j.min for j in joints]), np.array([j.max for j in joints])
        for before, after, seconds in zip(points, points[1:], np.diff(times) / 1e9, strict=False):
            fastest = np.array([j.max_velocity for j in joints])
            assert (np.abs(after - before) <= fastest * seconds + SLACK).all()
            assert (after >= np.minimum(low, before) - SLACK).all()
            assert (after <= np.maximum(high, before) + SLACK).all()
        self.knots = (np.array(times, float), points)

    def obey(self, command, is_fresh):
        """Checks the range and the way from the command before."""
        for name, value in zip(command.joints, command.values, strict=True):
            dimension = BY_NAME[name]
            assert np.isfinite(value)
            before = self.sent.get(name)
            if name in MEASURED:
                if before is None or (is_fresh and self.starts_afresh):
                    before = self.measured[name]
                assert min(dimension.min, before) - SLACK <= value <= max(dimension.max, before) + SLACK
            else:
                assert dimension.min <= value <= dimension.max
            if dimension.kind is Kind.VELOCITY:
                assert abs(value) <= dimension.max_velocity
            elif dimension.kind is Kind.EE_DELTA:
                assert abs(value) <= dimension.max_velocity * 0.033 + SLACK
            elif before is not None:
                assert abs(value - before) <= dimension.max_velocity * 0.033 + SLACK
            if not is_fresh and dimension.kind.is_motion and name in self.sent and self.is_held:
                assert abs(value) <= abs(self.sent[name]) and value * self.sent[name] >= 0
            self.sent[name] = value


def run(policy_of, events, action_period_ms, anchor="effect"):
    dimensions, groups = (DIMENSIONS, GROUPS) if anchor == "effect" else (ABSOLUTE, ABSOLUTE_GROUPS)
    policy = policy_of(dimensions, groups=groups, period_ms=action_period_ms, low=-3.0, high=3.0)
    planner = ActionPlanner(policy, ActionConfig(PERIOD_NS, min_lead_ns=10 * MS, anchor=anchor))
    robot = Robot()
    effect_ns = fresh_ns = 1_000 * MS
    chunk_end_ns = dropped = 0
    for event in events:
        kind = event[0]
        if kind == "see":
            robot.measured = dict(zip(MEASURED, event[1], strict=True))
            continue
        if kind in ("cancel", "enable"):
            now_ns, next_ns = effect_ns, effect_ns + PERIOD_NS
            for stop in planner.cancel(now_ns, next_ns, next_ns):
                (point,) = stop.points
                assert point.time_from_start_ns >= 10 * MS
                assert set(point.velocities) == {0.0}
                robot.follow(stop, next_ns)
            robot.knots, robot.starts_afresh = None, True
            chunk_end_ns = min(chunk_end_ns, effect_ns)
            if kind == "enable":
                planner.reset()
                robot.sent = {}
                assert planner.last_action is None
            continue
        effect_ns += event[1] * PERIOD_NS
        # Joint states come just before every tick, from an arm that may be anywhere.
        names = ["z", *reversed(MEASURED)]
        planner.observe_joints(names, [0.0, *(robot.measured[n] for n in names[1:])], [], effect_ns - 30 * MS)
        is_fresh = False
        if kind == "fresh":
            tokens = np.array(event[3], np.int32)[:, : len(dimensions)]
            accepted = planner.accept(tokens, VOCABULARY, effect_ns - event[2] * MS, effect_ns)
            assert accepted.steps_left + accepted.steps_dropped == len(event[3])
            is_fresh = accepted.steps_left > 0
        if is_fresh:
            fresh_ns = effect_ns
            (trajectory,) = planner.trajectories(effect_ns, effect_ns)
            assert len(trajectory.points) == accepted.steps_left
            last_due_ns = effect_ns + trajectory.points[-1].time_from_start_ns
            assert last_due_ns <= effect_ns + (200 - event[2]) * MS
            chunk_end_ns = last_due_ns
            robot.follow(trajectory, effect_ns)
        robot.is_held = effect_ns >= chunk_end_ns
        for command in planner.commands(effect_ns, effect_ns - fresh_ns):
            robot.obey(command, is_fresh)
        if is_fresh:
            robot.starts_afresh = False
        if effect_ns - fresh_ns > 300 * MS or effect_ns >= chunk_end_ns + 100 * MS:
            assert robot.sent.get("v", 0.0) == robot.sent.get("x", 0.0) == 0.0
        if planner.last_action is not None:
            assert np.isfinite(planner.last_action).all()
        assert planner.steps_dropped >= dropped
        dropped = planner.steps_dropped


@settings(max_examples=150, deadline=None)
@given(
    events=st.lists(events, max_size=25),
    action_period_ms=st.sampled_from([15, 20, 33, 50, 99]),
    anchor=st.sampled_from(["effect", "capture"]),
)
def test_nothing_sent_is_infinite_or_outside_its_limits_or_too_fast(
    policy_of, events, action_period_ms, anchor
):
    run(policy_of, events, action_period_ms, anchor)


def test_the_check_itself_notices_a_step_that_is_too_long(policy_of, monkeypatch):
    fresh = ("fresh", 1, 0, [[744] * 7])
    run(policy_of, [fresh], 33)
    monkeypatch.setattr(limits, "SECOND_NS", limits.SECOND_NS // 2)
    with pytest.raises(AssertionError):
        run(policy_of, [fresh], 33)
