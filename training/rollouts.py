"""Episodes of the expert, with noise in its actions, as compressed shards that a later call completes."""

import argparse
import multiprocessing
import os
import time
from collections.abc import Sequence as Items
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from training.hints import hints_of
from vla_edge_ros.arguments import whole
from vla_edge_ros.control import settings
from vla_edge_ros.engine.vision import FRAME_HEIGHT, FRAME_WIDTH
from vla_edge_ros.parameters import validate_all
from vla_edge_ros.perception.frame import FrameMeta
from vla_edge_ros.simulation.commanded import CONTROL_HZ
from vla_edge_ros.simulation.environment import Environment
from vla_edge_ros.simulation.model_actor import DEPLOYMENT
from vla_edge_ros.simulation.scene import N_JOINTS
from vla_edge_ros.simulation.tasks import TASKS

FIRST_SEED = 1_000_000
"""Of the training episodes; evaluation counts from 0, so that its layouts are unseen."""

SHARES = {"reach": 0.28, "track": 0.17, "remember": 0.37, "switch": 0.18}
"""Of the episodes, by task."""

SHARD_EPISODES = 25
MOST_QUERIES = 48
"""Ticks of one prompt whose actions are kept beside those of retained frames."""

MISSED = 0.02
"""Share of ticks without a pass, so that strides do not always begin on the same tick."""

LINGER_SHARE, LINGER_S = 0.5, 4.0
"""Of the episodes, and up to how long they go on after their end: a policy that is late has to know what
an arm at rest looks like from a memory of more frames than the expert ever needs."""

LATENCIES = (1, 2)
"""In ticks, one drawn for each episode: the node's camera has no phase with its ticks."""

_NOISE_MEMORY = (0.9, 0.98)
"""Of the noise from tick to tick, one drawn for each episode. Noise of the second kind holds the arm off its
goal at a standstill: what does not move is then no sign of having arrived."""

_KEPT_MOVING, _KEPT_RESTING = 0.6, 0.12
_MOVES_FROM = 2e-3
"""A largest joint delta, in rad, from which a tick counts as moving."""


@dataclass(frozen=True, slots=True)
class Sequence:
    """What one prompt was followed by: the ticks of an episode that are kept, n of them.

    prompt: (P,) int32. ticks: (n,) int32, rising. frames: (n, 64, 128, 3) uint8, at the ticks' starts.
    actions: (n, 8) float32, what the expert would do there, without the noise that it was moved with.
    hints: (n, N_HINTS) float32, NaN where unknown.
    Every frame that the deployed memory would be offered and retain at its stride is among them.
    """

    task: str
    prompt: np.ndarray
    ticks: np.ndarray
    frames: np.ndarray
    actions: np.ndarray
    hints: np.ndarray


class _Recording:
    """Collects one sequence, with the node's own memory to say which frames a stride retains."""

    def __init__(self, task: str, prompt: np.ndarray, parameters: settings.Parameters):
        self.task, self.prompt = task, prompt
        self._memory = settings.frame_memory(parameters | {"memory.slots": 4096}, 8, 1)
        self._ticks: list[int] = []
        self._frames: list[np.ndarray] = []
        self._actions: list[np.ndarray] = []
        self._hints: list[np.ndarray] = []
        self._is_retained: list[bool] = []

    def observe(
        self, environment: Environment, tick: int, action: np.ndarray, rng: np.random.Generator
    ) -> None:
        self._memory.make_room(tick)
        is_retained = self._memory.retain(FrameMeta(tick + 1, 0, 0, 0), np.ones(1, np.float32), tick)
        is_moving = np.abs(action[:N_JOINTS]).max() >= _MOVES_FROM
        if is_retained or rng.random() < (_KEPT_MOVING if is_moving else _KEPT_RESTING):
            self._ticks.append(tick)
            self._frames.append(environment.render())
            self._actions.append(action)
            self._hints.append(hints_of(environment))
            self._is_retained.append(is_retained)

    def finish(self, rng: np.random.Generator) -> Sequence | None:
        """The sequence with at most `MOST_QUERIES` frames between strides; None where nothing was seen."""
        if not self._ticks:
            return None
        between = np.flatnonzero(~np.array(self._is_retained))
        dropped = rng.permutation(between)[MOST_QUERIES:]
        kept = np.setdiff1d(np.arange(len(self._ticks)), dropped)
        return Sequence(
            self.task,
            self.prompt,
            np.array(self._ticks, np.int32)[kept],
            np.array(self._frames)[kept],
            np.array(self._actions, np.float32)[kept],
            np.array(self._hints, np.float32)[kept],
        )


def roll_out(environment: Environment, task: str, seed: int) -> list[Sequence]:
    """One episode of the expert, a sequence for each instruction.

    Its actions are disturbed by noise that comes and goes over some ten ticks or fifty, of a strength drawn
    for the episode, so that the expert is seen to come back from where a policy's own errors would take it
    (Laskey et al., DART, 2017). Half of the episodes go on after their end.
    """
    rng = np.random.default_rng((seed, 1))
    parameters = validate_all(DEPLOYMENT)
    prompter = settings.Prompter(parameters)
    strength = 0.0 if rng.random() < 0.2 else rng.uniform(0.001, 0.014)
    if task == "remember":
        strength *= 0.4  # More would take the arm off its place before the lamp, which ends the episode.
    memory = rng.choice(_NOISE_MEMORY)
    noise = np.zeros(N_JOINTS)
    lingers = int(CONTROL_HZ * rng.uniform(0, LINGER_S)) if rng.random() < LINGER_SHARE else 0
    environment.latency_ticks = int(rng.choice(LATENCIES))
    observation = environment.reset(seed, task)
    sequences: list[Sequence | None] = []
    recording: _Recording | None = None
    while not environment.is_over or lingers:
        lingers -= environment.is_over
        action = environment.expert_action()
        instruction = prompter.changed_to(observation.instruction)
        if instruction is not None:
            # The tick that fills the prompt in has no pass.
            sequences.append(recording.finish(rng) if recording else None)
            recording = _Recording(task, instruction.tokens, parameters)
        elif rng.random() >= MISSED:
            recording.observe(environment, observation.tick, action, rng)
        noise = memory * noise + np.sqrt(1 - memory**2) * strength * rng.standard_normal(N_JOINTS)
        moved = action.copy()
        moved[:N_JOINTS] += noise
        observation = environment.step(moved)
    sequences.append(recording.finish(rng))
    return [sequence for sequence in sequences if sequence is not None]


