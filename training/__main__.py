"""`python -m training`: roll-outs, training, evaluation, model card; a call goes on where one stopped."""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import TypedDict

import torch

from training import UNFINISHED
from training.evaluate import CONDITIONS, evaluate, in_words
from training.publish import write_card, write_model
from training.rollouts import generate
from training.train import PRESET, Recipe, Training
from vla_edge_ros.arguments import positive, whole
from vla_edge_ros.ending import exit_code
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.json_shape import check
from vla_edge_ros.input import read_text

SMOKE = {
    "episodes": 4,
    "steps": 2,
    "sequences": 2,
    "queries": 3,
    "eval_episodes": 1,
    "condition": ["reach", "remember_evicted"],
}
"""Enough to run every line in seconds; the policy that comes out can do nothing."""

_MAX_RESULTS_BYTES = 1_000_000


class _Success(TypedDict):
    value: float
    episodes: int
    ci95: list[float]


def main() -> int:
    parser = _parser()
    arguments = parser.parse_args()
    if arguments.smoke:
        parser.set_defaults(**SMOKE)
        arguments = parser.parse_args()
    return exit_code("training", lambda: _run(arguments), "the same command goes on from what is there")


def _run(arguments: argparse.Namespace) -> int:
    until_s = time.monotonic() + 60 * arguments.minutes
    recipe = Recipe(arguments.steps, arguments.sequences, arguments.queries, seed=arguments.seed)
    out = arguments.out
    data = arguments.data or out / "rollouts"
    try:
        training = Training(out, recipe, _device(arguments.device))
        if not training.is_done:
            if not generate(
                data, arguments.episodes, arguments.processes, until_s, torch.cuda.device_count()
            ):
                return _unfinished("roll-outs")
            training.run(data, until_s, workers=min(arguments.processes - 1, 16))
        if not training.is_done:
            return _unfinished(f"training, at step {training.step} of {recipe.steps}")
        if arguments.train_only:
            write_model(out, out / PRESET)
            print(f"{out / PRESET}: written; the same command without --train-only evaluates it")
            return 0
        return _finish(arguments, until_s)
    except ValueError as error:
        raise UserError(str(error)) from None


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise UserError(f"--device {name}: wanted cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"--device {name}: torch finds {torch.cuda.device_count()} CUDA devices")
    return device


def _finish(arguments: argparse.Namespace, until_s: float) -> int:
    """Evaluate what has no result yet, condition by condition, and write the model's folder with its card."""
    out = arguments.out
    model, results_path = out / PRESET, out / "results.json"
    write_model(out, model)
    results = read_results(results_path)
    wanted = arguments.condition or list(CONDITIONS)
    missing = [name for name in wanted if name not in results]
    for name, success in evaluate(str(model), arguments.eval_episodes, arguments.processes, missing):
        results[name] = success
        results_path.write_text(json.dumps(results, indent=2) + "\n")
        print(in_words(name, success), flush=True)
        if time.monotonic() > until_s and name != missing[-1]:
            n_done = sum(name in results for name in wanted)
            return _unfinished(f"evaluation, {n_done} of {len(wanted)} conditions")
    write_card(json.loads((out / "progress.json").read_text()), results, model)
    print(f"{model}: written; copied to models/tiny-vla of the repository it is the preset's")
    return 0


def read_results(path: Path) -> dict[str, dict]:
    """Of the conditions evaluated so far. Raises UserError."""
    try:
        results = json.loads(read_text(path, _MAX_RESULTS_BYTES)) if path.exists() else {}
        check(results, dict[str, _Success])
    except ValueError as error:
        raise UserError(f"{path}: holds no results: {error}; remove it to evaluate again") from None
    return results


def _unfinished(what: str) -> int:
    print(f"time is up during {what}: call again with the same options to go on")
    return UNFINISHED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m training")
    parser.add_argument("--out", type=Path, required=True, help="folder of weights, progress and results")
    parser.add_argument("--data", type=Path, help="folder of the roll-outs (default: rollouts in --out)")
    parser.add_argument("--minutes", type=positive, default=7.0, help="stop after so long (default: 7)")
    parser.add_argument("--episodes", type=whole(1), default=6000, help="of the expert (default: 6000)")
    parser.add_argument(
        "--eval-episodes", type=whole(1), default=200, help="of each condition (default: 200)"
    )
    recipe = Recipe()
    parser.add_argument("--condition", choices=list(CONDITIONS), action="append", help="default: all")
    parser.add_argument("--steps", type=whole(1), default=recipe.steps)
    parser.add_argument("--sequences", type=whole(1), default=recipe.sequences, help="prompts a step")
    parser.add_argument("--queries", type=whole(1), default=recipe.queries, help="ticks of each of them")
    parser.add_argument("--seed", type=whole(0), default=recipe.seed)
    parser.add_argument("--processes", type=whole(1), default=os.cpu_count())
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--train-only", action="store_true", help="leave the evaluation, which needs no GPU")
    parser.add_argument("--smoke", action="store_true", help="a run of seconds that learns nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
