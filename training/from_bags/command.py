"""`vla-edge train`: recordings in; weights, statistics, a policy file and the node's parameters out."""

import argparse
import json
import shlex
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypedDict

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from training import UNFINISHED
from training.from_bags import cost, policy_files
from training.from_bags.dataset import Data, make_data
from training.from_bags.episodes import BagEpisode, describe, read_episodes
from training.from_bags.tracks import find_action_topic
from training.model import TinyVla
from training.publish import write_model
from training.train import PRESET, Recipe, Training
from vla_edge_ros.actions.policy import Kind, Policy, load_policy, load_untrained_policy
from vla_edge_ros.arguments import positive, whole
from vla_edge_ros.control import settings
from vla_edge_ros.engine.presets import PRESETS, model_folder
from vla_edge_ros.errors import UserError, reason_of
from vla_edge_ros.evaluation.arguments import add_parameter_argument, given_parameters, refuse_own
from vla_edge_ros.evaluation.bags import TRUNCATED, Bag, open_bag
from vla_edge_ros.evaluation.json_shape import check
from vla_edge_ros.input import read_text
from vla_edge_ros.parameters import validate_all

STRIDE_S = 28 / 30
"""From one retained frame to the next, as `tiny-vla` was trained with."""

_MAX_DATA_BYTES = 10_000
_OWN = ("engine.model", "actions.policy_file")


class _TrainedOn(TypedDict):
    sha256: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bag", type=Path, action="append", required=True, help="a recording; may be given several times"
    )
    parser.add_argument(
        "--action-topic",
        action="append",
        required=True,
        metavar="TOPIC",
        help="JointTrajectory, JointState or Float64MultiArray; several where arm and gripper have their own",
    )
    parser.add_argument(
        "--config",
        type=Path,
        required=True,
        metavar="YAML",
        help="a policy file as in config/policies: joints, kinds, limits, period; not its statistics",
    )
    parser.add_argument("--out", type=Path, default=Path("out/train"), help="folder (default: %(default)s)")
    parser.add_argument("--topic", help="image topic of the recordings (default: the only one)")
    parser.add_argument("--instruction", help="of all recordings (default: what each of them says)")
    parser.add_argument(
        "--minutes", type=positive, default=10.0, help="stop after so long (default: %(default)g)"
    )
    parser.add_argument("--steps", type=whole(1), default=1500, help="default: %(default)s")
    parser.add_argument("--sequences", type=whole(1), default=8, help="of a step (default: %(default)s)")
    parser.add_argument("--queries", type=whole(1), default=24, help="ticks of each (default: %(default)s)")
    parser.add_argument("--seed", type=whole(0), default=0, help="default: %(default)s")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    parser.add_argument(
        "--allow-truncated", action="store_true", help="train on what is left of a recording that ends early"
    )
    add_parameter_argument(parser)


