"""The policy file: which dimensions a policy's action has, how far and fast each may go, and who is told.

    name: my_arm
    statistics: dataset_statistics.json   # beside this file; OpenVLA's or LeRobot's
    dataset: my_data                      # only where the statistics are of several data sets
    action_period_ms: 33.333              # from one step of a chunk to the next
    dimensions:                           # in the order of the policy's tokens, at most 8
      - {name: shoulder, kind: position, min: -1.5, max: 1.5, max_velocity: 1.0, max_acceleration: 5.0}
      - {name: gripper, kind: gripper, min: 0.0, max: 1.0, max_velocity: 4.0}
    groups:                               # one a controller; each dimension belongs to exactly one
      - {name: arm, interface: trajectory, topic: "~/trajectory", joints: [shoulder]}
      - {name: hand, interface: command, topic: "~/command", joints: [gripper]}

`min` and `max` bound what is sent, in the units of the controller: a joint's position for `position` and
`joint_delta`, the velocity itself for `velocity`, the displacement of one message for `ee_delta`, the opening
for `gripper`. `max_velocity` is in these units a second (for `velocity` it bounds the speed once more).
`max_acceleration` may be left out: see `limits.BRAKING_S`.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import numpy as np
import yaml

from vla_edge_ros.actions.reading import (
    PolicyError,
    describe,
    mapping,
    number,
    positive,
    read_mapping,
    sequence,
    text,
)
from vla_edge_ros.actions.statistics import Statistics, load_statistics

MAX_DIMENSIONS = 8
"""A pass decodes at most 8 tokens, one an action dimension."""

LONGEST_BRAKING_S = 60
"""A dimension that needs longer to stop has a wrong unit."""

_POLICY_KEYS = {"name", "statistics", "dataset", "action_period_ms", "dimensions", "groups"}
_DIMENSION_KEYS = {"name", "kind", "min", "max", "max_velocity", "max_acceleration"}
_GROUP_KEYS = {"name", "interface", "topic", "joints"}
_TOPIC = re.compile(r"(~/|/)?[A-Za-z_]\w*(/[A-Za-z_]\w*)*", re.ASCII)


class Kind(str, Enum):
    """What a dimension's value means to the robot."""

    POSITION = "position"
    VELOCITY = "velocity"
    JOINT_DELTA = "joint_delta"
    """A displacement of a joint; it is sent as the joint's position."""
    EE_DELTA = "ee_delta"
    """A displacement of the end effector; it is sent as it is."""
    GRIPPER = "gripper"

    @property
    def needs_joint_state(self) -> bool:
        return self in (Kind.POSITION, Kind.JOINT_DELTA)

    @property
    def is_motion(self) -> bool:
        """Sending the same value again means to go on moving."""
        return self in (Kind.VELOCITY, Kind.EE_DELTA)

    @property
    def is_absolute(self) -> bool:
        return self in (Kind.POSITION, Kind.GRIPPER)

    @property
    def is_held_alone(self) -> bool:
        """It may stay where it was commanded while others move: without one axis a displacement of the end
        effector is another one, and a joint's position that is left out is caught up with later, in a leap.
        """
        return self in (Kind.JOINT_DELTA, Kind.GRIPPER)


class Interface(str, Enum):
    """What a controller takes: JointTrajectory, or Float64MultiArray."""

    TRAJECTORY = "trajectory"
    COMMAND = "command"


