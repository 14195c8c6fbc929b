"""`vla-edge gate --backend cuda`: is the arithmetic of the CUDA engine what it claims?

Operators against float64, stream and tokens against Hugging Face in float32 on the same bf16 weight values,
bits against themselves; and five planted faults, each of which must fail these checks. docs/kernels.md says
what each check compares.
"""

import argparse
import json
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

from rich.console import Console
from rich.table import Table

from vla_edge_ros import output
from vla_edge_ros.engine.factory import cuda_obstacle
from vla_edge_ros.engine.interface import EngineError
from vla_edge_ros.engine.weights import open_weights

MODEL = "qwen2.5-coder-1.5b"
N_SLOTS = 4096
N_PASSES = 200
N_REPEATS = 1000

_RATIOS = ("operators", "stream", "slots")


def run(args: argparse.Namespace) -> int:
    """Run the gate and print its table; 0 if it passed, 1 if not. Raises EngineError if it could not run."""
    require_device()
    if args.json is not None:
        output.prepare(args.json)
    report = run_gate(MODEL if args.model is None else str(args.model), args.seed)
    if args.json is not None:
        output.write_text(args.json, json.dumps(report, indent=1) + "\n")
    print_table(report)
    return 0 if report["passed"] else 1


def require_device() -> None:
    """Raises EngineError, in one line, where the engine or what it is compared with cannot run."""
    obstacle = cuda_obstacle()
    if obstacle:
        raise EngineError(f"backend cuda cannot run: {obstacle}; --backend numpy needs no GPU")
    try:
        import torch
        import transformers
    except ImportError as error:
        raise EngineError(
            f"{error.name} is not installed: the gate compares with Hugging Face, "
            "so install torch and transformers (the package's `test` extra)"
        ) from None
    if not torch.cuda.is_available():
        raise EngineError(
            f"torch {torch.__version__} finds no GPU: the references run there too, so install torch for CUDA"
        )
    transformers.utils.logging.set_verbosity_error()


def run_gate(model: str, seed: int) -> dict:
    """The report of `Examination` with `passed`, `token_agreement` and what was examined, and on what.

    Raises EngineError for a refused model and for a device that cannot hold it.
    """
    from vla_edge_ros.engine.cuda.benchmark import sources_sha256
    from vla_edge_ros.engine.cuda.device import Device
    from vla_edge_ros.engine.cuda.gate_examination import Examination
    from vla_edge_ros.engine.cuda.gate_passes import Passes
    from vla_edge_ros.engine.cuda.gate_probe import GpuProbe
    from vla_edge_ros.engine.cuda.gate_weights import read_tensors
    from vla_edge_ros.engine.cuda.tuning import plan_of_device

    began = time.perf_counter()
    config, weights = open_weights(model, seed)
    with ExitStack() as stack:
        # Before torch: the device's context is made with a blocking wait, and torch joins it.
        device = Device()
        stack.callback(_try_to, device.close)
        plan, _ = plan_of_device(device, config, N_SLOTS)
        say = Console(stderr=True).print
        say("weights")
        tensors = read_tensors(config, weights, "cuda")
        read = time.perf_counter()
        probe = GpuProbe(device, plan, tensors)
        stack.callback(_try_to, probe.close)
        opened = time.perf_counter()
        passes = Passes.draw(config, plan.n_slots, N_PASSES, seed)
        report = Examination(config, tensors, passes, probe).report(N_REPEATS, say)
        about = {
            "backend": "cuda",
            "model": model,
            "seed": seed,
            "device": device.name,
            "driver_cuda": device.driver_version,
            "plan_id": probe.plan_id,
            "n_slots": plan.n_slots,
            "passes": N_PASSES,
            "sources_sha256": sources_sha256(),
        }
    report["seconds"] |= {
        "weights": round(read - began, 2),
        "engine": round(opened - read, 2),
        "whole": round(time.perf_counter() - began, 2),
    }
    return conclude(report) | about | report


def _try_to(close: Callable[[], None]) -> None:
    # A device that failed cannot be closed, and must not take the report of its failure with it.
    with suppress(Exception):
        close()


def conclude(report: dict) -> dict:
    """`passed`: all checks passed, all faults were detected; `token_agreement`: None where it failed."""
    rows = [*report["checks"].values(), *report["faults"].values()]
    tokens = report["checks"].get("tokens", {})
    return {
        "passed": all(row["passed"] for row in rows),
        "token_agreement": tokens.get("token_agreement"),
    }


def print_table(report: dict) -> None:
    table = Table("check", "found", "wanted", "verdict")
    table.title = (
        f"{report['model']}, {report['n_slots']} slots, {report['passes']} passes, {report['plan_id']}"
    )
    for name, row in report["checks"].items():
        table.add_row(name, *_figures(row), "passed" if row["passed"] else "FAILED")
    for name, row in report["faults"].items():
        found, wanted = _fault_figures(row)
        table.add_row(f"planted: {name}", found, wanted, "detected" if row["passed"] else "NOT DETECTED")
    console = Console()
    console.print(table)
    for name in ("stream, prefilled", "stream, decoded"):
        row = report["checks"].get(name, {})
        if "likeness_of_bf16" in row:
            console.print(f"{name}: {_likeness(row)}", highlight=False, soft_wrap=True)
    console.print(f"{report['seconds']['whole']:.0f} s")
    console.print("gate passed" if report["passed"] else "gate FAILED")


def _figures(row: dict) -> tuple[str, str]:
    """What a check found, and what was wanted."""
    if "failure" in row:
        return row["failure"], ""
    if "limit" in row:
        return f"{row['error']:.1e}", f"<= {row['limit']:.1e}"
    if "token_agreement" in row:
        found = (
            f"{row['token_agreement']:.2%} of {row['clear_share']:.1%} clear, divergence at "
            f"{row['largest_margin_of_a_first_divergence']:.3f}"
        )
        return found, ">= 99.9% of >= 60%, <= 0.1"
    if "distinct" in row:
        return f"{row['distinct']} results", "1"
    if "unequal" in row:
        return f"{len(row['unequal'])} of {row['passes']} with other bits", "0"
    return f"{row['tokens']} tokens", ""


def _fault_figures(row: dict) -> tuple[str, str]:
    """How far outside its limits a fault lies, as error over limit."""
    if "failure" in row:
        return row["failure"], ""
    found = [
        f"{where}: " + ", ".join(f"{name} {ratio:.1f}" for name, ratio in judged.items() if name in _RATIOS)
        for where, judged in row.items()
        if isinstance(judged, dict)
    ]
    return "; ".join(found), "one > 1 x limit"


def _likeness(row: dict) -> str:
    from vla_edge_ros.engine.cuda.gate_checks import PEER_COSINE, PEER_MAX_ABS

    ours, theirs = row, row["likeness_of_bf16"]
    return (
        f"cosine >= {ours['least_cosine']:.5f} (Hugging Face in bf16 {theirs['least_cosine']:.5f}, "
        f"vla-edge-backend asks {PEER_COSINE}); max abs after the norm {ours['max_abs_after_norm']:.3f} "
        f"(Hugging Face in bf16 {theirs['max_abs_after_norm']:.3f}, vla-edge-backend asks {PEER_MAX_ABS})"
    )
