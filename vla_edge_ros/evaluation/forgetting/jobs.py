"""What is to be evaluated, in jobs that a worker does by itself, and the rows that come of them."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TypedDict

import numpy as np

from vla_edge_ros.engine.tokenizer import load_tokenizer
from vla_edge_ros.evaluation.forgetting import metrics
from vla_edge_ros.evaluation.forgetting.footage import Footage, with_needles
from vla_edge_ros.evaluation.forgetting.kept_footage import load_footage
from vla_edge_ros.evaluation.forgetting.trial import Trial, n_slots_for, run_trial, run_unevicted
from vla_edge_ros.evaluation.forgetting.trial_model import TrialModel
from vla_edge_ros.memory.policies import embedding_for, make_policy
from vla_edge_ros.memory.slots import FRAME_TOKENS
from vla_edge_ros.parameters import defaults

INSTRUCTION = "remember what was shown"
ACTION_TOKENS = 7


@dataclass(frozen=True, slots=True)
class Plan:
    """What every job has in common.

    frames: passes of one trial. oracle_every: the oracle looks at every so many evictions.
    has_positions: False turns RoPE off, a control: an eviction then moves no other frame's rank.
    weights: what `model` is, as `weights_digest` has it.
    """

    model: str = "tiny"
    frames: int = 32
    oracle_every: int = 8
    has_positions: bool = True
    weights: str = "seeded"


@dataclass(frozen=True, slots=True)
class Job:
    """One bag, seed and capacity, and the policies that are still to be tried there.

    footage: a file of `save_footage`, by its absolute path. footage_digest: what it holds, in short.
    """

    plan: Plan
    bag: str
    footage: str
    seed: int
    capacity: int
    policies: tuple[str, ...]
    footage_digest: str = ""

    @property
    def name(self) -> str:
        return f"{self.bag}, seed {self.seed}, capacity {self.capacity}"


class Row(TypedDict):
    """A row as it stands in a file; None where the trial has nothing to say (no eviction).

    needle_life: passes that each needle was in memory. evicted: (pass, frame). retained: at the end.
    """

    bag: str
    footage_digest: str
    policy: str
    embedding: str
    capacity: int
    seed: int
    plan_model: str
    plan_frames: int
    plan_oracle_every: int
    plan_has_positions: bool
    plan_weights: str
    frames: int
    evictions: int
    regret_nats: float | None
    regret_rank: float | None
    kl_nats: float | None
    action_l1: float | None
    needle_recall: float | None
    needles: list[int]
    needle_life: list[int]
    coverage: float | None
    eviction_us: list[float]
    evicted: list[list[int]]
    retained: list[int]


def run_job(job: Job) -> Iterator[Row]:
    """A row for each policy of the job; the same on every machine but for the times and BLAS's rounding.

    The seed draws the weights, the needles, the frames' phase and what the policy `random` does.
    """
    plan = job.plan
    footage = load_footage(job.footage).every(plan.frames, job.seed)
    n_frames = len(footage.frames)
    # A needle is asked for at the end, when every memory that was full has turned over at least once.
    shown, needles = with_needles(footage.frames, max(0, n_frames - job.capacity - 1), job.seed)
    footage = Footage(shown, footage.times_s)
    prompt = load_tokenizer(plan.model, 1024).make_prompt_tokens(
        INSTRUCTION, str(defaults()["instruction.system_prompt"])
    )
    model = _model(plan, job.seed, n_slots_for(n_frames, len(prompt)) + FRAME_TOKENS)
    unevicted = run_unevicted(model, footage, prompt)
    for name in job.policies:
        policy = make_policy(name, job.capacity, job.seed)
        trial = run_trial(
            model, footage, prompt, unevicted, policy, embedding_for(name), job.capacity, plan.oracle_every
        )
        yield row_of(job, name, footage, needles, trial)


@lru_cache(maxsize=2)
def _model(plan: Plan, seed: int, n_slots: int) -> TrialModel:
    return TrialModel(plan.model, seed, n_slots, ACTION_TOKENS, plan.has_positions)


def row_of(job: Job, policy: str, footage: Footage, needles: list[int], trial: Trial) -> Row:
    """The figures of one trial, in plain values."""
    held = [needle in trial.retained[-1] for needle in needles]
    last_s = float(footage.times_s[-1])
    pairs = list(zip(trial.losses, trial.chosen, strict=True))
    gone_at = {frame: at for at, frame in trial.evicted}
    return {
        "bag": job.bag,
        "footage_digest": job.footage_digest,
        "policy": policy,
        "embedding": embedding_for(policy),
        "capacity": job.capacity,
        "seed": job.seed,
        **{f"plan_{name}": value for name, value in asdict(job.plan).items()},
        "frames": len(footage.frames),
        "evictions": len(trial.evicted),
        "regret_nats": _mean(metrics.regret(losses, chosen) for losses, chosen in pairs),
        "regret_rank": _mean(metrics.regret_rank(losses, chosen) for losses, chosen in pairs),
        "kl_nats": _mean(trial.kl_nats),
        "action_l1": _mean(trial.action_l1),
        "needle_recall": metrics.recall(held),
        "needles": needles,
        "needle_life": [gone_at.get(needle, len(footage.frames)) - needle for needle in needles],
        "coverage": metrics.temporal_coverage(
            footage.times_s[trial.retained[-1]], 0.0, last_s, len(trial.retained[-1])
        )
        if last_s > 0
        else None,
        "eviction_us": [round(us, 2) for us in trial.eviction_us],
        "evicted": [list(line) for line in trial.evicted],
        "retained": trial.retained[-1],
    }


def _mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return float(np.mean(values)) if values else None
