"""Is the arithmetic what it claims? The engine against Hugging Face, and against an oracle that forgets.

The same checks run on engines with planted faults, each of which must fail them: a gate that cannot fail
says nothing.
"""

import argparse
import importlib
import json
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from vla_edge_ros import output
from vla_edge_ros.arguments import whole
from vla_edge_ros.engine.hugging_face import HuggingFaceReference, export_checkpoint
from vla_edge_ros.engine.interface import FRAME_TOKENS, MAX_ACTION_TOKENS, FrameWork
from vla_edge_ros.engine.model_config import ModelConfig
from vla_edge_ros.engine.numpy_decoder import NumpyDecoder
from vla_edge_ros.engine.oracle import ForgettingOracle
from vla_edge_ros.engine.presets import PRESETS
from vla_edge_ros.engine.recording import Fault, RecordedEngine
from vla_edge_ros.engine.weights import EMBEDDING, SeededWeights, open_weights, read_vision

TOLERANCE = 1e-5
"""Largest relative L2 error of the states after any layer, in float32."""

_FRAMES = 4
_PASSES = 10
"""Through a memory of four frames."""


def _leave_a_slot_unread(decoder: NumpyDecoder, work: FrameWork) -> None:
    # RoPE sees differences of positions only, so without the first slot all else stays as it was.
    work.context_slots = work.context_slots[1:]


def _shift_positions_by_one(decoder: NumpyDecoder, work: FrameWork) -> None:
    n = len(work.context_slots)
    for table in (decoder.cosines, decoder.sines):
        table[n:-1] = table[n + 1 :].copy()


def _drop_a_bias(decoder: NumpyDecoder, work: FrameWork) -> None:
    decoder.weights["qkv_bias"][-1, -decoder.config.kv_size :] = 0


def _swap_keys_and_values(decoder: NumpyDecoder, work: FrameWork) -> None:
    config = decoder.config
    keys = slice(config.query_size, config.query_size + config.kv_size)
    values = slice(config.query_size + config.kv_size, None)
    for weights in (decoder.weights["qkv"][0], decoder.weights["qkv_bias"][0]):
        weights[keys], weights[values] = weights[values].copy(), weights[keys].copy()


FAULTS: dict[str, Fault] = {
    "one slot unread": _leave_a_slot_unread,
    "positions off by one": _shift_positions_by_one,
    "a bias dropped": _drop_a_bias,
    "K and V swapped": _swap_keys_and_values,
}


def compare_with_hugging_face(directory: Path, seed: int, plant: Fault | None = None) -> dict:
    """A prompt, retained frames and a pass of 32 + 8 tokens, against one causal forward of the reference.

    Returns the largest relative L2 error after any layer over prefilled and over decoded tokens, whether
    every action token is the reference's argmax, the largest difference of a top probability, and `passed`.
    """
    config, weights = open_weights(str(directory), seed)
    reference = HuggingFaceReference(directory)
    engine = RecordedEngine(str(directory), seed, n_slots=256, policy="fifo")
    prompt = _random_prompt(config, seed)
    blocks = [engine.fill_prompt(prompt)]
    for _ in range(_FRAMES - 1):
        blocks.append([states[:FRAME_TOKENS] for states in engine.run_pass().layers])
    last = engine.run_pass(plant)
    blocks.append(last.layers)
    found = [np.concatenate(layer) for layer in zip(*blocks, strict=True)]

    inputs = [reference.embed_tokens(prompt)]
    inputs += [reference.embed_frame(frame, weights) for frame in engine.frames.given]
    inputs.append(reference.embed_tokens(np.concatenate([[config.action_start], last.tokens[:-1]])))
    wanted = reference.run(np.concatenate(inputs))
    decoded = slice(-MAX_ACTION_TOKENS, None)
    prefilled = slice(None, -MAX_ACTION_TOKENS)
    logits = wanted.logits[decoded, config.first_action :].astype(np.float64)
    top = 1 / np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)
    report = {
        "prefill_relative_l2": _largest_error(found, wanted.layers, prefilled),
        "decode_relative_l2": _largest_error(found, wanted.layers, decoded),
        "argmax_equal": bool((logits.argmax(axis=1) + config.first_action == last.tokens).all()),
        "top_probability_difference": float(np.abs(top - last.top_probability).max()),
    }
    report["passed"] = (
        max(report["prefill_relative_l2"], report["decode_relative_l2"]) <= TOLERANCE
        and report["argmax_equal"]
        and report["top_probability_difference"] <= 1e-4
    )
    return report


