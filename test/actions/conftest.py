"""Policies made on the spot, and a loop that plays ticks against a planner."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from vla_edge_ros.actions.planner import ActionConfig, ActionPlanner
from vla_edge_ros.actions.policy import Dimension, Group, Interface, Kind, Policy
from vla_edge_ros.actions.statistics import Statistics

MS = 1_000_000
PERIOD_NS = 33 * MS
VOCABULARY = 1000


def make_policy(dimensions, interface="trajectory", period_ms=33, groups=None, low=-1.0, high=1.0):
    """dimensions: kind by name, or Dimensions; statistics map [-1, 1] to [low, high]."""
    dimensions = [
        d if isinstance(d, Dimension) else Dimension(d[0], Kind(d[1]), -1.0, 1.0, 1.0, 5.0)
        for d in (dimensions.items() if isinstance(dimensions, dict) else dimensions)
    ]
    names = tuple(d.name for d in dimensions)
    n = len(dimensions)
    statistics = Statistics("test", "q01/q99", np.full(n, low), np.full(n, high), np.ones(n, bool))
    if groups is None:
        groups = [Group("group", Interface(interface), f"~/{interface}", names)]
    return Policy("test", statistics, period_ms * MS, tuple(dimensions), tuple(groups))


@dataclass
class Loop:
    """Ticks of 33 ms with the effect time at the end of each; the frame is 45 ms old at the effect time."""

    planner: ActionPlanner
    names: list
    effect_ns: int = 10_000 * MS
    fresh_ns: int = 0
    trajectories: list = field(default_factory=list)
    accepted: object = None

    def see(self, *positions, names=None):
        """Measured joints, received just now."""
        if names is None:
            names = self.names
        return self.planner.observe_joints(names, positions, [], self.effect_ns)

    def fresh(self, *rows, capture_ms=45, ticks=1):
        """A tick with a pass whose steps are `rows` of values in [-1, 1]; returns the commands by group."""
        self.effect_ns += ticks * PERIOD_NS
        capture_ns = self.effect_ns - capture_ms * MS
        self.accepted = self.planner.accept(self.tokens(*rows), VOCABULARY, capture_ns, self.effect_ns)
        self.fresh_ns = self.effect_ns
        self.trajectories = self.planner.trajectories(self.effect_ns, self.effect_ns)
        return self._commands()

    def hold(self, ticks=1):
        self.effect_ns += ticks * PERIOD_NS
        return self._commands()

    def cancel(self):
        """As an event at the start of the next tick."""
        start_ns = self.effect_ns
        return self.planner.cancel(start_ns, start_ns + PERIOD_NS, start_ns + PERIOD_NS)

    @staticmethod
    def tokens(*rows):
        """The ids whose bins are nearest to `rows` of values in [-1, 1]."""
        edges = np.linspace(-1.0, 1.0, 256)
        centres = (edges[:-1] + edges[1:]) / 2
        values = np.array(rows, float)
        return (VOCABULARY - 1 - np.abs(values[..., None] - centres).argmin(-1)).astype(np.int32)

    def _commands(self):
        commands = self.planner.commands(self.effect_ns, self.effect_ns - self.fresh_ns)
        return {command.group: list(command.values) for command in commands}


@pytest.fixture(scope="session")
def policy_of():
    return make_policy


@pytest.fixture(scope="session")
def row():
    """One step of a chunk: a value in [-1, 1] for each dimension."""
    return lambda *values: values


@pytest.fixture(scope="session")
def loop_of():
    def make(dimensions, interface="trajectory", config=None, policy=None, **options):
        policy = policy or make_policy(dimensions, interface, **options)
        config = {"min_lead_ns": 10 * MS} | (config or {})
        planner = ActionPlanner(policy, ActionConfig(PERIOD_NS, **config))
        return Loop(planner, [dimension.name for dimension in policy.dimensions])

    return make
