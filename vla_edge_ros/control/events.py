"""What other threads may tell the control loop; each takes effect at the start of the next tick."""

from dataclasses import asdict, dataclass

import numpy as np

from vla_edge_ros.control.admission import AdmissionConfig
from vla_edge_ros.engine.interface import EngineInfo


@dataclass(frozen=True, slots=True)
class ControlConfig:
    """
    max_frame_age_ns: a frame older than this at the start of a tick is not worth a pass.
    max_hold_ns: after this long without a fresh action a hold becomes a SAFE_STOP.
    uses_late_result: a pass that ended after its cut-off serves the next tick as FRESH_LATE.
    stall_timeout_ns: an engine that is silent for so long after the deadline of its pass hangs.
    """

    max_frame_age_ns: int
    max_hold_ns: int
    uses_late_result: bool
    stall_timeout_ns: int


@dataclass(frozen=True, slots=True)
class Instruction:
    """A new prompt, already tokenised: (P,) int32."""

    text: str
    tokens: np.ndarray

    def to_json(self) -> dict:
        return {"event": "instruction", "text": self.text}


@dataclass(frozen=True, slots=True)
class ResetMemory:
    def to_json(self) -> dict:
        return {"event": "reset_memory"}


@dataclass(frozen=True, slots=True)
class Enable:
    is_enabled: bool

    def to_json(self) -> dict:
        return {"event": "enable" if self.is_enabled else "disable"}


@dataclass(frozen=True, slots=True)
class ClockJump:
    """The ROS clock jumped: frames, memory and the hold timer belong to another time."""

    delta_ns: int

    def to_json(self) -> dict:
        return {"event": "clock_jump", "delta_ns": self.delta_ns}


@dataclass(frozen=True, slots=True)
class EngineReplaced:
    """A fresh engine process took over; its cache is empty."""

    info: EngineInfo

    def to_json(self) -> dict:
        return {"event": "engine_replaced", "plan_id": self.info.plan_id}


@dataclass(frozen=True, slots=True)
class Retune:
    """Parameters that may change while ticks run."""

    control: ControlConfig
    admission: AdmissionConfig

    def to_json(self) -> dict:
        return {"event": "retune"} | asdict(self)


Event = Instruction | ResetMemory | Enable | ClockJump | EngineReplaced | Retune