def compare_with_oracle(model: str, seed: int) -> dict:
    """Passes through a memory of four frames that forgets by similarity, against `ForgettingOracle`.

    Returns the number of evictions, the largest relative L2 error after the last layer of any prefilled and
    of any decoded block, whether every action token is the oracle's argmax, and `passed`.
    """
    config, weights = open_weights(model, seed)
    embedder = read_vision(weights, config.hidden_size)
    rows = weights.read(EMBEDDING, np.empty((config.vocab_size, config.hidden_size), np.float32))
    prompt = _random_prompt(config, seed)
    n_slots = len(prompt) + 4 * FRAME_TOKENS + MAX_ACTION_TOKENS
    engine = RecordedEngine(model, seed, n_slots, policy="semantic")
    oracle = ForgettingOracle(config, weights)
    found = [engine.fill_prompt(prompt)[-1]]
    prompt_block = oracle.append(rows[prompt], [])
    retained: dict[int, int] = {}
    tokens, n_evicted = [], 0
    for _ in range(_PASSES):
        computed = engine.run_pass()
        for frame in computed.evicted:
            del retained[frame]
        n_evicted += len(computed.evicted)
        visible = [prompt_block, *retained.values()]
        block = oracle.append(embedder.embed(engine.frames.given[-1]), visible)
        fed = np.concatenate([[config.action_start], computed.tokens[:-1]])
        oracle.append(rows[fed], [*visible, block])
        retained[computed.frame] = block
        found += [computed.layers[-1][:FRAME_TOKENS], computed.layers[-1][FRAME_TOKENS:]]
        tokens.append(computed.tokens)
    wanted = oracle.last_layer_states()
    errors = [_relative_l2(a, b) for a, b in zip(found, wanted, strict=True)]
    prefill, decode = max(errors[0], *errors[1::2]), max(errors[2::2])
    argmax = [oracle.action_logits(states).argmax(axis=1) + config.first_action for states in wanted[2::2]]
    argmax_equal = bool((np.array(argmax) == np.array(tokens)).all())
    return {
        "evictions": n_evicted,
        "prefill_relative_l2": prefill,
        "decode_relative_l2": decode,
        "argmax_equal": argmax_equal,
        "passed": max(prefill, decode) <= TOLERANCE and argmax_equal,
    }


def forgotten_context(model: str, seed: int) -> list[float]:
    """What the cache still holds of frames that were evicted: the difference that they make to its keys.

    Returns, for each layer, the relative L2 difference between the keys in a memory of four frames that
    forgot all others, and those in a cache that never saw the others. Layer 0 gives exactly 0:
    its keys depend on their own token alone. A deeper layer's states saw what was there when they were
    computed.
    """
    config, _ = open_weights(model, seed)
    prompt = _random_prompt(config, seed)
    n_slots = len(prompt) + 4 * FRAME_TOKENS + MAX_ACTION_TOKENS
    lived = RecordedEngine(model, seed, n_slots, policy="semantic")
    lived.fill_prompt(prompt)
    for _ in range(_PASSES):
        lived.run_pass()
    kept = [lived.frames.given[index - 1] for index in lived.retained()]
    fresh = RecordedEngine(model, seed, n_slots, policy="semantic", frames=kept)
    fresh.fill_prompt(prompt)
    for _ in kept:
        fresh.run_pass()
    return [_relative_l2(a, b) for a, b in zip(lived.cached_keys(), fresh.cached_keys(), strict=True)]


def random_config(seed: int) -> ModelConfig:
    """A small geometry: 1 to 4 KV heads with 1 to 6 query heads each, tied or not, any base and epsilon."""
    random = np.random.default_rng(seed)
    kv_heads, group = int(random.integers(1, 5)), int(random.integers(1, 7))
    head_dim = int(random.choice([8, 16, 32, 64]))
    heads = kv_heads * group
    return ModelConfig(
        vocab_size=int(random.integers(520, 900)),
        hidden_size=heads * head_dim if seed % 2 else 16 * int(random.integers(4, 16)),
        intermediate_size=16 * int(random.integers(4, 32)),
        num_hidden_layers=int(random.integers(2, 6)),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rope_theta=float(random.choice([1e4, 1e5, 1e6])),
        rms_norm_eps=float(random.choice([1e-6, 1e-5])),
        tie_word_embeddings=bool(seed % 3),
    )


