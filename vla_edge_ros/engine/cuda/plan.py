"""What is decided about the kernels before they are compiled, and the name of that decision."""

import hashlib
from dataclasses import dataclass

from vla_edge_ros.engine.interface import EngineError
from vla_edge_ros.engine.model_config import ModelConfig

WARPS = 8
CHUNK = 64
"""Ranks of one attention split."""

_RINGS = ((220_000, 3072, 8), (160_000, 3072, 5), (99_000, 2048, 4))
"""Shared memory a block may ask for, and the weight ring that fits in it: a warp's stage bytes, stages."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Compile-time constants of the kernels; see cuda/geometry.cuh.

    n_slots: slots of the KV cache, a multiple of 64.
    grid: blocks of the persistent kernels, at most one a multiprocessor.
    """

    config: ModelConfig
    n_slots: int
    grid: int
    stage_bytes: int
    ring_slots: int

    @property
    def n_chunks(self) -> int:
        return self.n_slots // CHUNK

    def defines(self) -> tuple[str, ...]:
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
        return tuple(f"-D{name}={value}" for name, value in values.items())

    def identity(self, build: str) -> str:
        """A short name of everything that fixes the order of summation: this plan and the kernels' build."""
        digest = hashlib.sha256("\n".join((*self.defines(), build)).encode()).hexdigest()
        return f"cuda-{self.grid}x{WARPS}-{digest[:12]}"


def make_plan(
    config: ModelConfig, n_slots: int, multiprocessors: int, shared_bytes: int, grid: int = 0
) -> Plan:
    """The plan for a device; `grid` 0 chooses one. Raises EngineError if device or model do not fit."""
    _check(config, n_slots)
    rings = [ring for needed, *ring in _RINGS if shared_bytes >= needed]
    if not rings:
        raise EngineError(
            f"the device gives a block {shared_bytes} bytes of shared memory: it takes {_RINGS[-1][0]}"
        )
    stage_bytes, ring_slots = rings[0]
    grid = grid or best_grid(config, multiprocessors)
    return Plan(config, -(-n_slots // CHUNK) * CHUNK, grid, stage_bytes, ring_slots)


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


def _check(config: ModelConfig, n_slots: int) -> None:
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
