"""`python -m training.precision MODEL`: success in closed loop with the weights rounded to fewer bits.

Arithmetic stays float32, so this is what the rounding of weights alone costs. The CUDA engine keeps them in
bfloat16. int8 and int4 are an experiment: to nearest, symmetric, a scale for each row of a matrix; vectors
stay float32.
"""

import argparse
import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from training.evaluate import CONDITIONS, evaluate, in_words
from vla_edge_ros.arguments import whole
from vla_edge_ros.engine.cuda.upload import bf16_rounded
from vla_edge_ros.share import share_directory

PRECISIONS = ("float32", "bfloat16", "int8", "int4")


def rounded(values: np.ndarray, precision: str) -> np.ndarray:
    """float32 -> float32 with the values that `precision` can hold. Raises ValueError for an unknown one."""
    if precision == "float32":
        return values
    if precision == "bfloat16":
        return bf16_rounded(values)
    if precision not in PRECISIONS:
        raise ValueError(f"precision is {precision!r}; known are {', '.join(PRECISIONS)}")
    if values.ndim < 2:
        return values
    levels = 2 ** (int(precision.removeprefix("int")) - 1) - 1
    scale = np.abs(values).max(axis=-1, keepdims=True) / levels
    scale[scale == 0] = 1
    return (np.round(values / scale) * scale).astype(np.float32)


def write_rounded(model: Path, precision: str, folder: Path) -> None:
    """A copy of the model directory with its weights rounded."""
    shutil.copytree(model, folder)
    tensors = load_file(model / "model.safetensors")
    save_file({name: rounded(v, precision) for name, v in tensors.items()}, folder / "model.safetensors")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m training.precision")
    parser.add_argument(
        "model", type=Path, nargs="?", default=share_directory() / "models/tiny-vla", help="a directory"
    )
    parser.add_argument("--episodes", type=whole(1), default=200, help="of each condition (default: 200)")
    parser.add_argument("--condition", choices=list(CONDITIONS), action="append", help="default: reach")
    parser.add_argument("--precision", choices=PRECISIONS, action="append", help="default: all")
    parser.add_argument("--processes", type=whole(1), default=os.cpu_count())
    parser.add_argument("--json", type=Path, help="write the results there too")
    arguments = parser.parse_args()
    results: dict[str, dict] = {}
    with tempfile.TemporaryDirectory() as folder:
        for precision in arguments.precision or PRECISIONS:
            model = Path(folder) / precision
            write_rounded(arguments.model, precision, model)
            names = arguments.condition or ["reach"]
            results[precision] = {}
            for name, success in evaluate(str(model), arguments.episodes, arguments.processes, names):
                results[precision][name] = success
                print(f"{precision:9} {in_words(name, success)}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
