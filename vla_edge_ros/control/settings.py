"""From the parameter table's values to a controller: the one place where live and replay are put together."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from vla_edge_ros.actions.config import ActionConfig
from vla_edge_ros.actions.planner import ActionPlanner
from vla_edge_ros.actions.policy import Policy, load_policy
from vla_edge_ros.control.admission import Admission, AdmissionConfig
from vla_edge_ros.control.clock import Clock
from vla_edge_ros.control.controller import Controller
from vla_edge_ros.control.events import ControlConfig, Instruction, Retune
from vla_edge_ros.control.ladder import LadderConfig
from vla_edge_ros.control.reuse import Reuse
from vla_edge_ros.control.schedule import TickSchedule
from vla_edge_ros.engine.interface import (
    FRAME_TOKENS,
    MAX_ACTION_TOKENS,
    Engine,
    EngineInfo,
    EngineSpec,
    total_bytes,
)
from vla_edge_ros.engine.tokenizer import load_tokenizer
from vla_edge_ros.memory.frame_memory import FrameMemory
from vla_edge_ros.memory.policies import NEED_SIGNALS, embedding_for, make_policy
from vla_edge_ros.perception.frame_buffer import FrameBuffer
from vla_edge_ros.perception.frame_log import FrameLog
from vla_edge_ros.perception.picture import CELLS_SHAPE, picture_cells
from vla_edge_ros.perception.resize import Resizer
from vla_edge_ros.perception.signature import SIGNATURE_SIZE, patch_signature
from vla_edge_ros.perception.stamps import StampWatch
from vla_edge_ros.share import share_directory

Parameters = Mapping[str, object]


def ns(milliseconds: float) -> int:
    return round(milliseconds * 1e6)


def policy_of(parameters: Parameters) -> Policy:
    """The policy file that the parameters name, with the groups that they choose."""
    path = parameters["actions.policy_file"]
    policy = load_policy(Path(path) if path else share_directory() / "config/policies/demo_arm.yaml")
    return policy.with_groups(parameters["actions.groups"])


def engine_spec(parameters: Parameters, action_tokens: int) -> EngineSpec:
    return EngineSpec(
        backend=parameters["engine.backend"],
        model=parameters["engine.model"],
        seed=parameters["engine.seed"],
        n_slots=parameters["memory.slots"],
        action_tokens=action_tokens,
        blas_threads=parameters["engine.blas_threads"],
        budget_bytes=parameters["memory.budget_bytes"],
        embedding="key_summary" if _embedding_of(parameters) == "key_summary" else "pooled",
        gives_signals=parameters["memory.policy"] in NEED_SIGNALS,
        host_bytes=parameters["memory.host_bytes"],
        plan=parameters["engine.plan"],
    )


def tick_schedule(parameters: Parameters, origin_ns: int) -> TickSchedule:
    return TickSchedule(
        origin_ns,
        ns(parameters["control.period_ms"]),
        ns(parameters["control.deadline_ms"]),
        ns(parameters["control.margin_ms"]),
        parameters["control.deadline_from"] == "capture",
    )


def live_settings(parameters: Parameters) -> Retune:
    """The configurations that may change while ticks run."""
    return Retune(
        ControlConfig(
            max_frame_age_ns=ns(parameters["camera.max_age_ms"]),
            max_hold_ns=ns(parameters["actions.max_hold_ms"]),
            uses_late_result=parameters["actions.late_result"] == "next_tick",
            stall_timeout_ns=ns(parameters["engine.stall_timeout_ms"]),
        ),
        AdmissionConfig(
            parameters["admission.ema_alpha"],
            parameters["admission.decay"],
            parameters["admission.probe_after_ticks"],
            parameters["admission.estimator"],
            parameters["admission.target_miss_rate"],
        ),
    )


def ladder_config(parameters: Parameters, policy: Policy) -> LadderConfig:
    """Raises PolicyError where the dimensions that `ladder.least_tokens` leaves out cannot be held."""
    least_tokens = parameters["ladder.least_tokens"]
    if least_tokens:
        policy.require_held_from(least_tokens, "ladder.least_tokens")
    return LadderConfig(parameters["ladder.forget_frames"], parameters["ladder.least_frames"], least_tokens)


def action_config(parameters: Parameters) -> ActionConfig:
    return ActionConfig(
        period_ns=ns(parameters["control.period_ms"]),
        ttl_ns=ns(parameters["actions.ttl_ms"]),
        max_hold_ns=ns(parameters["actions.max_hold_ms"]),
        min_lead_ns=ns(parameters["actions.min_lead_ms"]),
        joint_state_max_age_ns=ns(parameters["actions.joint_state_max_age_ms"]),
        anchor=parameters["actions.anchor"],
    )


def frame_memory(
    parameters: Parameters,
    action_tokens: int,
    embedding_size: int,
    seed: int = 0,
    ring_blocks: int = 0,
) -> FrameMemory:
    """The memory that the parameters name.

    embedding_size: what `embedding_size` says of an engine. seed: of the policy `random`. ring_blocks: of the
        engine's host ring.
    """
    return FrameMemory(
        parameters["memory.slots"],
        action_tokens,
        make_policy(parameters["memory.policy"], parameters["memory.window_frames"], seed),
        embedding_size,
        parameters["memory.stride_ticks"],
        parameters["memory.prompt_slots"],
        parameters["memory.on_instruction"] == "keep",
        ring_blocks,
        parameters["memory.recall_similarity"],
    )


def embedding_size(info: EngineInfo, signatures: FrameLog | None) -> int:
    """Values that frames are compared by; `signatures` is that of `signature_log`."""
    return info.embedding_size if signatures is None else signatures.shape[0]


def build_controller(
    parameters: Parameters,
    policy: Policy,
    clock: Clock,
    engine: Engine,
    info: EngineInfo,
    frames: FrameBuffer,
    on_fault: Callable[[str], None],
    signatures: FrameLog | None,
    pictures: FrameLog | None = None,
) -> Controller:
    """A controller around an engine that is already configured.

    signatures, pictures: those of `signature_log` and `picture_log`.
    """
    live = live_settings(parameters)
    n_values = embedding_size(info, signatures)
    memory = frame_memory(parameters, len(policy.dimensions), n_values, ring_blocks=info.ring_blocks)
    planner = ActionPlanner(policy, action_config(parameters))
    admission = Admission(live.admission, ladder_config(parameters, policy))
    levels = parameters["ladder.unchanged_levels"]
    reuse = Reuse(pictures, levels, parameters["ladder.reuse_ticks"]) if pictures is not None else None
    return Controller(
        live.control, clock, engine, info, frames, memory, planner, admission, on_fault, signatures, reuse
    )


def picture_log(parameters: Parameters) -> FrameLog | None:
    """Where camera and controller meet if the action of an unchanged picture may be used again, else None."""
    return FrameLog(picture_cells, CELLS_SHAPE, np.float32) if parameters["ladder.reuse_ticks"] else None


def signature_log(parameters: Parameters) -> FrameLog | None:
    """Where camera and controller meet if frames are compared by their signatures, else None."""
    if _embedding_of(parameters) != "patch_signature":
        return None
    return FrameLog(patch_signature, (SIGNATURE_SIZE,), np.float32)


def _embedding_of(parameters: Parameters) -> str:
    return embedding_for(parameters["memory.policy"], parameters["memory.embedding"])


def stamp_watch(parameters: Parameters) -> StampWatch:
    return StampWatch(
        future_tolerance_ns=ns(parameters["camera.future_tolerance_ms"]),
        foreign_after_ns=ns(parameters["camera.foreign_clock_ms"]),
        frozen_after=parameters["camera.frozen_after_frames"],
        withhold_frozen=parameters["camera.withhold_frozen"],
    )


def resizer(parameters: Parameters) -> Resizer:
    return Resizer(policy=parameters["camera.resize"], interpolation=parameters["camera.interpolation"])


class Prompter:
    """Turns a new instruction into the event that gives the control loop its prompt."""

    def __init__(self, parameters: Parameters) -> None:
        self._system_prompt = parameters["instruction.system_prompt"]
        room = parameters["memory.slots"] - FRAME_TOKENS - MAX_ACTION_TOKENS
        # The fake engine's model is no model: its prompts are bytes, as a preset's are.
        model = "tiny" if parameters["engine.backend"] == "fake" else parameters["engine.model"]
        self._tokenizer = load_tokenizer(model, room)
        self._text: str | None = None

    def changed_to(self, text: str) -> Instruction | None:
        """The event, or None where `text` is the instruction already.

        Raises InstructionRefused where it leaves no room for a frame; the one before then stays.
        """
        if text == self._text:
            return None
        tokens = self._tokenizer.make_prompt_tokens(text, self._system_prompt)
        self._text = text
        return Instruction(text, tokens)


def describe_account(info: EngineInfo) -> str:
    """The engine's memory in one line: `weights 6.7 MB, kv 2.1 MB, total 8.8 MB`."""
    entries = info.account_bytes | {"total": total_bytes(info.account_bytes)}
    return ", ".join(f"{purpose.replace('_', ' ')} {size / 1e6:.1f} MB" for purpose, size in entries.items())


def describe_engine(parameters: Parameters, info: EngineInfo) -> dict:
    """What fixes an engine's arithmetic, for the record of a run."""
    return {
        "backend": info.backend,
        "plan_id": info.plan_id,
        "model": parameters["engine.model"],
        "seed": parameters["engine.seed"],
        "vocabulary_size": info.vocabulary_size,
    }