@dataclass(frozen=True, slots=True)
class Dimension:
    name: str
    kind: Kind
    min: float
    max: float
    max_velocity: float
    max_acceleration: float | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """One controller; `joints` are names of dimensions, in the order in which its messages have them."""

    name: str
    interface: Interface
    topic: str
    joints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Policy:
    name: str
    statistics: Statistics
    action_period_ns: int
    dimensions: tuple[Dimension, ...]
    groups: tuple[Group, ...]

    def columns(self, interface: Interface) -> list[int]:
        """Indices of the dimensions that groups of `interface` send."""
        joints = {name for group in self.groups if group.interface is interface for name in group.joints}
        return [i for i, dimension in enumerate(self.dimensions) if dimension.name in joints]

    def with_groups(self, names: Sequence[str]) -> "Policy":
        """This policy sending to the named groups only; empty names are left out, none left means all."""
        chosen = [name for name in names if name]
        for name in chosen:
            if name not in (group.name for group in self.groups):
                known = ", ".join(group.name for group in self.groups)
                raise PolicyError(f"policy {self.name}: has no group {name!r}, its groups are {known}")
        if not chosen:
            return self
        return replace(self, groups=tuple(group for group in self.groups if group.name in chosen))

    @property
    def least_tokens(self) -> int:
        """The fewest tokens that make an action: each dimension behind may be held. All, where none may."""
        n = len(self.dimensions)
        while n > 1 and self.dimensions[n - 1].kind.is_held_alone:
            n -= 1
        return n

    def require_held_from(self, n_tokens: int, parameter: str) -> None:
        """Raises PolicyError where the first `n_tokens` alone, as `parameter` asks for, make no action."""
        n_all, least = len(self.dimensions), self.least_tokens
        works = f"at least {least}, or 0" if least < n_all else "0"
        asked = f"policy {self.name}: {parameter} is {n_tokens}"
        if n_tokens >= n_all:
            raise PolicyError(f"{asked} and it has {n_all} tokens, none to leave out: wanted fewer, or 0")
        if n_tokens < least:
            held = self.dimensions[least - 1]
            raise PolicyError(
                f"{asked} and would hold {held.name}, of kind {held.kind.value}, while the rest moves: the "
                f"arm would take another path; wanted {works}"
            )

    @property
    def warnings(self) -> list[str]:
        """One line for each thing that works and is probably not meant."""
        lines = [self.statistics.warning] if self.statistics.warning else []
        statistics = self.statistics
        for i, dimension in enumerate(self.dimensions):
            low, high = statistics.low[i], statistics.high[i]
            is_comparable = statistics.mask[i] and dimension.kind is not Kind.JOINT_DELTA
            if is_comparable and (low < dimension.min or high > dimension.max):
                lines.append(
                    f"policy {self.name}: {dimension.name} is from {low:g} to {high:g} by "
                    f"{statistics.bounds}, its limits are {dimension.min:g} to {dimension.max:g}: what is "
                    "beyond is clamped; check the units"
                )
        return lines


def load_policy(path: Path) -> Policy:
    """The policy of a YAML file with its statistics; raises PolicyError with one line on what is wrong."""
    return _read_policy(path, has_statistics=True)


def load_untrained_policy(path: Path) -> Policy:
    """The same of a policy that has no data yet: its statistics are -1 and 1, whatever the file names."""
    return _read_policy(path, has_statistics=False)


def _read_policy(path: Path, has_statistics: bool) -> Policy:
    content = read_mapping(path, yaml.safe_load)
    where = str(path)
    optional = {"dataset"} if has_statistics else {"dataset", "statistics"}
    _check_keys(content, _POLICY_KEYS, _POLICY_KEYS - optional, where)
    name = text(content["name"], f"{where}: name")
    dataset = text(content["dataset"], f"{where}: dataset") if "dataset" in content else None
    entries = sequence(content["dimensions"], f"{where}: dimensions")
    dimensions = tuple(_dimension(entry, f"{where}: dimensions[{i}]") for i, entry in enumerate(entries))
    entries = sequence(content["groups"], f"{where}: groups")
    groups = tuple(_group(entry, f"{where}: groups[{i}]") for i, entry in enumerate(entries))
    period_ns = round(positive(content["action_period_ms"], f"{where}: action_period_ms") * 1e6)
    if period_ns < 1:
        raise PolicyError(f"{where}: action_period_ms is below a nanosecond")
    if len(dimensions) > MAX_DIMENSIONS:
        raise PolicyError(f"{where}: has {len(dimensions)} dimensions, wanted at most {MAX_DIMENSIONS}")
    _check_doubled([d.name for d in dimensions], f"{where}: dimension")
    _check_doubled([g.name for g in groups], f"{where}: group")
    _check_doubled([g.topic for g in groups], f"{where}: topic")
    _check_grouping(dimensions, groups, where)
    if has_statistics:
        file = path.parent / text(content["statistics"], f"{where}: statistics")
        statistics = load_statistics(file, dataset)
    else:
        ones = np.ones(len(dimensions))
        statistics = Statistics(f"{where}: no data yet", "q01/q99", -ones, ones, ones.astype(bool))
    if len(statistics) != len(dimensions):
        raise PolicyError(
            f"{where}: has {len(dimensions)} dimensions, its statistics {statistics.source} "
            f"have {len(statistics)}"
        )
    return Policy(name, statistics, period_ns, dimensions, groups)


