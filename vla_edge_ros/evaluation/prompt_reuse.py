"""What a change of instruction costs, with and without prompts in the cache, and what keeping frames changes.

    python -m vla_edge_ros.evaluation.prompt_reuse [--param engine.model=qwen2.5-coder-0.5b ...]

The engine goes from one instruction to another and back.
"""

import argparse
import sys
import time
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np

from vla_edge_ros.arguments import whole
from vla_edge_ros.control import settings
from vla_edge_ros.engine.factory import make_engine
from vla_edge_ros.engine.interface import FRAME_TOKENS, MAX_ACTION_TOKENS, Engine, EngineError, PromptWork
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.arguments import add_parameter_argument, given_parameters
from vla_edge_ros.evaluation.forgetting.metrics import kl_nats
from vla_edge_ros.evaluation.forgetting.trial_model import TrialModel
from vla_edge_ros.figures import percentiles
from vla_edge_ros.memory.frame_memory import NewPrompt
from vla_edge_ros.parameters import validate_all
from vla_edge_ros.perception.frame_buffer import FrameBuffer

INSTRUCTIONS = ("put the red cup on the blue plate", "put the red cup back on the shelf")
KEPT_FRAMES = 8
_TIMEOUT_NS = 600 * 10**9


CHANGES = ("alone", "another", "back")


@dataclass(slots=True)
class Cost:
    """Of one kind of change: tokens that were written, and by change the times that it took.

    engine_ms: of the engine, 0 where it is not asked. control_us: processor time of memory's bookkeeping.
    """

    tokens: int = 0
    engine_ms: list[float] = field(default_factory=list)
    control_us: list[float] = field(default_factory=list)


def switch(parameters: settings.Parameters, n: int) -> tuple[str, dict[str, Cost]]:
    """The plan of the engine and what changes cost, each made `n` times in turn. Raises UserError.

    alone: the first instruction, where nothing is cached. another: a second one, which begins with the same
    system prompt. back: the first one again.
    """
    spec = settings.engine_spec(parameters, MAX_ACTION_TOKENS)
    first, second = _prompts(parameters)
    costs = {kind: Cost() for kind in CHANGES}
    with closing(FrameBuffer.create()) as frames, closing(make_engine(spec, frames)) as engine:
        info = engine.configure()
        memory = settings.frame_memory(parameters, MAX_ACTION_TOKENS, info.embedding_size)
        for _ in range(n):
            memory.set_prompt(0)
            for cost, tokens in zip(costs.values(), (first, second, first), strict=True):
                begun_ns = time.thread_time_ns()
                new = memory.instruct(tokens, 0)
                cost.control_us.append((time.thread_time_ns() - begun_ns) / 1e3)
                cost.engine_ms.append(_write(engine, new))
                memory.prompt_written()
                cost.tokens = len(new.tokens)
    return info.plan_id, costs


def _prompts(parameters: settings.Parameters) -> list[np.ndarray]:
    prompter = settings.Prompter(parameters)
    return [prompter.changed_to(text).tokens for text in INSTRUCTIONS]


def _write(engine: Engine, new: NewPrompt) -> float:
    """Milliseconds that the engine takes for what has to be written."""
    if new.is_cached:
        return 0.0
    engine.submit(PromptWork(0, new.tokens, new.slots, new.context_slots))
    result = engine.wait(time.monotonic_ns() + _TIMEOUT_NS)
    if result is None or result.error:
        raise EngineError(f"a prompt was not filled in: {result.error if result else 'no answer'}")
    return (result.finished_ns - result.started_ns) / 1e6


def change_by_keeping(parameters: settings.Parameters, seed: int) -> tuple[float, float]:
    """Nats by which the next action's distribution is off, after 8 frames and a change of instruction.

    Against frames that were all seen under the new instruction: of frames kept from the old one, and of
    staying with the old instruction. Frames are noise, weights seeded.
    """
    old, new = _prompts(parameters)
    n_slots = len(old) + len(new) + (2 * KEPT_FRAMES + 1) * FRAME_TOKENS + MAX_ACTION_TOKENS
    model = TrialModel(parameters["engine.model"], seed, n_slots, MAX_ACTION_TOKENS)
    random = np.random.default_rng(seed)
    pictures = random.integers(0, 256, (KEPT_FRAMES + 1, 64, 128, 3), np.uint8)
    sizes = [len(old), len(new), *[FRAME_TOKENS] * (2 * KEPT_FRAMES + 1)]
    places = np.split(np.arange(n_slots, dtype=np.int32), np.cumsum(sizes))
    (old_slots, new_slots), blocks, action_slots = places[:2], places[2:-1], places[-1]

    def see(prompt: np.ndarray, slots: np.ndarray, own: list[np.ndarray]) -> np.ndarray:
        model.fill_prompt(prompt, slots)
        for index, block in enumerate(own):
            model.run(pictures[index], np.concatenate([slots, *own[:index]]), block, action_slots)
        return np.concatenate(own)

    def act(context: np.ndarray, tokens: np.ndarray | None = None):
        return model.run(pictures[-1], context, blocks[-1], action_slots, tokens)

    kept = see(old, old_slots, blocks[:KEPT_FRAMES])
    anew = see(new, new_slots, blocks[KEPT_FRAMES:-1])
    wanted = act(np.concatenate([new_slots, anew]))
    found = [act(np.concatenate([slots, kept]), wanted.tokens) for slots in (new_slots, old_slots)]
    by_keeping, by_staying = (kl_nats(wanted.log_probabilities, one.log_probabilities) for one in found)
    return by_keeping, by_staying


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m vla_edge_ros.evaluation.prompt_reuse", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--changes", type=whole(1), default=200, help="of each kind (default: %(default)s)")
    parser.add_argument(
        "--seeds", type=whole(0), default=20, help="of weights, for what keeping frames changes"
    )
    add_parameter_argument(parser)
    args = parser.parse_args(argv)
    try:
        given = given_parameters(args)
        for prompt_slots in (0, 256):
            parameters = validate_all({"memory.prompt_slots": prompt_slots} | given)
            plan_id, costs = switch(parameters, args.changes)
            model, n_slots = parameters["engine.model"], parameters["memory.prompt_slots"]
            print(f"{model}, {plan_id}, memory.prompt_slots {n_slots}")
            for kind, cost in costs.items():
                ms, us = percentiles(cost.engine_ms), percentiles(cost.control_us)
                print(
                    f"  {kind:8}{cost.tokens:4} tokens written, engine p50 {ms['p50']:.2f}, "
                    f"p99 {ms['p99']:.2f} ms, control p50 {us['p50']:.0f}, p99 {us['p99']:.0f} us"
                )
        if args.seeds:
            found = np.array([change_by_keeping(parameters, seed) for seed in range(args.seeds)])
            for name, nats in zip(("frames kept", "the old instruction"), found.T, strict=True):
                print(f"  {name}: {nats.mean():.4f} nats from frames seen anew (max {nats.max():.4f})")
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