def save(path: Path, sequences: Items[Sequence]) -> None:
    """Write a shard; it appears whole or not at all."""
    prompts = np.zeros((len(sequences), max(len(s.prompt) for s in sequences)), np.int32)
    for row, sequence in zip(prompts, sequences, strict=True):
        row[: len(sequence.prompt)] = sequence.prompt
    partial_path = path.with_suffix(".partial.npz")
    np.savez_compressed(
        partial_path,
        tasks=np.array([s.task for s in sequences]),
        prompts=prompts,
        prompt_lengths=np.array([len(s.prompt) for s in sequences]),
        lengths=np.array([len(s.ticks) for s in sequences]),
        ticks=np.concatenate([s.ticks for s in sequences]),
        # A frame differs little from the one before: differences compress to a fraction.
        frames=_differences(np.concatenate([s.frames for s in sequences])),
        actions=np.concatenate([s.actions for s in sequences]),
        hints=np.concatenate([s.hints for s in sequences]),
    )
    os.replace(partial_path, path)


def load(path: Path) -> list[Sequence]:
    """What `save` wrote. Raises OSError, EOFError, ValueError, LookupError, BadZipFile or zlib.error."""
    with np.load(path) as shard:
        frames = np.cumsum(shard["frames"], axis=0, dtype=np.uint8)
        ticks, actions, prompts, hints = (shard[name] for name in ("ticks", "actions", "prompts", "hints"))
        ends = np.cumsum(shard["lengths"])
        if ends[-1] != len(ticks):
            raise ValueError(f"its sequences have {ends[-1]} ticks in all, and there are {len(ticks)}")
        sequences = []
        for i, end in enumerate(ends):
            part = slice(end - shard["lengths"][i], end)
            prompt = prompts[i, : shard["prompt_lengths"][i]]
            sequences.append(
                Sequence(
                    str(shard["tasks"][i]), prompt, ticks[part], frames[part], actions[part], hints[part]
                )
            )
    return sequences


def _differences(frames: np.ndarray) -> np.ndarray:
    """(n, 64, 128, 3) uint8: each frame minus the one before, modulo 256."""
    before = np.concatenate([np.zeros((1, FRAME_HEIGHT, FRAME_WIDTH, 3), np.uint8), frames[:-1]])
    return frames - before


def shard_plan(episodes: int) -> list[tuple[str, int, int]]:
    """(task, first seed, number of episodes) of every shard of a data set of about `episodes`."""
    plan = []
    for task in TASKS:
        wanted = max(1, round(episodes * SHARES[task]))
        for first in range(0, wanted, SHARD_EPISODES):
            plan.append((task, FIRST_SEED + first, min(SHARD_EPISODES, wanted - first)))
    return plan


def shard_path(folder: Path, task: str, first_seed: int, n: int) -> Path:
    return folder / f"{task}_{first_seed}_{n}.npz"


_environment: Environment | None = None


def _start(n_gpus: int) -> None:
    """Spread the processes' renderers over the GPUs: on one, they wait for each other."""
    if n_gpus > 1:
        place = multiprocessing.current_process()._identity[0]
        os.environ.setdefault("MUJOCO_EGL_DEVICE_ID", str(place % n_gpus))


def _make_shard(folder: Path, task: str, first_seed: int, n: int) -> None:
    global _environment
    if _environment is None:
        _environment = Environment(renders=False)
    sequences = [s for seed in range(first_seed, first_seed + n) for s in roll_out(_environment, task, seed)]
    save(shard_path(folder, task, first_seed, n), sequences)


def generate(
    folder: Path, episodes: int, processes: int, until_s: float = float("inf"), n_gpus: int = 0
) -> bool:
    """Write the shards that `folder` lacks until the monotonic clock reads `until_s`; are all there?"""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [part for part in shard_plan(episodes) if not shard_path(folder, *part).exists()]
    if not missing:
        return True
    began = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(processes, _start, (n_gpus,)) as pool:
        pending = [pool.apply_async(partial(_make_shard, folder), part) for part in missing]
        for n_done, result in enumerate(pending):
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                print(f"roll-outs: {n_done} of {len(missing)} missing shards written, time is up")
                return False
            try:
                result.get(left_s if np.isfinite(left_s) else None)
            except multiprocessing.TimeoutError:
                continue
    print(f"roll-outs: {len(missing)} shards in {time.monotonic() - began:.0f} s")
    return all(shard_path(folder, *part).exists() for part in missing)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m training.rollouts")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--episodes", type=whole(1), default=6000)
    parser.add_argument("--processes", type=whole(1), default=os.cpu_count())
    arguments = parser.parse_args()
    generate(arguments.folder, arguments.episodes, arguments.processes)


if __name__ == "__main__":
    main()
