"""Episodes of a task by seed, and how many succeeded."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from vla_edge_ros.simulation.environment import HOLD, Environment, Observation


class Actor(Protocol):
    def begin(self) -> None:
        """An episode begins: forget the one before."""

    def act(self, observation: Observation) -> np.ndarray:
        """(8,) the action for this tick, as `Environment.step` takes it."""


class ExpertActor:
    """Acts from the scene's own state, which no camera shows."""

    def __init__(self, environment: Environment):
        self._environment = environment

    def begin(self) -> None:
        pass

    def act(self, observation: Observation) -> np.ndarray:
        return self._environment.expert_action()


@dataclass(frozen=True, slots=True)
class Episode:
    task: str
    seed: int
    has_succeeded: bool
    seconds: float


def run_episode(
    environment: Environment, actor: Actor, task: str, seed: int, fresh_every: int = 1
) -> Episode:
    """One episode; the actor is asked on every `fresh_every`-th tick, and the ticks between are holds."""
    observation = environment.reset(seed, task)
    actor.begin()
    while not environment.is_over:
        is_fresh = observation.tick % fresh_every == 0
        observation = environment.step(actor.act(observation) if is_fresh else HOLD)
    return Episode(task, seed, environment.has_succeeded, environment.time_s)


def run_episodes(
    environment: Environment, actor: Actor, task: str, seeds: Iterable[int], fresh_every: int = 1
) -> list[Episode]:
    return [run_episode(environment, actor, task, seed, fresh_every) for seed in seeds]
