"""`python -m training.evaluate MODEL`: success in closed loop, with the deployed engine and memory."""

import argparse
import json
import multiprocessing
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vla_edge_ros.control import settings
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


_worker: _Worker | None = None


def _start(model: str) -> None:
    global _worker
    _worker = _Worker(model)


def _run(job: tuple[str, int]) -> Episode:
    return _worker.run(*job)


def evaluate(
    model: str, episodes: int, processes: int, names: Sequence[str] = tuple(CONDITIONS)
) -> Iterator[tuple[str, dict]]:
    """Each condition with the `proportion` of its successes, over episodes 0, 1, ... of its task.

    model: as `engine.model` has it. Raises NoRenderer and EngineError.
    """
    chunk = max(1, episodes // (4 * processes))
    with multiprocessing.get_context("spawn").Pool(processes, _start, (model,)) as pool:
        for name in names:
            jobs = [(name, seed) for seed in range(episodes)]
            yield name, proportion([episode.has_succeeded for episode in pool.map(_run, jobs, chunk)])


def in_words(name: str, success: dict) -> str:
    """A condition's result on one line."""
    low, high = success["ci95"]
    return f"{name:18} {success['value']:.3f} of {success['episodes']} (95 %: {low:.3f} to {high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m training.evaluate")
    parser.add_argument("model", nargs="?", default="tiny-vla", help="a preset or a directory")
    parser.add_argument("--episodes", type=int, default=200, help="of each condition (default: 200)")
    parser.add_argument("--condition", choices=list(CONDITIONS), action="append", help="default: all")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path, help="write the results there too")
    arguments = parser.parse_args()
    names = tuple(arguments.condition or CONDITIONS)
    results = {}
    for name, success in evaluate(arguments.model, arguments.episodes, arguments.processes, names):
        results[name] = success
        print(in_words(name, success), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
