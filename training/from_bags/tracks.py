"""Recorded actions as values over time, one track a dimension of the policy.

Messages are read as those that the node sends: positions for `position` and `joint_delta`, the velocity for
`velocity`, the displacement for `ee_delta`, the opening for `gripper`. Times are the recorder's, in
nanoseconds: the one clock that all topics of a recording share.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from vla_edge_ros.actions.policy import Dimension, Interface, Kind, Policy
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.bags import Bag, TopicInfo
from vla_edge_ros.evaluation.message_types import FLOAT_ARRAY, JOINT_STATE, JOINT_TRAJECTORY
from vla_edge_ros.perception.message import header_stamp_ns

ACTION_TYPES = (JOINT_TRAJECTORY, JOINT_STATE, FLOAT_ARRAY)

_FOREIGN_NS = 1_000_000_000
"""A trajectory's stamp further than this from its receipt is of another clock: it counts from its receipt."""


class UnfitActions(UserError):
    """Recorded actions cannot be trained on; the message says which and why."""


@dataclass(slots=True)
class Track:
    """A dimension's values at rising times.

    is_planned: the waypoints of a trajectory controller, which stays at the last one.
    """

    topic: str
    is_planned: bool
    times_ns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def at(self, times_ns: np.ndarray, is_linear: bool, max_gap_ns: int) -> np.ndarray:
        """(n,) float64 at `times_ns` (n,): in a straight line between samples, or the newest sample.

        NaN before the first sample, and where the samples around are further apart than `max_gap_ns`; of a
        trajectory they may be.
        """
        known, values = np.array(self.times_ns, np.int64), np.array(self.values)
        before = np.searchsorted(known, times_ns, side="right") - 1
        after = np.minimum(before + (known[before] < times_ns), len(known) - 1)
        found = np.interp(times_ns - known[0], known - known[0], values) if is_linear else values[before]
        if self.is_planned:
            is_known = np.ones(len(times_ns), bool)
        elif is_linear:
            is_known = (known[after] - known[before] <= max_gap_ns) & (times_ns <= known[-1])
        else:
            is_known = times_ns - known[before] <= max_gap_ns
        return np.where(is_known & (before >= 0), found, np.nan)

    @property
    def period_ns(self) -> int:
        """The median time between samples; 0 with fewer than two."""
        return int(np.median(np.diff(self.times_ns))) if len(self.times_ns) > 1 else 0

    def sample(self, at_ns: int, value: float, where: str) -> None:
        if self.times_ns and at_ns < self.times_ns[-1]:
            raise UnfitActions(f"{where}: log times go back: the parts of the recording are not in order")
        self.times_ns.append(at_ns)
        self.values.append(value)

    def plan(self, start_ns: int, times_ns: Sequence[int], positions: Sequence[float]) -> None:
        """Follow new waypoints from `start_ns` on, from wherever the old ones lead to by then."""
        if self.times_ns and times_ns[0] > start_ns >= self.times_ns[0]:
            positions, times_ns = [self._planned_at(start_ns), *positions], [start_ns, *times_ns]
        kept = bisect_left(self.times_ns, times_ns[0])
        self.times_ns[kept:], self.values[kept:] = times_ns, positions

    def _planned_at(self, at_ns: int) -> float:
        i = bisect_right(self.times_ns, at_ns)
        if i == len(self.times_ns):
            return self.values[-1]
        span_ns = self.times_ns[i] - self.times_ns[i - 1]
        share = (at_ns - self.times_ns[i - 1]) / span_ns
        return self.values[i - 1] + share * (self.values[i] - self.values[i - 1])


def find_action_topic(bag: Bag, name: str) -> TopicInfo:
    """The topic of that name, of a type that is read here. Raises UnfitActions and lists what is there."""
    named = [topic for topic in bag.topics() if topic.name.strip("/") == name.strip("/")]
    wanted = ", ".join(kind.split("/")[-1] for kind in ACTION_TYPES)
    if not named:
        raise UnfitActions(f"{bag.path}: there is no action topic {name}; {bag.there_are()}")
    fitting = [topic for topic in named if topic.type in ACTION_TYPES]
    if not fitting:
        raise UnfitActions(
            f"{bag.path}: {name} is {named[0].type}, wanted one of {wanted}; {bag.there_are()}"
        )
    if not fitting[0].count:
        raise UnfitActions(f"{bag.path}: there are no actions: {name} has no message")
    return fitting[0]


def read_tracks(bag: Bag, topics: Sequence[str], policy: Policy) -> list[Track]:
    """A track for each dimension of `policy`, in its order. Raises UnfitActions."""
    tracks: dict[str, Track] = {}
    heard: set[str] = set()
    for name in topics:
        topic = find_action_topic(bag, name)
        for dimension, track in _read_topic(bag, topic, policy, heard):
            if dimension in tracks:
                raise UnfitActions(
                    f"{bag.path}: {dimension} is on {tracks[dimension].topic} and on {topic.name}: name one"
                )
            tracks[dimension] = track
    missing = [d.name for d in policy.dimensions if d.name not in tracks]
    if missing:
        has = f"the joints there are {', '.join(sorted(heard)) or 'without names'}"
        raise UnfitActions(
            f"{bag.path}: {', '.join(missing)} of the policy is not on {', '.join(topics)}; {has}: change "
            "the names in --config, or name one more --action-topic"
        )
    return [tracks[dimension.name] for dimension in policy.dimensions]


