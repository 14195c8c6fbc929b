"""What an engine takes of the device's memory, known before it takes any, against its budget."""

from vla_edge_ros.engine.cuda.decoder import arena_account
from vla_edge_ros.engine.cuda.device import Device
from vla_edge_ros.engine.cuda.kernels import read_sizes
from vla_edge_ros.engine.cuda.plan import Plan, make_plan
from vla_edge_ros.engine.interface import EngineError, EngineSpec, total_bytes
from vla_edge_ros.engine.weights import open_weights
from vla_edge_ros.perception.frame_buffer import FrameBuffer


def planned_account(device: Device, plan: Plan, frame_buffer_bytes: int) -> dict[str, int]:
    """Bytes by purpose: the arena's, the CUDA context as it is now, and page-locked memory of the host."""
    sizes = read_sizes(device, plan)
    return {
        **arena_account(plan, sizes),
        "cuda_context": device.process_bytes(),
        "page_locked": frame_buffer_bytes + sizes["command"] + sizes["result"],
    }


def require_budget(spec: EngineSpec, account: dict[str, int]) -> None:
    """Raises EngineError, with the account, where it exceeds the budget."""
    if total_bytes(account) > spec.budget_bytes:
        raise EngineError(
            f"model {spec.model!r} with {spec.n_slots} slots needs {describe(account)}, and "
            f"memory.budget_bytes is {spec.budget_bytes / 1e6:.0f} MB: raise it, or take fewer slots or a "
            "smaller model"
        )


def describe(account: dict[str, int]) -> str:
    """`3412 MB (weights 2642, kv 235, ...)`."""
    parts = ", ".join(f"{purpose.replace('_', ' ')} {size / 1e6:.1f}" for purpose, size in account.items())
    return f"{total_bytes(account) / 1e6:.0f} MB ({parts})"


def describe_engine(spec: EngineSpec) -> str:
    """The account of an engine that is not made, for `vla-edge doctor`. Raises EngineError."""
    config, _ = open_weights(spec.model, spec.seed)
    device = Device()
    try:
        plan = make_plan(config, spec.n_slots, device.multiprocessors, device.shared_bytes)
        frames = FrameBuffer.create()
        account = planned_account(device, plan, frames.size_bytes)
        frames.close()
        require_budget(spec, account)
        return f"{spec.model} with {spec.n_slots} slots needs {describe(account)}"
    finally:
        device.close()
