"""The control loop's one way to the robot: tokens in, limited trajectories and commands out."""

import math
from collections.abc import Sequence

import numpy as np

from vla_edge_ros.actions.chunk import Accepted, ChunkQueue
from vla_edge_ros.actions.commands import CommandGroups
from vla_edge_ros.actions.config import ActionConfig
from vla_edge_ros.actions.joints import JointStates
from vla_edge_ros.actions.limits import Limits
from vla_edge_ros.actions.messages import GroupCommand, GroupTrajectory
from vla_edge_ros.actions.policy import Kind, Policy
from vla_edge_ros.actions.tokens import N_BINS, detokenise
from vla_edge_ros.actions.trajectories import TrajectoryGroups


class ActionPlanner:
    """Follows chunks of actions within the limits of a policy; all times are passed in.

    Every method is for the tick thread; `observe_joints` and `why_not_ready` may be called from another one
    too.

    On a fresh tick call `accept`, then `trajectories`; on every tick `commands`; to end motion `cancel` and,
    where no more commands will follow, `rest_commands`. While disabled do the same and send nothing, without
    `trajectories`; `reset` on enabling and disabling.

    Limits start from what was sent last: for a trajectory group where its plan will be, for a command group
    its last command. The first step after `reset` or `cancel` is limited from the measured position. Where
    joint states are needed and missing, steps are clamped for `last_action` and nothing is sent.
    """

    def __init__(self, policy: Policy, config: ActionConfig) -> None:
        """Raises PolicyError where policy and configuration cannot work together."""
        config.check(policy)
        self.last_action: list[float] | None = None
        """(A,) in units: this tick's step, limited, or what is held; None before the first step."""
        self.warnings = policy.warnings + config.warnings(policy)
        self._policy = policy
        self._least_tokens = policy.least_tokens
        self._config = config
        self._trajectories = TrajectoryGroups(policy, config)
        self._commands = CommandGroups(policy, config)
        self._queue = ChunkQueue(
            policy.action_period_ns, config.ttl_ns, config.min_lead_ns, config.anchor == "capture"
        )
        every_token = detokenise(np.arange(N_BINS), N_BINS)
        self._units = policy.statistics.unnormalise(every_token[:, np.newaxis]).T.tolist()
        """For each dimension what each token means, in units."""
        self._unmeasured = [math.nan] * len(policy.dimensions)
        grouped = {joint for group in policy.groups for joint in group.joints}
        self._measured_columns = [
            i
            for i, dimension in enumerate(policy.dimensions)
            if i in self._trajectories.columns
            or (dimension.name in grouped and dimension.kind.needs_joint_state)
        ]
        self._joints = JointStates(
            [policy.dimensions[i].name for i in self._measured_columns], config.joint_state_max_age_ns
        )
        self._joint_deltas = [i for i, d in enumerate(policy.dimensions) if d.kind is Kind.JOINT_DELTA]
        # A joint at full speed is seen this far behind its command where its state is as old as allowed.
        self._leash = Limits.of(policy.dimensions).reach(config.joint_state_max_age_ns)
        self._effect_ns: int | None = None

    @property
    def steps_dropped(self) -> int:
        """Steps dropped so far: due too soon, too old, unreadable, or cancelled."""
        return self._queue.steps_dropped

    @property
    def joint_states_refused(self) -> int:
        return self._joints.refused

    @property
    def joints(self) -> JointStates:
        return self._joints

    def observe_joints(
        self,
        names: Sequence[str],
        positions: Sequence[float],
        velocities: Sequence[float] | None,
        receipt_ns: int,
    ) -> str | None:
        """Take a JointState over; returns one line where it is refused and counted instead."""
        return self._joints.observe(names, positions, velocities, receipt_ns)

    def why_not_ready(self, now_ns: int) -> str | None:
        """None where actions may be sent; else one line: joint states are needed and missing or too old."""
        return self._joints.why_not_ready(now_ns)

    def reset(self) -> None:
        """Start as if nothing had been sent, with an empty queue."""
        self._queue.drop(0 if self._effect_ns is None else self._effect_ns + self._config.period_ns)
        self._trajectories.reset()
        self._commands.reset()
        self._effect_ns = None
        self.last_action = None

    def expiry_ns(self, capture_ns: int) -> int:
        """The end of the time to live of a pass over a frame of `capture_ns`: no step of it is sent later."""
        return capture_ns + self._config.ttl_ns

    def accept(self, tokens: np.ndarray, vocabulary_size: int, capture_ns: int, effect_ns: int) -> Accepted:
        """Follow the steps of a pass, token ids (K, N), from `effect_ns` on.

        N is A, or less by dimensions that may each be held (`Policy.least_tokens`) and have been commanded:
        joints stay where they are commanded to be, a gripper at its last opening.
        Where none is left, or ids are no actions, nothing changes: the chunk before is followed to its end.
        """
        try:
            steps = self._read(tokens, vocabulary_size)
        except ValueError as error:
            n_steps = len(tokens) if tokens.ndim else 0
            self._queue.steps_dropped += n_steps
            return Accepted(0, n_steps, str(error))
        accepted = self._queue.accept(steps, capture_ns, effect_ns)
        if accepted.steps_left:
            self._begin(effect_ns)
        return accepted

    def trajectories(self, effect_ns: int, stamp_ns: int) -> list[GroupTrajectory]:
        """The accepted chunk for each trajectory group, once; `stamp_ns` is effect_ns in ROS time."""
        return self._trajectories.take(effect_ns, stamp_ns)

    def commands(self, effect_ns: int, hold_ns: int) -> list[GroupCommand]:
        """What each command group is to do at `effect_ns`: this tick's step, or what its kind holds.

        hold_ns: how long since the last fresh tick, 0 on one. A group is left out while one of its dimensions
        has had neither a step nor a measured position: a made-up value would move the arm or the gripper.
        """
        if self._effect_ns is None or effect_ns > self._effect_ns:
            self._advance(effect_ns, hold_ns)
            self._effect_ns = effect_ns
        return self._commands.messages()

    def cancel(self, now_ns: int, effect_ns: int, stamp_ns: int) -> list[GroupTrajectory]:
        """End motion: drop the queue, and one point for each trajectory group where its plan comes to rest.

        effect_ns: of this tick; stamp_ns: effect_ns in ROS time. Empty where no trajectory is being followed:
        none was sent, or it has been cancelled. Commands go on being held.
        """
        self._queue.drop(effect_ns)
        self._commands.restart()
        return self._trajectories.cancel(now_ns, effect_ns, stamp_ns)

    def rest_commands(self) -> list[GroupCommand]:
        """The last commands before silence: motion is zero, positions and grippers as they were.

        For disabling and for the end, after `cancel`: a controller keeps its last command for ever.
        """
        self._commands.rest()
        return self._commands.messages()

    def _read(self, tokens: np.ndarray, vocabulary_size: int) -> list[list[float]]:
        wanted = len(self._policy.dimensions)
        least = wanted if self.last_action is None else self._least_tokens
        if tokens.ndim != 2 or not least <= tokens.shape[1] <= wanted:
            among = f"{wanted}" if least == wanted else f"{least} to {wanted}"
            raise ValueError(f"action tokens are shaped {tokens.shape}, wanted (steps, {among})")
        steps, first = tokens.tolist(), vocabulary_size - N_BINS
        is_action = all(first <= token < vocabulary_size for step in steps for token in step)
        if not is_action or tokens.dtype.kind not in "iu":
            detokenise(tokens, vocabulary_size)  # raises, and says what is wrong
        n_decoded = tokens.shape[1]
        held = self._held_from(n_decoded)
        return [
            [units[token - first] for units, token in zip(self._units[:n_decoded], step, strict=True)] + held
            for step in steps
        ]

    def _held_from(self, n_decoded: int) -> list[float]:
        """What the dimensions that were not decoded are to do, as if they had been."""
        dimensions = enumerate(self._policy.dimensions[n_decoded:], n_decoded)
        return [0.0 if d.kind is Kind.JOINT_DELTA else self.last_action[i] for i, d in dimensions]

    def _begin(self, effect_ns: int) -> None:
        """Put the queued steps into what is sent: joint deltas into positions, trajectories into limits."""
        steps, planned, commanded = self._queue.steps, self._trajectories.columns, self._commands.columns
        measured = self._measured(effect_ns)
        of_plan = [measured[i] for i in planned]
        last_commands = self._commands.start([measured[i] for i in commanded])
        if self._joint_deltas:
            start = np.empty(len(measured))
            start[planned] = self._trajectories.position_at(effect_ns, of_plan)
            start[commanded] = last_commands
            self._add_deltas(steps, start, np.array(measured))
        targets = [[step[i] for i in planned] for step in steps]
        points = self._trajectories.prepare(targets, self._queue.due_ns, effect_ns, of_plan)
        for step, point in zip(steps, points, strict=True):
            for i, value in zip(planned, point, strict=True):
                step[i] = value

    def _add_deltas(self, steps: list[list[float]], start: np.ndarray, measured: np.ndarray) -> None:
        """Joint deltas add up from the commanded position, as in MoveIt Servo: from the measured one an arm
        under load would sink by its tracking error again and again. A joint that is held back keeps the
        command on a leash, so that it does not spring away when let go.
        """
        near = start.clip(measured - self._leash, measured + self._leash)
        # Without joint states nothing is sent; the deltas alone are shown.
        start = np.nan_to_num(np.where(np.isnan(measured), start, near))
        sums = np.cumsum(steps, axis=0)
        for step, added in zip(steps, sums, strict=True):
            for i in self._joint_deltas:
                step[i] = float(start[i] + added[i])

    def _advance(self, effect_ns: int, hold_ns: int) -> None:
        columns = self._commands.columns
        is_over = hold_ns > self._config.max_hold_ns
        step = None if is_over else self._queue.step_at(effect_ns)
        measured = self._measured(effect_ns)
        values = self._commands.advance(
            None if step is None else [step[i] for i in columns],
            [measured[i] for i in columns],
            effect_ns,
            effect_ns if is_over else self._queue.expiry_ns,
        )
        if step is None and self.last_action is None:
            return
        action = (self.last_action if step is None else step).copy()
        for i, value in zip(columns, values, strict=True):
            if math.isfinite(value):
                action[i] = value
        self.last_action = action

    def _measured(self, effect_ns: int) -> list[float]:
        """(A,) measured positions; NaN where there are none or they were too old when the tick began."""
        measured = self._unmeasured.copy()
        if self._measured_columns and self._joints.why_not_ready(effect_ns - self._config.period_ns) is None:
            for i, position in zip(self._measured_columns, self._joints.latest.positions, strict=True):
                measured[i] = position
        return measured