def check_rate(tracks: Sequence[Track], policy: Policy, path: object) -> None:
    """Raises UnfitActions where actions are too rare for the policy's period, or displacements of another."""
    wanted_ms = policy.action_period_ns / 1e6
    for track, dimension in zip(tracks, policy.dimensions, strict=True):
        if track.is_planned or dimension.kind is Kind.GRIPPER:
            continue
        found_ms = track.period_ns / 1e6
        if found_ms > 1.5 * wanted_ms:
            raise UnfitActions(
                f"{path}: {track.topic} has an action every {found_ms:.1f} ms, slower than a frame is acted "
                f"on, every {wanted_ms:.1f} ms: set action_period_ms in --config to {found_ms:.1f}, or "
                "record actions faster"
            )
        if dimension.kind is Kind.EE_DELTA and found_ms < 0.67 * wanted_ms:
            raise UnfitActions(
                f"{path}: {track.topic} has a displacement every {found_ms:.1f} ms and action_period_ms in "
                f"--config is {wanted_ms:.1f}: displacements are learnt as they are, set it to {found_ms:.1f}"
            )


def _read_topic(bag: Bag, topic: TopicInfo, policy: Policy, heard: set[str]) -> Iterator[tuple[str, Track]]:
    wanted = {dimension.name: dimension for dimension in policy.dimensions}
    is_planned = topic.type == JOINT_TRAJECTORY
    tracks: dict[str, Track] = {}
    newest_ns: dict[tuple[str, ...], int] = {}
    first: tuple[str, ...] = ()
    for number, (log_ns, message) in enumerate(bag.messages(topic), 1):
        stamp_ns = log_ns if topic.type == FLOAT_ARRAY else header_stamp_ns(message) or log_ns
        where = f"{bag.path}: {topic.name}: message {number}, stamp {stamp_ns}"
        names = _names(message, topic, policy, where)
        first = first or names
        if topic.type == FLOAT_ARRAY and len(names) != len(first):
            raise UnfitActions(f"{where}: has {len(names)} values, wanted {len(first)} as in the first one")
        heard.update(names)
        if stamp_ns < newest_ns.get(names, stamp_ns):
            back_s = (newest_ns[names] - stamp_ns) / 1e9
            raise UnfitActions(f"{where}: stamps go back by {back_s:.3f} s: cut the recording there")
        newest_ns[names] = stamp_ns
        for at, name in enumerate(names):
            if name not in wanted:
                continue
            track = tracks.setdefault(name, Track(topic.name, is_planned))
            if is_planned:
                _plan(track, message, at, wanted[name], stamp_ns, log_ns, where)
            else:
                track.sample(log_ns, _value(message, topic.type, at, wanted[name], where), where)
    # A trajectory without points is none; its controller refuses it.
    yield from ((name, track) for name, track in tracks.items() if track.times_ns)


def _names(message: object, topic: TopicInfo, policy: Policy, where: str) -> tuple[str, ...]:
    """What the message's values are of. An array has no names: it is all of the policy, or a group of it."""
    if topic.type != FLOAT_ARRAY:
        names = tuple(message.name if topic.type == JOINT_STATE else message.joint_names)
        doubled = next((name for i, name in enumerate(names) if name in names[:i]), None)
        if doubled is not None:
            raise UnfitActions(f"{where}: joint {doubled} is there more than once")
        return names
    width = len(message.data)
    if width == len(policy.dimensions):
        return tuple(dimension.name for dimension in policy.dimensions)
    groups = [group for group in policy.groups if group.interface is Interface.COMMAND]
    fitting = [group for group in groups if len(group.joints) == width]
    if len(fitting) == 1:
        return fitting[0].joints
    described = ", ".join(f"{len(group.joints)} ({group.name})" for group in groups)
    raise UnfitActions(
        f"{where}: has {width} values, wanted {len(policy.dimensions)}, the policy's dimensions"
        + (f", or those of one command group: {described}" if groups else "")
    )


def _value(message: object, type_name: str, at: int, dimension: Dimension, where: str) -> float:
    if type_name == FLOAT_ARRAY:
        field_name, values = "data", message.data
    elif dimension.kind is Kind.EE_DELTA:
        raise UnfitActions(f"{where}: {dimension.name} is ee_delta, which is read of Float64MultiArray alone")
    else:
        field_name = "velocity" if dimension.kind is Kind.VELOCITY else "position"
        values = getattr(message, field_name)
        if len(values) != len(message.name):
            raise UnfitActions(f"{where}: {len(values)} values of {field_name} for {len(message.name)} names")
    return _finite(values[at], dimension, where)


def _plan(
    track: Track, message: object, at: int, dimension: Dimension, stamp_ns: int, log_ns: int, where: str
) -> None:
    if dimension.kind.is_motion:
        raise UnfitActions(
            f"{where}: {dimension.name} is {dimension.kind.value}, which is not read of trajectories"
        )
    start_ns = stamp_ns if abs(stamp_ns - log_ns) < _FOREIGN_NS else log_ns
    times_ns, positions = [], []
    for point in message.points:
        if len(point.positions) != len(message.joint_names):
            raise UnfitActions(
                f"{where}: {len(point.positions)} positions for {len(message.joint_names)} joints"
            )
        due_ns = start_ns + point.time_from_start.sec * 1_000_000_000 + point.time_from_start.nanosec
        if times_ns and due_ns <= times_ns[-1]:
            raise UnfitActions(f"{where}: the points' times do not grow")
        times_ns.append(due_ns)
        positions.append(_finite(point.positions[at], dimension, where))
    if times_ns:
        track.plan(start_ns, times_ns, positions)


def _finite(value: float, dimension: Dimension, where: str) -> float:
    if not np.isfinite(value):
        raise UnfitActions(f"{where}: {dimension.name} is {value}, wanted a finite number")
    return float(value)