def _dimension(value: object, where: str) -> Dimension:
    entry = mapping(value, where)
    _check_keys(entry, _DIMENSION_KEYS, _DIMENSION_KEYS - {"max_acceleration"}, where)
    name = text(entry["name"], f"{where}: name")
    where = f"{where} ({name})"
    kind = _choice(Kind, entry["kind"], f"{where}: kind")
    low, high = number(entry["min"], f"{where}: min"), number(entry["max"], f"{where}: max")
    if low >= high:
        raise PolicyError(f"{where}: min is {low:g} and max is {high:g}, wanted min below max")
    if kind.is_motion and not low <= 0 <= high:
        raise PolicyError(
            f"{where}: {kind.value} from {low:g} to {high:g} cannot come to rest, wanted 0 in between"
        )
    velocity = positive(entry["max_velocity"], f"{where}: max_velocity")
    acceleration = None
    if "max_acceleration" in entry:
        acceleration = positive(entry["max_acceleration"], f"{where}: max_acceleration")
        if velocity > LONGEST_BRAKING_S * acceleration:
            raise PolicyError(
                f"{where}: max_acceleration {acceleration:g} takes over {LONGEST_BRAKING_S} s to stop from "
                f"max_velocity {velocity:g}, wanted less"
            )
    return Dimension(name, kind, low, high, velocity, acceleration)


def _group(value: object, where: str) -> Group:
    entry = mapping(value, where)
    _check_keys(entry, _GROUP_KEYS, _GROUP_KEYS - {"topic"}, where)
    name = text(entry["name"], f"{where}: name")
    where = f"{where} ({name})"
    interface = _choice(Interface, entry["interface"], f"{where}: interface")
    topic = text(entry.get("topic", f"~/{interface.value}"), f"{where}: topic")
    if not _TOPIC.fullmatch(topic):
        raise PolicyError(
            f"{where}: topic {topic!r} is no ROS topic name, wanted one like ~/{interface.value}"
        )
    entries = sequence(entry["joints"], f"{where}: joints")
    joints = tuple(text(joint, f"{where}: joints[{i}]") for i, joint in enumerate(entries))
    return Group(name, interface, topic, joints)


def _choice(options: type[Enum], value: object, what: str) -> Enum:
    allowed = [option.value for option in options]
    if not isinstance(value, str) or value not in allowed:
        raise PolicyError(f"{what} is {describe(value)}, wanted one of {', '.join(allowed)}")
    return options(value)


def _check_keys(entry: dict, known: set[str], needed: set[str], where: str) -> None:
    unknown = [str(key) for key in entry if key not in known]
    if unknown:
        raise PolicyError(f"{where}: unknown key {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    missing = sorted(needed - entry.keys())
    if missing:
        raise PolicyError(f"{where}: has no {', '.join(missing)}")


def _check_doubled(names: list[str], what: str) -> None:
    doubled = [name for name, count in Counter(names).items() if count > 1]
    if doubled:
        raise PolicyError(f"{what} {', '.join(doubled)} is there more than once, wanted each once")


def _check_grouping(dimensions: tuple[Dimension, ...], groups: tuple[Group, ...], where: str) -> None:
    kinds = {dimension.name: dimension.kind for dimension in dimensions}
    members = [joint for group in groups for joint in group.joints]
    for joint in members:
        if joint not in kinds:
            raise PolicyError(f"{where}: a group has joint {joint!r}, wanted one of {', '.join(kinds)}")
    _check_doubled(members, f"{where}: joint of the groups")
    lonely = [name for name in kinds if name not in members]
    if lonely:
        raise PolicyError(f"{where}: dimension {', '.join(lonely)} is in no group, wanted in one")
    for group in groups:
        for joint in group.joints:
            if group.interface is Interface.TRAJECTORY and kinds[joint].is_motion:
                raise PolicyError(
                    f"{where}: group {group.name} is of positions and {joint} is {kinds[joint].value}; "
                    "put it into a group with interface: command"
                )
