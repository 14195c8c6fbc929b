"""What is decided about the kernels before they are compiled, and the name of that decision."""

import hashlib
import re
from dataclasses import dataclass, replace

from vla_edge_ros.engine.cuda.compiler import Build
from vla_edge_ros.engine.interface import EngineError
from vla_edge_ros.engine.model_config import ACTION_ROWS, ModelConfig

WARPS = 8
CHUNK = 64
"""Ranks of one attention split."""

_RINGS = ((220_000, 3072, 8), (160_000, 3072, 5), (99_000, 2048, 4))
"""Shared memory a block may ask for, and the weight ring that fits in it: a warp's stage bytes, stages."""
_FEWEST_STAGES = 4
_SMALL_SHARED_BYTES = 512
"""Counters, scales and padding of the decode kernel."""
_OTHER_STAGES = (2048, 6144)
_OTHER_COPIES = ((3, 1), (4, 2))

_ID = re.compile(
    r"cuda-(?P<grid>\d{1,4})x8-s(?P<stage>\d{1,6})x(?P<slots>\d{1,3})-f(?P<stream>\d{1,3})\.(?P<exchange>\d{1,3})"
    r"(?P<pin>-(?P<architecture>sm_\d+)-(?P<compiler>nvcc[\d.]+)-k(?P<kernels>[0-9a-f]{8})-m(?P<model>[0-9a-f]{8}))?"
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Compile-time constants of the kernels; see cuda/geometry.cuh and cuda/decode.cu.

    n_slots: slots of the KV cache, a multiple of 64.
    grid: blocks of the persistent kernels, at most one a multiprocessor.
    stage_bytes, ring_slots: a warp's weight ring.
    stream_copies, exchange_copies: stages on their way to a block while long projections are read, and else.
    """

    config: ModelConfig
    n_slots: int
    grid: int
    stage_bytes: int
    ring_slots: int
    stream_copies: int = 2
    exchange_copies: int = 1

    @property
    def n_chunks(self) -> int:
        return self.n_slots // CHUNK

    def defines(self, kernel: str = "decode") -> tuple[str, ...]:
        """Options of nvcc for `cuda/KERNEL.cu`: kernels that plans have in common are compiled once."""
        config = self.config
        values = {
            "HIDDEN": config.hidden_size,
            "INTERMEDIATE": config.intermediate_size,
            "LAYERS": config.num_hidden_layers,
            "Q_HEADS": config.num_attention_heads,
            "KV_HEADS": config.num_key_value_heads,
            "HEAD_DIM": config.head_dim,
            "N_SLOTS": self.n_slots,
            "RMS_EPS": f"{config.rms_norm_eps:e}f",
            "GRID": self.grid,
            "STAGE_BYTES": self.stage_bytes,
            "SLOTS": self.ring_slots,
        }
        if kernel == "decode":
            values |= {"STREAM_COPIES": self.stream_copies, "EXCHANGE_COPIES": self.exchange_copies}
        return tuple(f"-D{name}={value}" for name, value in values.items())

    def identity(self, build: Build) -> str:
        """The plan's name: its choices, the build they were made for, and a hash of model and slots.

        Two engines of one name compute the same bits from the same weights.
        """
        choices = (
            f"cuda-{self.grid}x{WARPS}-s{self.stage_bytes}x{self.ring_slots}"
            f"-f{self.stream_copies}.{self.exchange_copies}"
        )
        return f"{choices}-{build.architecture}-{build.compiler}-k{build.kernels}-m{self._model_hash()}"

    def _model_hash(self) -> str:
        return hashlib.sha256(f"{self.config} {self.n_slots}".encode()).hexdigest()[:8]


def make_plan(
    config: ModelConfig, n_slots: int, multiprocessors: int, shared_bytes: int, grid: int = 0
) -> Plan:
    """The plan by rule; `grid` 0 chooses one too. Raises EngineError if device or model do not fit.

    A model whose sums leave too little shared memory to the ring gets the fewest stages, and is refused when
    its kernels are loaded.
    """
    check_model(config, n_slots)
    rings = [ring for needed, *ring in _RINGS if shared_bytes >= needed]
    if not rings:
        raise EngineError(
            f"the device gives a block {shared_bytes} bytes of shared memory: it takes {_RINGS[-1][0]}"
        )
    plan = Plan(config, -(-n_slots // CHUNK) * CHUNK, grid or best_grid(config, multiprocessors), *rings[0])
    return _fitted(plan, shared_bytes)


def candidates(config: ModelConfig, n_slots: int, multiprocessors: int, shared_bytes: int) -> list[Plan]:
    """Plans worth measuring: the one by rule first, then those that differ from it in one choice.

    Not all may compile or fit. Raises EngineError as `make_plan` does.
    """
    first = make_plan(config, n_slots, multiprocessors, shared_bytes)
    ring_bytes = first.stage_bytes * first.ring_slots
    others = [replace(first, grid=grid) for grid in (multiprocessors, max(1, multiprocessors * 9 // 10))]
    others += [
        replace(first, stage_bytes=stage, ring_slots=ring_bytes // stage)
        for stage in _OTHER_STAGES
        if ring_bytes // stage >= _FEWEST_STAGES
    ]
    others = [_fitted(plan, shared_bytes) for plan in others]
    others += [replace(first, stream_copies=a, exchange_copies=b) for a, b in _OTHER_COPIES]
    return list(dict.fromkeys([first, *others]))


def require_room(plan: Plan, shared_bytes: int) -> None:
    """Raises EngineError where a block would need more shared memory than the device gives it."""
    needed = decode_shared_bytes(plan)
    if needed > shared_bytes:
        raise EngineError(
            f"the decode kernel needs {needed} bytes of shared memory a block on {plan.grid} multiprocessors "
            f"and the device gives {shared_bytes}: choose a smaller model"
        )


def _fitted(plan: Plan, shared_bytes: int) -> Plan:
    """With as many of its stages as fit."""
    while plan.ring_slots > _FEWEST_STAGES and decode_shared_bytes(plan) > shared_bytes:
        plan = replace(plan, ring_slots=plan.ring_slots - 1)
    return plan


def decode_shared_bytes(plan: Plan) -> int:
    """Shared memory of a block of the decode kernel: its ring and `Shared` of decode.cu, or a bit more."""
    config = plan.config
    hidden, mlp = config.hidden_size, config.intermediate_size
    tilings = [
        _tiling(plan, config.query_size + 2 * config.kv_size, hidden, is_even=True),
        _tiling(plan, hidden, config.query_size),
        _tiling(plan, 2 * mlp, hidden, is_even=True),
        _tiling(plan, hidden, mlp, is_like=False),
        _tiling(plan, ACTION_ROWS, hidden),
    ]
    kv_units = -(-plan.n_chunks * config.num_key_value_heads // plan.grid)
    n_stages = 2 * kv_units + sum(n for _, n in tilings)
    sums = 2 * 16 * WARPS * 4 * max(tiles for tiles, _ in tilings)
    operand = WARPS * 4 * 8 * -(-max(hidden, mlp) // (16 * WARPS))
    scores = 2 * CHUNK * 8 * 4 * (2 if kv_units > 1 else 1)
    query = 2 * config.head_dim // 32 * 32 * 8
    combined = WARPS * 8 * 16
    ring = plan.ring_slots * (WARPS * plan.stage_bytes + 16)
    return ring + 16 * n_stages + sums + operand + scores + query + combined + _SMALL_SHARED_BYTES


def _tiling(
    plan: Plan, rows: int, columns: int, is_even: bool = False, is_like: bool = True
) -> tuple[int, int]:
    """TILES and STAGES of a projection's `Matrix` in cuda/geometry.cuh."""
    pairs = -(-rows // (2 * plan.grid))
    pairs += pairs % 2 if is_even else 0
    tiles = -(-pairs // 8)
    steps = -(-columns // (16 * WARPS))
    fewest = -(-steps // (plan.stage_bytes // (64 * (8 if is_like else min(pairs, 8)))))
    segments = next((n for n in range(fewest, 2 * fewest + 1) if steps % n == 0), fewest)
    return tiles, tiles * segments


def plan_of_id(plan_id: str, config: ModelConfig, n_slots: int, multiprocessors: int, build: Build) -> Plan:
    """The plan that an id names; its end from the architecture on may be left out.

    Raises EngineError, naming what differs, where this build, model or device cannot give what it names.
    """
    found = _ID.fullmatch(plan_id)
    if found is None:
        raise EngineError(
            f"engine.plan is {plan_id!r}: wanted the plan_id of a cuda engine, as ~/tick and demo.json have "
            "it, or nothing"
        )
    check_model(config, n_slots)
    choices = (int(found[name]) for name in ("grid", "stage", "slots", "stream", "exchange"))
    plan = Plan(config, -(-n_slots // CHUNK) * CHUNK, *choices)
    if not 1 <= plan.grid <= multiprocessors:
        raise EngineError(
            f"engine.plan {plan_id} wants {plan.grid} multiprocessors and this device has {multiprocessors}"
        )
    if found["pin"] is not None:
        here = _ID.fullmatch(plan.identity(build))
        names = {"architecture": "architecture", "compiler": "compiler", "kernels": "kernel sources"}
        names["model"] = "model or memory.slots"
        different = [
            f"{what} ({found[name]} there, {here[name]} here)"
            for name, what in names.items()
            if found[name] != here[name]
        ]
        if different:
            raise EngineError(
                f"engine.plan {plan_id} cannot be rebuilt here, other bits would come out: different "
                f"{', '.join(different)}; empty it to take this machine's own plan"
            )
    return plan


def best_grid(config: ModelConfig, multiprocessors: int) -> int:
    """The grid that pads the weights least, among those that use at least nine tenths of the device."""
    fewest = max(1, multiprocessors * 9 // 10)
    return min(range(multiprocessors, fewest - 1, -1), key=lambda grid: padded_rows(config, grid))


def padded_rows(config: ModelConfig, grid: int) -> int:
    """Weights of a layer as the blocks read them, rows of all blocks padded alike, in elements."""

    def padded(rows: int, columns: int, is_even: bool) -> int:
        pairs = -(-rows // (2 * grid))
        return 2 * grid * (pairs + (pairs % 2 if is_even else 0)) * columns

    hidden, mlp = config.hidden_size, config.intermediate_size
    return (
        padded(config.query_size + 2 * config.kv_size, hidden, True)
        + padded(hidden, config.query_size, False)
        + padded(2 * mlp, hidden, True)
        + padded(hidden, mlp, False)
    )


def check_model(config: ModelConfig, n_slots: int) -> None:
    if config.head_dim not in (32, 64, 128):
        raise EngineError(f"head size {config.head_dim}: the CUDA kernels take 32, 64 or 128")
    if config.num_attention_heads > 8 * config.num_key_value_heads:
        raise EngineError(
            f"{config.num_attention_heads} query heads on {config.num_key_value_heads} KV heads: "
            "the CUDA kernels take at most 8 a KV head"
        )
    for name in ("hidden_size", "intermediate_size", "query_size"):
        if getattr(config, name) % 16:
            raise EngineError(f"{name} is {getattr(config, name)}: the CUDA kernels take multiples of 16")
    if config.query_size != config.hidden_size:
        raise EngineError(
            f"query heads are {config.query_size} wide and the stream {config.hidden_size}: "
            "the CUDA kernels take equal widths"
        )
    if n_slots < CHUNK:
        raise EngineError(f"{n_slots} slots: the CUDA engine takes at least {CHUNK}")
