"""What the stages of a pass must at least move and compute, and how near to the device's limits they come."""

from collections.abc import Mapping

from vla_edge_ros.engine.interface import FRAME_TOKENS
from vla_edge_ros.engine.model_config import ACTION_ROWS, ModelConfig
from vla_edge_ros.engine.vision import PATCH_SIZE

_BF16_BYTES = 2


def layer_parameters(config: ModelConfig) -> int:
    """Weights of the projections of one layer."""
    return config.hidden_size * (config.query_size * 2 + 2 * config.kv_size + 3 * config.intermediate_size)


def step_bytes(config: ModelConfig, n_ranks: int) -> int:
    """Bytes that a decode step must move: weights once, valid keys and values once, 256-row head (bf16)."""
    kv = 2 * n_ranks * config.kv_size
    layers = config.num_hidden_layers * (layer_parameters(config) + kv)
    return _BF16_BYTES * (layers + ACTION_ROWS * config.hidden_size)


def stage_work(config: ModelConfig, n_context: int, n_moved: int) -> dict[str, dict[str, int]]:
    """`bytes` and `flops` of each stage of a pass after `n_context` ranks; the decode step is the fifth.

    Weights and valid keys and values are read once, what is new is written once; products count two FLOPs.
    n_moved: ranks whose slots changed since the pass before, which are gathered into rank order.
    """
    layers, hidden = config.num_hidden_layers, config.hidden_size
    parameters = layers * layer_parameters(config)
    rank_bytes = 2 * _BF16_BYTES * layers * config.kv_size

    def attention_flops(n_queries: int, n_keys: float) -> int:
        return round(4 * n_queries * n_keys * config.query_size * layers)

    n_step = n_context + FRAME_TOKENS + 4
    frame_keys = n_context + (FRAME_TOKENS + 1) / 2
    return {
        "fetch_and_rank": {"bytes": 2 * n_moved * rank_bytes, "flops": 0},
        "vision": {
            "bytes": _BF16_BYTES * hidden * PATCH_SIZE + FRAME_TOKENS * PATCH_SIZE,
            "flops": 2 * FRAME_TOKENS * PATCH_SIZE * hidden,
        },
        "prefill": {
            "bytes": _BF16_BYTES * parameters + (n_context + FRAME_TOKENS) * rank_bytes,
            "flops": 2 * FRAME_TOKENS * parameters + attention_flops(FRAME_TOKENS, frame_keys),
        },
        "decode_step": {
            "bytes": step_bytes(config, n_step) + rank_bytes,
            "flops": 2 * (parameters + ACTION_ROWS * hidden) + attention_flops(1, n_step),
        },
    }


def roofline(
    work: Mapping[str, Mapping[str, int]],
    times_us: Mapping[str, float],
    read_gbps: float,
    bf16_tflops: float | None,
) -> dict[str, dict]:
    """For each stage its `us`, `bytes`, `flops`, `limit_us` and `share`, the limit over the time.

    The limit is the longer of the bytes at the read ceiling and the FLOPs at the rate measured for products
    in bf16; without that rate it is of the bytes alone. A stage with nothing to move has no share.
    """
    rows = {}
    for stage, needed in work.items():
        bytes_us = needed["bytes"] / read_gbps / 1e3
        flops_us = needed["flops"] / bf16_tflops / 1e6 if bf16_tflops else 0.0
        limit_us = max(bytes_us, flops_us)
        rows[stage] = {
            "us": times_us[stage],
            **needed,
            "limit_us": round(limit_us, 2),
            "bound_by": "bytes" if bytes_us >= flops_us else "flops",
            "share": round(limit_us / times_us[stage], 4) if limit_us else None,
        }
    return rows
