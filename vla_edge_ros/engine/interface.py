"""The engine protocol: what the control thread may ask of a model, and what it gets back.

An engine has at most one piece of work in flight. It holds the KV arrays and obeys slot lists;
which slot belongs to what is decided by `memory/`, on the control thread.
"""

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

import numpy as np

from vla_edge_ros.errors import UserError
from vla_edge_ros.memory.signals import PassSignals
from vla_edge_ros.memory.slots import FRAME_TOKENS as FRAME_TOKENS
from vla_edge_ros.memory.slots import MAX_ACTION_TOKENS as MAX_ACTION_TOKENS
from vla_edge_ros.perception.frame import FrameMeta


class EngineError(UserError):
    """The engine cannot be configured or has failed for good; the message is one line for the user."""


class EngineBusy(RuntimeError):
    """Work was submitted while earlier work still ran."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Everything that fixes an engine's arithmetic and its memory, known before the first frame.

    model: a preset's name, or a directory with config.json and safetensors.
    seed: for seeded weights (decoder where `model` is a preset; vision always, unless the directory has it).
    n_slots: places of one token in the KV cache.
    action_tokens: A, the number of tokens that one pass decodes at most.
    embedding: what a frame's embedding is, `pooled` or `key_summary` (NumPy engine alone).
    gives_signals: whether results tell attention and values of the pass (NumPy engine alone).
    blas_threads: threads of the NumPy engine's matrix products (0: the library's default).
    host_bytes: of the ring in host memory that keeps forgotten blocks (NumPy and fake engine); 0: none.
    plan: the plan_id of a CUDA engine whose order of summation is wanted; empty: this machine's own choice.
    """

    backend: str = "numpy"
    model: str = "tiny"
    seed: int = 0
    n_slots: int = 1024
    action_tokens: int = 7
    blas_threads: int = 1
    budget_bytes: int = 8_000_000_000
    embedding: str = "pooled"
    gives_signals: bool = False
    host_bytes: int = 0
    plan: str = ""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What a configured engine says of itself.

    account_bytes: bytes by purpose (weights, kv, workspace, ...), all allocated before `configure` returns.
        Those of a GPU, `cuda_context` included, add up to what the driver counts for the process;
        `page_locked` is memory of the host.
    embedding_size: length of a frame's embedding (of the pooled one: the hidden size).
    ring_blocks: frame blocks that the host ring keeps.
    block_bytes: keys and values of one, of an engine that can have a ring.
    """

    backend: str
    plan_id: str
    vocabulary_size: int
    embedding_size: int
    account_bytes: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    ring_blocks: int = 0
    block_bytes: int = 0


def pinned(spec: EngineSpec, info: EngineInfo) -> EngineSpec:
    """The spec of an engine that sums in the order of the one described."""
    return replace(spec, backend=info.backend, plan=loadable_plan(info.backend, info.plan_id))


def loadable_plan(backend: str, plan_id: str) -> str:
    """What `EngineSpec.plan` must be for an engine of this backend to follow `plan_id` again.

    The NumPy engine's id names the machine's BLAS, which cannot be chosen.
    """
    return plan_id if backend == "cuda" else ""


def total_bytes(account: dict[str, int]) -> int:
    """Of all purposes of an account."""
    return sum(account.values())


@dataclass(slots=True)
class PromptWork:
    """Fill the prompt in: `tokens` (P,) int32 go to `slots` (P,) int32, at the ranks behind `context_slots`.

    context_slots: (n,) int32, in rank order, the prompt's first n tokens where the cache holds them from an
        earlier prompt that began alike. Engines write pieces of `FRAME_TOKENS`, so that the bits are those of
        a prompt filled in whole where n is a multiple of that.
    """

    work_id: int
    tokens: np.ndarray
    slots: np.ndarray
    context_slots: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))


@dataclass(slots=True)
class FrameWork:
    """One pass: the newest whole frame of the frame buffer is prefilled and N of 1 to A tokens are decoded.

    context_slots: (n,) int32, all valid slots in rank order: the prompt, then retained frames oldest first.
    frame_slots: (32,) int32, where this frame's block goes; it attends to the context and causally to itself.
    action_slots: (N,) int32, for the action-start token and the first N - 1 action tokens; free afterwards.
        The tokens of fewer are the first of those of all, bit for bit.
    deadline_ns: steady clock, 0 for never: the pass is of no use after it. At each boundary (before vision,
        before prefill, before every decode step, and after layers where that costs nothing) the engine
        stops if the work that remains has been seen to need more than the time that is left; see `Pace`.
        What it does not foresee may still end late: that is DONE, and `finished_ns` says when.
    prompt_tokens: how many of the context's first slots are the prompt's; for `EngineSpec.gives_signals`.
    """

    work_id: int
    context_slots: np.ndarray
    frame_slots: np.ndarray
    action_slots: np.ndarray
    deadline_ns: int = 0
    prompt_tokens: int = 0


class WorkStatus(Enum):
    DONE = 0
    NO_FRAME = 1
    """The frame buffer had no whole frame to read; nothing was written to the cache."""
    FAILED = 2
    """The engine failed and must be replaced; `error` says why in one line."""
    ABORTED = 3
    """The pass was stopped, since it could not end by its deadline. It has no frame, tokens or embedding.

    `steps_done` and `stages` tell how far it came. Its frame's and action slots may be half written, so no
    slot list names them as context before a pass has written them again; no other slot was touched. Passes
    afterwards give the bits that they would have given without it.
    """


STAGES = ("copy", "vision", "prefill", "decode")
"""The stages of a pass, in their order; `StageTimes` has the duration of each."""


@dataclass(slots=True)
class StageTimes:
    """Duration of each stage of a pass in nanoseconds; `decode_ns` is the sum over the decode steps."""

    copy_ns: int = 0
    vision_ns: int = 0
    prefill_ns: int = 0
    decode_ns: int = 0

    @property
    def total_ns(self) -> int:
        return self.copy_ns + self.vision_ns + self.prefill_ns + self.decode_ns

    def __add__(self, other: "StageTimes") -> "StageTimes":
        return StageTimes(
            self.copy_ns + other.copy_ns,
            self.vision_ns + other.vision_ns,
            self.prefill_ns + other.prefill_ns,
            self.decode_ns + other.decode_ns,
        )


@dataclass(slots=True)
class WorkResult:
    """What became of a piece of work.

    frame: the frame that the pass used (None for a prompt, NO_FRAME and ABORTED).
    tokens: (K, N) int32 vocabulary ids; K = 1 for this model, other policies give more steps.
    top_probability, entropy: (K, N) float32 of the softmax over the 256 action rows (entropy in nats).
    embedding: float32, by `EngineSpec.embedding`: (hidden,), the mean of the frame's patch embeddings, or the
        (32 x KV size,) of `key_summary`.
    signals: of a DONE pass, where `EngineSpec.gives_signals` asks for them.
    steps_done: decode steps that a pass has finished, N where it is DONE.
    remaining: what an ABORTED pass had still to take at least, by stage; 0 where that is not known.
    started_ns, finished_ns: steady clock, taken by the engine.
    """

    work_id: int
    status: WorkStatus
    error: str = ""
    frame: FrameMeta | None = None
    tokens: np.ndarray | None = None
    top_probability: np.ndarray | None = None
    entropy: np.ndarray | None = None
    embedding: np.ndarray | None = None
    signals: PassSignals | None = None
    stages: StageTimes = field(default_factory=StageTimes)
    steps_done: int = 0
    remaining: StageTimes = field(default_factory=StageTimes)
    started_ns: int = 0
    finished_ns: int = 0


def ring_blocks(host_bytes: int, block_bytes: int) -> int:
    """Blocks that a host ring of `host_bytes` keeps. Raises EngineError where it is smaller than one."""
    if 0 < host_bytes < block_bytes:
        raise EngineError(
            f"memory.host_bytes is {host_bytes} and a frame of this model has {block_bytes} bytes: raise it, "
            "or set it to 0 for no recall"
        )
    return host_bytes // block_bytes


class Engine(Protocol):
    def configure(self) -> EngineInfo:
        """Load, check and allocate everything, and run one warm-up pass. Raises EngineError."""

    def submit(self, work: PromptWork | FrameWork) -> None:
        """Start work and return at once. Raises EngineBusy while earlier work is unclaimed."""

    def wait(self, until_ns: int) -> WorkResult | None:
        """The result of the work in flight, or None once the steady clock reaches `until_ns`.

        A result is handed out once. A dead engine gives a FAILED result at once and for ever after.
        """

    def evict(self, slots: np.ndarray) -> None:
        """Forget `slots`: no later slot list names them before they are written again."""

    def stash(self, place: int, slots: np.ndarray) -> None:
        """Copy the block at `slots` (32,) to `place` of the host ring, before they are forgotten.

        This and `restore` are for engines whose information has `ring_blocks`.
        """

    def restore(self, place: int, slots: np.ndarray) -> None:
        """Copy the block at `place` of the host ring to `slots` (32,), bit by bit; the ring keeps it.

        Of the calls between two pieces of work all of `stash` come first, then `evict`, then `restore`.
        """

    def close(self) -> None:
        """Free everything; safe to call twice and after a failure."""