def run(args: argparse.Namespace) -> int:
    until_s = time.monotonic() + 60 * args.minutes
    _refuse_empty_and_doubled(args)
    policy = load_untrained_policy(args.config)
    given = given_parameters(args)
    refuse_own(given, _OWN, "train")
    parameters = node_parameters(policy) | given
    deployment = validate_all(parameters | {"engine.model": PRESET})
    device = _device(args.device)
    with ExitStack() as resources:
        bags = [resources.enter_context(open_bag(path)) for path in args.bag]
        _announce(bags, args, device)
        episodes = _read(bags, args, policy, deployment)
        if any(bag.truncated_after is not None for bag in bags) and not args.allow_truncated:
            print("--allow-truncated trains on what is left")
            return TRUNCATED
    data = make_data(episodes, policy, deployment, args.seed, device)
    del episodes
    _begin_or_go_on(args.out, data)
    policy_files.write_policy(args.config, data.statistics, policy, args.out)
    for line in load_policy(args.out / policy_files.POLICY_FILE).warnings:
        print(line)

    initial, origin = _initial_weights()
    recipe = Recipe(
        args.steps,
        args.sequences,
        args.queries,
        learning_rate=1e-3,
        warmup_steps=max(1, min(100, args.steps // 10)),
        seed=args.seed,
    )
    try:
        training = Training(args.out / "state", recipe, device, initial)
    except ValueError as error:
        raise UserError(str(error)) from None
    n_sharp = int(policy.dimensions[-1].kind is Kind.GRIPPER)
    print(f"begun from {origin}" if not training.step else f"going on at step {training.step}")
    errors = {"random weights": _random_error(data, deployment, recipe.seed, device)}
    if initial is not None:
        errors["before"] = data.error_of(_begun(initial, device), deployment)
    if not training.is_done:
        _tell_cost(training, data, deployment, n_sharp, args.minutes)
        training.fit(data.frames, data.trained, deployment, until_s, workers=0, n_sharp=n_sharp)
    errors["trained"] = data.error_of(training.model, deployment)
    errors |= data.constant_errors()
    return _finish(args.out, parameters, errors, training, data)


def _refuse_empty_and_doubled(args: argparse.Namespace) -> None:
    if args.instruction is not None and not args.instruction.strip():
        raise UserError("--instruction: is empty; say what the arm does, or leave it out")
    name, count = Counter(name.strip("/") for name in args.action_topic).most_common(1)[0]
    if count > 1:
        raise UserError(f"--action-topic: /{name} is named twice; name each topic once")


def node_parameters(policy: Policy) -> dict[str, object]:
    """What the node needs beside the files for a policy of another period than its own 33.3 ms."""
    period_ms = policy.action_period_ns / 1e6
    return {
        "control.period_ms": period_ms,
        "control.deadline_ms": min(33.0, period_ms),
        "camera.max_age_ms": max(100.0, 1.5 * period_ms),
        "actions.ttl_ms": max(200.0, 2.5 * period_ms),
        "actions.max_hold_ms": max(300.0, 3 * period_ms),
        "memory.stride_ticks": max(1, round(STRIDE_S * 1000 / period_ms)),
    }


def _announce(bags: Sequence[Bag], args: argparse.Namespace, device: torch.device) -> None:
    """What may be needed, by the numbers of messages alone; refuses what cannot fit."""
    n_images = 0
    for bag in bags:
        for name in args.action_topic:
            find_action_topic(bag, name)
        n_images += bag.pick_image_topic(args.topic).count
    wanted_bytes = cost.bytes_of_frames(n_images, PRESETS[PRESET].hidden_size)
    cost.require_memory(wanted_bytes, cost.available_bytes())
    print(f"{n_images} images: at most {wanted_bytes / 1e6:.0f} MB as frames, on {device}")


def _read(
    bags: Sequence[Bag], args: argparse.Namespace, policy: Policy, deployment: settings.Parameters
) -> list[BagEpisode]:
    left_out: Counter = Counter()
    episodes = [
        episode
        for bag in bags
        for episode in read_episodes(
            bag, args.action_topic, args.topic, args.instruction, policy, deployment, left_out
        )
    ]
    print(describe(episodes, args.bag))
    for reason, count in left_out.items():
        if count:
            print(f"left out {count} {reason}")
    for bag in bags:
        print("\n".join(bag.losses), end="\n" if bag.losses else "")
    return episodes


def _tell_cost(
    training: Training, data: Data, deployment: settings.Parameters, n_sharp: int, minutes: float
) -> None:
    embeddings = training.model.pooled_embeddings(data.frames)
    steps = training.steps(data.trained, embeddings, deployment)
    seconds, peak_bytes = cost.try_step(training, steps, data.frames, n_sharp)
    n_left = training.recipe.steps - training.step
    frames_mb = cost.bytes_of_frames(len(data.frames), embeddings.shape[1]) / 1e6
    print(
        f"memory: frames {frames_mb:.0f} MB, weights with gradients and moments "
        f"{cost.bytes_of_weights(training) / 1e6:.0f} MB; with a step's own {peak_bytes / 1e6:.0f} MB in all"
    )
    print(
        f"time: {seconds:.2f} s a step, {n_left} steps: about {n_left * seconds / 60:.1f} minutes; "
        f"this call stops after {minutes:g}"
    )


def _begin_or_go_on(out: Path, data: Data) -> None:
    path = out / "data.json"
    try:
        found = json.loads(read_text(path, _MAX_DATA_BYTES)) if path.exists() else {"sha256": data.sha256}
        check(found, _TrainedOn)
    except ValueError as error:
        raise UserError(f"{path}: does not say what is trained on: {error}; give another --out") from None
    if found["sha256"] != data.sha256:
        raise UserError(
            f"{path} is of other recordings, topics, parameters or another seed: give another --out, or the "
            "same options to go on"
        )
    out.mkdir(parents=True, exist_ok=True)
    n_frames, n_trained, n_held = len(data.frames), len(data.trained), len(data.held_out)
    content = {"sha256": data.sha256, "frames": n_frames, "trained": n_trained, "held_out": n_held}
    path.write_text(json.dumps(content) + "\n")


def _initial_weights() -> tuple[dict[str, Tensor] | None, str]:
    folder = model_folder(PRESET)
    if folder.is_dir():
        path = folder / "model.safetensors"
        try:
            weights = load_file(path)
            TinyVla(PRESETS[PRESET]).load_state_dict(weights)
        except (OSError, RuntimeError, SafetensorError) as error:
            raise UserError(
                f"{path}: no weights to begin from: {reason_of(error)}; restore or remove {folder}"
            ) from None
        return weights, f"the weights of {folder}"
    return None, f"random weights: {folder} is missing"


def _begun(weights: dict[str, Tensor], device: torch.device) -> TinyVla:
    model = TinyVla(PRESETS[PRESET]).to(device)
    model.load_state_dict(weights)
    return model


def _random_error(data: Data, deployment: settings.Parameters, seed: int, device: torch.device) -> float:
    torch.manual_seed(seed)
    return data.error_of(TinyVla(PRESETS[PRESET]).to(device), deployment)


def _device(name: str | None) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if name == "cuda" and not has_cuda:
        raise UserError("--device cuda: torch finds no CUDA device; leave it out to train on the CPU")
    return torch.device(name or ("cuda" if has_cuda else "cpu"))


def _warning(errors: dict[str, float]) -> str:
    """One line where the trained model is no better than what it should beat; empty where it is."""
    rivals = {name: error for name, error in errors.items() if name != "trained"}
    best = min(rivals, key=rivals.__getitem__)
    if errors["trained"] < rivals[best]:
        return ""
    return f"no better than {best} ({rivals[best]:.4f}): train for longer or on more, and move nothing by it"


def _finish(
    out: Path, parameters: dict[str, object], errors: dict[str, float], training: Training, data: Data
) -> int:
    results = {"step": training.step, "held_out_error": errors, "history": training.history}
    try:
        results_text = json.dumps(results, indent=1, allow_nan=False) + "\n"
    except ValueError:
        raise UserError(
            f"{out}: a loss or an error is not a finite number: the training has diverged, or actions are "
            "too large for it; give another --out and other recordings or another --seed"
        ) from None
    model, policy_file = out / "model", out / policy_files.POLICY_FILE
    write_model(out / "state", model)
    own = dict(zip(_OWN, map(str, (model.resolve(), policy_file.resolve())), strict=True))
    policy_files.write_node_parameters(own | parameters, out)
    (out / "results.json").write_text(results_text)
    print(f"held-out error, {len(data.held_out)} episodes, as a share of each dimension's range:")
    for name, error in errors.items():
        print(f"  {name:15} {error:.4f}")
    if warning := _warning(errors):
        print(warning)
    words = [f"--param {name}={shlex.quote(str(value))}" for name, value in (own | parameters).items()]
    print(f"{out}: written. The node: ros2 launch vla_edge_ros edge.launch.py params_file:={out}/node.yaml")
    print(f"Offline: vla-edge replay BAG {' '.join(words)}")
    if training.is_done:
        return 0
    print(
        f"time is up at step {training.step} of {training.recipe.steps}: the same command goes on from there"
    )
    return UNFINISHED
