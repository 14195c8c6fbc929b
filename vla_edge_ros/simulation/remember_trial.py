"""One seed's episodes of *remember*, in memories that forget differently."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from vla_edge_ros.control import settings
from vla_edge_ros.memory.policies import embedding_for
from vla_edge_ros.memory.slots import FRAME_TOKENS, MAX_ACTION_TOKENS
from vla_edge_ros.parameters import validate_all
from vla_edge_ros.simulation.commanded import CONTROL_HZ
from vla_edge_ros.simulation.environment import HOLD, Environment
from vla_edge_ros.simulation.model_actor import DEPLOYMENT
from vla_edge_ros.simulation.taped_actor import Tape, TapedActor
from vla_edge_ros.simulation.tasks import Remember

LATER_S = (4.0, 8.0)
"""By how much the cue comes later than the task has it, so that it is not among the first three frames."""


@dataclass(frozen=True, slots=True)
class Condition:
    """policy, embedding: as `memory.policy` and `memory.embedding` have them. capacity: blocks that the
    prompt leaves in memory, the frame at hand included. is_late: the cue comes `LATER_S` later."""

    policy: str
    embedding: str
    capacity: int
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class RememberJob:
    """Episode `seed` under each of `conditions`.

    model: as `engine.model` has it. weights: what it is, in short. wait_every: until the lamp turns green the
    model acts on every n-th tick; where that divides the stride, the same frames are retained as with 1.
    """

    model: str
    weights: str
    wait_every: int
    seed: int
    conditions: tuple[Condition, ...]

    @property
    def name(self) -> str:
        return f"seed {self.seed}"


KEY = ("weights", "wait_every", "policy", "embedding", "capacity", "is_late", "seed")


def key_of(row: dict) -> tuple:
    return tuple(row[name] for name in KEY)


def run_job(job: RememberJob) -> list[dict]:
    """A row for each condition; equal on every machine but for BLAS's rounding."""
    rows = []
    for is_late in (False, True):
        tape: Tape = {}
        own = [condition for condition in job.conditions if condition.is_late == is_late]
        rows += [_run(job, condition, tape) for condition in own]
    return rows


def missing(
    model: str,
    weights: str,
    wait_every: int,
    seeds: Sequence[int],
    conditions: Sequence[Condition],
    done: set[tuple],
) -> Iterator[RememberJob]:
    """A job for each seed of which `done`, keys of rows, lacks something."""
    for seed in seeds:
        wanted = tuple(
            condition
            for condition in conditions
            if (weights, wait_every, *_fields(condition), seed) not in done
        )
        if wanted:
            yield RememberJob(model, weights, wait_every, seed, wanted)


def parameters_for(model: str, condition: Condition, instruction: str) -> dict[str, object]:
    """Of the node in which the prompt of `instruction` leaves room for the condition's blocks."""
    own = DEPLOYMENT | {
        "engine.model": model,
        "memory.policy": condition.policy,
        "memory.embedding": condition.embedding,
        "memory.window_frames": condition.capacity,
    }
    prompt = settings.Prompter(validate_all(own)).changed_to(instruction)
    slots = len(prompt.tokens) + FRAME_TOKENS * condition.capacity + MAX_ACTION_TOKENS
    return own | {"memory.slots": slots}


def _run(job: RememberJob, condition: Condition, tape: Tape) -> dict:
    environment = _environment()
    observation = environment.reset(job.seed, Remember.name)
    task = environment.task
    if condition.is_late:
        task.begin_later(_later_s(job.seed))
    parameters = parameters_for(job.model, condition, observation.instruction)
    actor = TapedActor(parameters, job.seed, environment, tape)
    try:
        while not environment.is_over:
            is_due = (observation.tick - 1) % job.wait_every == 0 or environment.time_s >= task.lamp_s
            is_asked = observation.tick == 0 or is_due
            observation = environment.step(actor.act(observation) if is_asked else HOLD)
    finally:
        actor.close()
    lamp_tick = math.ceil(task.lamp_s * CONTROL_HZ)
    gone_at = actor.cue_gone_at
    return {
        "weights": job.weights,
        "wait_every": job.wait_every,
        **dict(zip(("policy", "embedding", "capacity", "is_late"), _fields(condition), strict=True)),
        "seed": job.seed,
        "has_succeeded": environment.has_succeeded,
        "seconds": round(environment.time_s, 3),
        "lamp_s": round(task.lamp_s, 3),
        "cue_age_s": round(task.lamp_s - task.cue_ends_s, 3),
        "has_left_early": environment.time_s < task.lamp_s,
        "is_cue_held": gone_at is None or gone_at > lamp_tick,
        "evictions": actor.n_evictions,
    }


def _fields(condition: Condition) -> tuple:
    embedding = embedding_for(condition.policy, condition.embedding)
    return condition.policy, embedding, condition.capacity, condition.is_late


def _later_s(seed: int) -> float:
    low, high = LATER_S
    return low + (high - low) * ((seed * 0.6180339887498949) % 1.0)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    return Environment(renders=False)
