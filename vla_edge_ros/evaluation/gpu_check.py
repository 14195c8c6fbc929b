"""Check and measure the CUDA engine on this machine, in steps: `python -m vla_edge_ros.evaluation.gpu_check`.

Each step is a command of its own and leaves a part, PARTS/STEP.json, so that they may be run in one call or
in several; `record` puts the parts that are there into one record and prints it beside what it must be, and
needs no GPU. A step that fails hides no other.

Exit codes: 0 all went well; 1 a step failed, or a must is missed or was not measured; 2 parts that do not
belong together, one line.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path

from rich.console import Console

from vla_edge_ros import output
from vla_edge_ros.arguments import whole
from vla_edge_ros.engine.cuda import nvidia_smi
from vla_edge_ros.engine.cuda.sources import sources_sha256
from vla_edge_ros.engine.presets import PRESETS
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.gpu_record import MUSTS, PASSES, TICKS, merge, stage_table
from vla_edge_ros.evaluation.musts import report
from vla_edge_ros.evaluation.record_parts import read_part, require_current, versions, write_pages

MODEL = "qwen2.5-coder-1.5b"
SLOTS = 4096
SIZES_PASSES = 300
FAULTS = (
    *("idle-gap", "stage-slow-once", "nan-weights", "cuda-fault", "engine-killed", "stage-slow"),
    "gpu-contention",
)
"""Of docs/faults.md: those of an engine, and the gap after which its clocks are cold."""

_PACKAGES = ("numpy", "torch", "triton", "transformers", "pycuda", "cuda-bindings", "ros-rclpy")
_PART = ("step", "sources_sha256", "device", "driver", "date", "versions", "wall_s", "exit_code", "figures")

Options = argparse.Namespace


def _tests(options: Options, folder: Path) -> tuple[int, dict]:
    return _run([sys.executable, "-m", "pytest", "-q", "test/engine_cuda/test_on_device.py"]), {}


def _passes(options: Options, folder: Path) -> tuple[int, dict]:
    return _benchmark(folder / "passes.json", options.model, options.slots, options.passes)


def _sizes(options: Options, folder: Path) -> tuple[int, dict]:
    """Every other Qwen2 preset, in short."""
    codes, figures = [], {}
    for model in sorted(PRESETS):
        if model.startswith("qwen2") and model != options.model:
            n = min(options.passes, SIZES_PASSES)
            code, figures[model] = _benchmark(folder / f"{model}.json", model, options.slots, n)
            codes.append(code)
    return max(codes, default=0), figures


def _peers(options: Options, folder: Path) -> tuple[int, dict]:
    module = ["vla_edge_ros.engine.cuda.comparison", "--model", options.model, "--slots", str(options.slots)]
    return _measured(folder / "peers.json", "-m", *module)


def _node(options: Options, folder: Path) -> tuple[int, dict]:
    """The bench's own musts are a CPU's; what it says with its exit code 1 is judged here."""
    code, figures = _measured(
        folder / "node.json",
        *("-m", "vla_edge_ros.cli", "bench", "--ticks", str(options.ticks), "--callbacks", "300"),
        *("--passes", "0", "--policy", "semantic"),
        *_node_parameters(options),
    )
    return (0 if figures else code), figures


def _faults(options: Options, folder: Path) -> tuple[int, dict]:
    words = "-m", "vla_edge_ros.cli", "inject", *FAULTS
    return _measured(folder / "faults.json", *words, *_node_parameters(options))


def _node_parameters(options: Options) -> list[str]:
    values = {
        "engine.backend": options.backend,
        "engine.model": options.model,
        "memory.slots": options.slots,
    }
    return [word for name, value in values.items() for word in ("--param", f"{name}={value}")]


def _gate(options: Options, folder: Path) -> tuple[int, dict]:
    return _measured(folder / "gate.json", "-m", "vla_edge_ros.cli", "gate", "--backend", options.backend)


STEPS: dict[str, Callable[[Options, Path], tuple[int, dict]]] = {
    "tests": _tests,
    "passes": _passes,
    "peers": _peers,
    "node": _node,
    "faults": _faults,
    "gate": _gate,
    "sizes": _sizes,
}
"""Each returns the exit code of what it ran and the figures, empty where there are none."""


def run_step(step: str, options: Options) -> int:
    """Run a step and write its part; returns its exit code. What was there from before is gone even then."""
    path = options.parts / f"{step}.json"
    output.prepare(path)
    path.unlink(missing_ok=True)
    # Of what is measured, and not of what an editor saved meanwhile.
    sources, began = sources_sha256(), time.monotonic()
    device, driver = nvidia_smi.device_and_driver() or ("no device", "none")
    with tempfile.TemporaryDirectory() as folder:
        code, figures = STEPS[step](options, Path(folder))
    part = {
        "step": step,
        "sources_sha256": sources,
        "device": device,
        "driver": driver,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": versions(_PACKAGES),
        "wall_s": round(time.monotonic() - began, 1),
        "exit_code": code,
        "figures": figures,
    }
    output.write_text(path, json.dumps(part, indent=1) + "\n")
    return code


def read_parts(folder: Path) -> dict[str, dict]:
    """The parts in `folder` by step, in the order of the steps. Raises UserError for a file that is none."""
    paths = {step: folder / f"{step}.json" for step in STEPS}
    return {step: read_part(path, step, _PART) for step, path in paths.items() if path.exists()}


def write_record(options: Options, console: Console) -> int:
    """Merge the parts into the record and print the verdicts; 0 where every must is met."""
    parts = read_parts(options.parts)
    record = merge(parts)
    require_current(record, sources_sha256(), options.parts)
    for name, peer in record.get("peers", {}).get("competitors", {}).items():
        if "failed" in peer:
            console.print(f"{name}: not counted: {peer['failed']}", markup=False, soft_wrap=True)
    console.print(stage_table(record))
    code = report(record, MUSTS, console)
    path = options.record or _record_path(record["device"])
    write_pages({path: json.dumps(record, indent=1) + "\n"}, console)
    failed = [step for step, part in parts.items() if part["exit_code"]]
    for step in failed:
        console.print(f"the step {step} ended with exit code {parts[step]['exit_code']}", style="red")
    return 1 if failed else code


def _record_path(device: str) -> Path:
    """docs/benchmarks/h200.json for an NVIDIA H200."""
    name = device.lower().removeprefix("nvidia ").replace(" ", "_")
    return Path("docs/benchmarks") / f"{name}.json"


def _benchmark(path: Path, model: str, slots: int, passes: int) -> tuple[int, dict]:
    arguments = ["--model", model, "--slots", str(slots), "--passes", str(passes)]
    return _measured(path, "-m", "vla_edge_ros.engine.cuda.benchmark", *arguments)


def _measured(path: Path, *words: str) -> tuple[int, dict]:
    """Run Python with these words and `--json path`: the exit code, and what it wrote there."""
    code = _run([sys.executable, *words, "--json", str(path)])
    try:
        return code, json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return code or 1, {}


def _run(command: Sequence[str]) -> int:
    print("$ " + " ".join(command), file=sys.stderr, flush=True)
    return subprocess.run(command, check=False).returncode


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Check and measure the CUDA engine in steps, each leaving a part of the record."
    )
    parser.add_argument(
        "steps",
        nargs="*",
        metavar="STEP",
        choices=[*STEPS, "record", []],  # the last stands for none, which argparse checks too
        help=f"{', '.join(STEPS)}, record (default: all)",
    )
    parser.add_argument("--parts", type=Path, default=Path("out/gpu_parts"), help="folder of the parts")
    parser.add_argument("--record", type=Path, help="(default: docs/benchmarks/DEVICE.json)")
    parser.add_argument("--model", choices=sorted(PRESETS), default=MODEL)
    parser.add_argument("--slots", type=whole(64), default=SLOTS)
    parser.add_argument("--passes", type=whole(1), default=PASSES)
    parser.add_argument("--ticks", type=whole(1), default=TICKS)
    parser.add_argument("--backend", default="cuda", help="of the steps node and gate; another is for trials")
    options = parser.parse_args(argv)
    console = Console()
    codes = []
    try:
        for step in options.steps or [*STEPS, "record"]:
            code = write_record(options, console) if step == "record" else run_step(step, options)
            print(f"{step}: {'done' if code == 0 else f'exit code {code}'}", file=sys.stderr, flush=True)
            codes.append(code)
    except UserError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 2
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
