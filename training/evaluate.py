"""`python -m training.evaluate MODEL`: success in closed loop, with the deployed engine and memory."""

import argparse
import json
import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from vla_edge_ros import output
from vla_edge_ros.arguments import whole
from vla_edge_ros.control import settings
from vla_edge_ros.ending import exit_code
from vla_edge_ros.engine.weights import open_weights
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.forgetting.pool import run_local
from vla_edge_ros.figures import proportion
from vla_edge_ros.memory.slots import FRAME_TOKENS, MAX_ACTION_TOKENS
from vla_edge_ros.parameters import validate_all
from vla_edge_ros.simulation.environment import Environment
from vla_edge_ros.simulation.model_actor import DEPLOYMENT, ModelActor
from vla_edge_ros.simulation.trial import Episode, run_episode


@dataclass(frozen=True, slots=True)
class Condition:
    """Episodes of `task` under the deployed parameters and `changes` to them.

    n_frames: blocks that the prompt leaves in memory, the frame at hand included; 0 for the deployed slots.
    fresh_every: the model acts on every n-th tick.
    """

    task: str
    n_frames: int = 0
    fresh_every: int = 1
    changes: Mapping[str, object] = field(default_factory=dict)


SMALL_FRAMES = 8
"""Blocks of the memory in which eviction policies are compared: seven seconds of strides."""

CONDITIONS = {
    "reach": Condition("reach"),
    "track_fresh_30hz": Condition("track"),
    "track_fresh_10hz": Condition("track", fresh_every=3),
    "switch": Condition("switch"),
    "remember_full": Condition("remember"),
    "remember_evicted": Condition("remember", n_frames=1, changes={"memory.policy": "fifo"}),
    "remember_fifo": Condition("remember", SMALL_FRAMES, changes={"memory.policy": "fifo"}),
    "remember_semantic": Condition("remember", SMALL_FRAMES, changes={"memory.policy": "semantic"}),
}


def slots_for(n_frames: int, instruction: str) -> int:
    """KV slots in which the prompt of `instruction` leaves room for `n_frames` blocks."""
    prompt = settings.Prompter(validate_all(DEPLOYMENT)).changed_to(instruction)
    return len(prompt.tokens) + FRAME_TOKENS * n_frames + MAX_ACTION_TOKENS


class _Worker:
    """The environment of a process, and its model under the condition that it had last."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._environment = Environment()
        self._name: str | None = None
        self._actor: ModelActor | None = None

    def run(self, name: str, seed: int) -> Episode:
        condition = CONDITIONS[name]
        if self._name != name:
            if self._actor is not None:
                self._actor.close()
            self._actor, self._name = ModelActor(self._parameters(condition, seed)), name
        return run_episode(self._environment, self._actor, condition.task, seed, condition.fresh_every)

    def _parameters(self, condition: Condition, seed: int) -> dict[str, object]:
        parameters = DEPLOYMENT | {"engine.model": self._model} | dict(condition.changes)
        if condition.n_frames:
            instruction = self._environment.reset(seed, condition.task).instruction
            parameters["memory.slots"] = slots_for(condition.n_frames, instruction)
        return parameters


class _Job(NamedTuple):
    model: str
    name: str
    seed: int


_worker = lru_cache(maxsize=1)(_Worker)


def _run_job(job: _Job) -> list[dict]:
    return [{"has_succeeded": _worker(job.model).run(job.name, job.seed).has_succeeded}]


def evaluate(
    model: str, episodes: int, processes: int, names: Sequence[str] = tuple(CONDITIONS)
) -> Iterator[tuple[str, dict]]:
    """Each condition with the `proportion` of its successes, over episodes 0, 1, ... of its task.

    model: as `engine.model` has it. Raises EngineError for one that is refused, and UserError where an
    episode cannot be run.
    """
    open_weights(model, 0)
    waiting = deque(dict.fromkeys(names))
    found: dict[str, list[bool]] = {name: [] for name in waiting}
    jobs = [_Job(model, name, seed) for name in waiting for seed in range(episodes)]
    for outcome in run_local(jobs, _run_job, processes):
        name, seed = outcome.job.name, outcome.job.seed
        if outcome.error:
            raise UserError(f"{name}, episode {seed}: {outcome.error}")
        found[name] += [row["has_succeeded"] for row in outcome.rows]
        while waiting and len(found[waiting[0]]) == episodes:
            done = waiting.popleft()
            yield done, proportion(found[done])


def in_words(name: str, success: dict) -> str:
    """A condition's result on one line."""
    low, high = success["ci95"]
    return f"{name:18} {success['value']:.3f} of {success['episodes']} (95 %: {low:.3f} to {high:.3f})"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m training.evaluate")
    parser.add_argument("model", nargs="?", default="tiny-vla", help="a preset or a directory")
    parser.add_argument("--episodes", type=whole(1), default=200, help="of each condition (default: 200)")
    parser.add_argument("--condition", choices=list(CONDITIONS), action="append", help="default: all")
    parser.add_argument("--processes", type=whole(1), default=os.cpu_count())
    parser.add_argument("--json", type=Path, help="write the results there too, condition by condition")
    arguments = parser.parse_args(argv)
    kept = f"the conditions that were done are in {arguments.json}" if arguments.json else ""
    return exit_code("training.evaluate", lambda: _run(arguments), kept)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.json:
        output.prepare(arguments.json)
    results = {}
    names = arguments.condition or list(CONDITIONS)
    for name, success in evaluate(arguments.model, arguments.episodes, arguments.processes, names):
        results[name] = success
        print(in_words(name, success), flush=True)
        if arguments.json:
            output.write_text(arguments.json, json.dumps(results, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
