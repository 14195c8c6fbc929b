"""One policy on one piece of footage: what it forgot, and what that did to the actions."""

import time
from dataclasses import dataclass, field

import numpy as np

from vla_edge_ros.evaluation.forgetting import metrics
from vla_edge_ros.evaluation.forgetting.footage import Footage
from vla_edge_ros.evaluation.forgetting.trial_model import Pass, TrialModel
from vla_edge_ros.memory.eviction_policy import EvictionPolicy
from vla_edge_ros.memory.frame_memory import FrameMemory
from vla_edge_ros.memory.slots import FRAME_TOKENS, MAX_ACTION_TOKENS
from vla_edge_ros.perception.frame import FrameMeta


@dataclass(slots=True)
class Trial:
    """What became of one memory.

    retained: by frame, places of the frames in memory after it. evicted: (frame at which, frame that went).
    losses: by eviction that the oracle looked at, the change that leaving each frame out makes, in nats.
    chosen: the place among them that the policy chose. kl_nats, action_l1: by frame after the first eviction,
    against the memory that forgets nothing. eviction_us: processor time of choosing, forgetting
    and observing, by eviction: the wall clock of a machine whose cores are all busy tells of the others.
    """

    retained: list[list[int]] = field(default_factory=list)
    evicted: list[tuple[int, int]] = field(default_factory=list)
    losses: list[np.ndarray] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)
    kl_nats: list[float] = field(default_factory=list)
    action_l1: list[float] = field(default_factory=list)
    eviction_us: list[float] = field(default_factory=list)


def n_slots_for(n_frames: int, prompt_tokens: int) -> int:
    """Slots of a memory of `n_frames` beside a prompt."""
    return prompt_tokens + n_frames * FRAME_TOKENS + MAX_ACTION_TOKENS


def run_unevicted(model: TrialModel, footage: Footage, prompt: np.ndarray) -> list[Pass]:
    """The passes of a memory that holds every frame: what forgetting is measured against."""
    slots = np.arange(model.n_slots, dtype=np.int32)
    n_prompt = len(prompt)
    model.fill_prompt(prompt, slots[:n_prompt])
    action_slots = slots[-model.action_tokens :]
    passes = []
    for index, frame in enumerate(footage.frames):
        end = n_prompt + index * FRAME_TOKENS
        passes.append(model.run(frame, slots[:end], slots[end : end + FRAME_TOKENS], action_slots))
    return passes


def run_trial(
    model: TrialModel,
    footage: Footage,
    prompt: np.ndarray,
    unevicted: list[Pass],
    policy: EvictionPolicy,
    embedding: str,
    capacity: int,
    oracle_every: int,
) -> Trial:
    """Let `policy` forget in a memory of `capacity` frames, one pass a frame.

    oracle_every: at every so many evictions each frame but the newest is left out once, and the next pass's
        distribution of actions compared; the pass itself is decoded with all of them.
    """
    memory = FrameMemory(n_slots_for(capacity, len(prompt)), model.action_tokens, policy)
    model.fill_prompt(prompt, memory.set_prompt(len(prompt)))
    scratch = np.arange(memory.n_slots, memory.n_slots + FRAME_TOKENS, dtype=np.int32)
    trial, n_evictions = Trial(), 0
    for index, frame in enumerate(footage.frames):
        is_full = len(memory.frames) == memory.capacity_frames
        if is_full and n_evictions % oracle_every == 0:
            before = [retained.meta.index for retained in memory.frames]
            trial.losses.append(_leave_one_out(model, memory, frame, scratch))
        begun_ns = time.thread_time_ns()
        evicted = memory.make_room(index)
        spent_ns = time.thread_time_ns() - begun_ns
        if is_full and n_evictions % oracle_every == 0:
            trial.chosen.append(before.index(evicted[0].frame.index))
        n_evictions += len(evicted)
        trial.evicted += [(index, line.frame.index - 1) for line in evicted]
        wanted = unevicted[index]
        done = model.run(
            frame, memory.context_slots(), memory.frame_slots, memory.action_slots, wanted.tokens
        )
        if trial.evicted:
            trial.kl_nats.append(metrics.kl_nats(wanted.log_probabilities, done.log_probabilities))
            trial.action_l1.append(metrics.action_l1(wanted.log_probabilities, done.log_probabilities))
        at_ns = round(footage.times_s[index] * 1e9)
        vector = model.embedding(embedding, frame, memory.frame_slots)
        begun_ns = time.thread_time_ns()
        memory.retain(FrameMeta(index + 1, at_ns, at_ns, at_ns), vector, index, done.signals)
        if evicted:
            trial.eviction_us.append((spent_ns + time.thread_time_ns() - begun_ns) / 1e3)
        trial.retained.append([retained.meta.index - 1 for retained in memory.frames])
    return trial


def _leave_one_out(
    model: TrialModel, memory: FrameMemory, frame: np.ndarray, scratch: np.ndarray
) -> np.ndarray:
    """(n - 1,) nats: by retained frame but the newest, the change of the next actions without it."""
    context = memory.context_slots()
    n_prompt = len(context) - FRAME_TOKENS * len(memory.frames)
    whole = model.run(frame, context, scratch, memory.action_slots)
    losses = np.zeros(max(1, len(memory.frames) - 1))
    for place in range(len(losses)):
        start = n_prompt + place * FRAME_TOKENS
        without = np.delete(context, slice(start, start + FRAME_TOKENS))
        done = model.run(frame, without, scratch, memory.action_slots, whole.tokens)
        losses[place] = metrics.kl_nats(whole.log_probabilities, done.log_probabilities)
    return losses