def run_gate(n_configurations: int = 4, seed: int = 0, directory: Path | None = None) -> dict:
    """Gate preset `tiny`, random configurations and, where one is given, a model directory.

    Returns `passed`, `seed`, `tolerance`, `models` (a report for each model and what it is compared with) and
    `faults` (by name, the report of the engine that has it, and whether it was `detected`) and
    `forgotten_context` (of `tiny`, by layer). Raises EngineError where torch or transformers is missing, or a
    model is refused.
    """
    if directory is not None:
        open_weights(str(directory), seed)
    configs = {"tiny": PRESETS["tiny"]}
    configs |= {f"random {seed + n}": random_config(seed + n) for n in range(n_configurations)}
    models = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, config in configs.items():
            exported = Path(folder) / name
            exported.mkdir()
            export_checkpoint(exported, config, SeededWeights(config, seed))
            models[f"{name} / Hugging Face"] = compare_with_hugging_face(exported, seed)
            models[f"{name} / oracle"] = compare_with_oracle(str(exported), seed)
        if directory is not None:
            models[f"{directory} / Hugging Face"] = compare_with_hugging_face(directory, seed)
        difference = forgotten_context(str(Path(folder) / "tiny"), seed)
        faults = {}
        for name, plant in FAULTS.items():
            report = compare_with_hugging_face(Path(folder) / "tiny", seed, plant)
            faults[name] = report | {"detected": not report["passed"]}
    return {
        "passed": all(report["passed"] for report in models.values())
        and all(report["detected"] for report in faults.values())
        and difference[0] == 0.0,
        "seed": seed,
        "tolerance": TOLERANCE,
        "models": models,
        "faults": faults,
        "forgotten_context": difference,
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--configurations", type=whole(0), default=4, metavar="N", help="numpy: random geometries (4)"
    )
    parser.add_argument(
        "--seed", type=whole(0), default=0, help="of geometries, weights, prompts and frames (0)"
    )
    parser.add_argument(
        "--backend", choices=("numpy", "cuda"), default="numpy", help="the engine to gate (numpy)"
    )
    parser.add_argument(
        "--model",
        type=Path,
        metavar="DIR",
        help="numpy: also gate this Hugging Face directory; cuda: gate this directory or preset "
        "(qwen2.5-coder-1.5b)",
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the report there")


def run(args: argparse.Namespace) -> int:
    """Run the gate and print its table; 0 if it passed, 1 if not. Raises EngineError if it could not run."""
    if args.backend == "cuda":
        return importlib.import_module("vla_edge_ros.engine.cuda.gate").run(args)
    if args.json is not None:
        output.prepare(args.json)
    report = run_gate(args.configurations, args.seed, args.model)
    if args.json is not None:
        output.write_text(args.json, json.dumps(report, indent=2) + "\n")
    _print_table(report)
    return 0 if report["passed"] else 1


def _print_table(report: dict) -> None:
    table = Table("largest relative L2 error", "prefill", "decode", "argmax", "verdict")
    table.title = f"float32, limit {report['tolerance']:.0e}"
    for name, row in report["models"].items():
        table.add_row(name, *_figures(row), "passed" if row["passed"] else "FAILED")
    for name, row in report["faults"].items():
        table.add_row(f"planted: {name}", *_figures(row), "detected" if row["detected"] else "NOT DETECTED")
    console = Console()
    console.print(table)
    console.print(
        "keys after evictions, against a cache that never saw the evicted frames, by layer: "
        + ", ".join(f"{difference:.1e}" for difference in report["forgotten_context"]),
        highlight=False,
        soft_wrap=True,
    )
    console.print("gate passed" if report["passed"] else "gate FAILED")


def _figures(row: dict) -> tuple[str, str, str]:
    argmax = "equal" if row["argmax_equal"] else "differs"
    return f"{row['prefill_relative_l2']:.1e}", f"{row['decode_relative_l2']:.1e}", argmax


def _random_prompt(config: ModelConfig, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.integers(0, config.action_start, int(random.integers(20, 70))).astype(np.int32)


def _largest_error(found: list[np.ndarray], wanted: list[np.ndarray], tokens: slice) -> float:
    return max(_relative_l2(a[tokens], b[tokens]) for a, b in zip(found, wanted, strict=True))


def _relative_l2(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))
