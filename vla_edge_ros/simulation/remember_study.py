"""How often *remember* succeeds, by eviction policy and size of memory.

    python -m vla_edge_ros.simulation.remember_study [--episodes 200]

The same episodes for every policy. `full` is a memory that forgets nothing, `at_once` one that holds the
frame at hand alone; one place of four is right, so 0.25 is chance. A run that is there goes on.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from vla_edge_ros import output
from vla_edge_ros.arguments import whole
from vla_edge_ros.ending import exit_code
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.forgetting.pool import run_local
from vla_edge_ros.evaluation.forgetting.remembered import AGAINST, summary, with_remembered
from vla_edge_ros.evaluation.forgetting.results import RowFile
from vla_edge_ros.evaluation.forgetting.trial_model import SEEDED, weights_digest
from vla_edge_ros.evaluation.run_document import machine
from vla_edge_ros.figures import in_words, proportion
from vla_edge_ros.memory.policies import EMBEDDINGS, POLICIES, embedding_for
from vla_edge_ros.simulation.model_actor import DEPLOYMENT
from vla_edge_ros.simulation.remember_trial import LATER_S, Condition, key_of, missing, run_job

ROWS, FIGURES = "rows.jsonl", "remember.json"
FULL, AT_ONCE = Condition("fifo", "auto", 40), Condition("fifo", "auto", 1)
"""Forty strides are longer than an episode of whatever lateness."""


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    kept = f"{args.out / ROWS} has the episodes that were done: the same command goes on from there"
    return exit_code("remember_study", lambda: _run(args, Console()), kept)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m vla_edge_ros.simulation.remember_study", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--model", default="tiny-vla", help="preset or directory (default: tiny-vla)")
    parser.add_argument(
        "--policies",
        type=_policies,
        default=_policies("all"),
        help="by commas, POLICY or POLICY@EMBEDDING (default: all)",
    )
    parser.add_argument("--capacities", type=_counts, default=(4, 8, 14), help="blocks (default: 4,8,14)")
    parser.add_argument("--episodes", type=whole(1), default=200, help="of each condition (default: 200)")
    parser.add_argument("--first-seed", type=whole(0), default=0)
    parser.add_argument(
        "--late", action="store_true", help=f"have the cue come {LATER_S[0]:g} to {LATER_S[1]:g} s later"
    )
    parser.add_argument(
        "--wait-every",
        type=whole(1),
        default=DEPLOYMENT["memory.stride_ticks"],
        help="until the lamp, act on every n-th tick (default: once a stride)",
    )
    parser.add_argument(
        "--so-far", action="store_true", help="run nothing: sum up the episodes that are there"
    )
    parser.add_argument("--workers", type=whole(1), default=os.cpu_count(), help="processes (default: cores)")
    parser.add_argument("--out", type=Path, default=Path("out/remember"), help="folder of rows and figures")
    parser.add_argument("--into", type=Path, help="figures of `vla-edge evaluate` to add the success to")
    return parser


def _run(args: argparse.Namespace, console: Console) -> int:
    for path in (args.out / ROWS, args.out / FIGURES):
        output.prepare(path)
    if args.into:
        _with_success(args.into, {"policies": {}})
        output.prepare(args.into)
    weights = _trained_weights(args.model)
    tried = [Condition(p, e, n, args.late) for p, e in args.policies for n in args.capacities]
    references = [Condition(c.policy, c.embedding, c.capacity, args.late) for c in (FULL, AT_ONCE)]
    with RowFile(args.out / ROWS, key_of) as rows:
        done = {key_of(row) for row in rows.rows}
        seeds = range(args.first_seed, args.first_seed + args.episodes)
        jobs = list(missing(args.model, weights, args.wait_every, seeds, [*references, *tried], done))
        jobs = [] if args.so_far else jobs
        errors = []
        with Progress(console=console) as progress:
            task = progress.add_task("episodes", total=sum(len(job.conditions) for job in jobs))
            for outcome in run_local(jobs, run_job, args.workers):
                rows.append(outcome.rows)
                progress.advance(task, len(outcome.job.conditions))
                if outcome.error:
                    errors.append(f"{outcome.job.name}: {outcome.error}")
        wanted = (weights, args.wait_every, args.late)
        own = [
            row
            for row in rows.rows
            if (row["weights"], row["wait_every"], row["is_late"]) == wanted and row["seed"] in seeds
        ]
    document = remembered(own, args.policies, args.capacities) | {
        "machine": machine(),
        "weights": weights,
        "wait_every": args.wait_every,
        "stride_ticks": DEPLOYMENT["memory.stride_ticks"],
        "cue_later_s": list(LATER_S) if args.late else None,
    }
    output.write_text(args.out / FIGURES, json.dumps(document, indent=1))
    if args.into:
        output.write_text(args.into, json.dumps(_with_success(args.into, document), indent=1))
    console.print(_table(document))
    for line in errors:
        console.print(line, style="yellow", highlight=False, markup=False, soft_wrap=True)
    return 1 if errors else 0


def _with_success(path: Path, document: dict) -> dict:
    try:
        return with_remembered(json.loads(path.read_text(encoding="utf-8")), document)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"--into {path}: no figures of `vla-edge evaluate` ({type(error).__name__}: {error}); name its "
            f"forgetting.json, or leave --into out: the figures are in {FIGURES} in any case"
        ) from None


def remembered(rows: Sequence[dict], policies: Sequence[tuple[str, str]], capacities: Sequence[int]) -> dict:
    """`summary` of the policies, called POLICY@EMBEDDING where that is not their own, and more.

    full, at_once: the references. with_cue, without_cue: success by whether memory held a frame of the cue
    when the lamp turned green, whatever the policy and capacity.
    """
    named = [row | {"policy": _name(row["policy"], row["embedding"])} for row in rows]
    names = [_name(policy, embedding_for(policy, embedding)) for policy, embedding in policies]
    document = summary(named, names, capacities)
    for name, reference in (("full", FULL), ("at_once", AT_ONCE)):
        own = [
            row["has_succeeded"]
            for row in rows
            if (row["policy"], row["capacity"]) == (reference.policy, reference.capacity)
        ]
        document[name] = proportion(own)
    for name, is_held in (("with_cue", True), ("without_cue", False)):
        own = [row for row in named if row["capacity"] in capacities and row["policy"] in names]
        document[name] = proportion([row["has_succeeded"] for row in own if row["is_cue_held"] == is_held])
    return document | {"chance": 0.25}


def _trained_weights(model: str) -> str:
    """Their digest. Raises EngineError for a model that is refused, and UserError for seeded weights."""
    digest = weights_digest(model)
    if digest == SEEDED:
        raise UserError(
            f"--model {model}: its weights are seeded: a model that was not trained remembers nothing"
        )
    return digest


def _name(policy: str, embedding: str) -> str:
    return policy if embedding == embedding_for(policy) else f"{policy}@{embedding}"


def _table(document: dict) -> Table:
    table = Table(box=None, title=f"{document['seeds']} episodes each")
    heads = ["policy", *(f"{n} blocks" for n in document["capacities"]), "all", *(f"- {n}" for n in AGAINST)]
    for head in heads:
        table.add_column(head, justify="left" if head == "policy" else "right")
    for name, figures in document["policies"].items():
        table.add_row(
            name,
            *(_proportion(p) for p in figures["remember_success_by_capacity"].values()),
            _within(figures["remember_success"], figures["remember_success_ci95"]),
            *(_difference(figures.get(f"remember_minus_{other}")) for other in AGAINST),
        )
    for name in ("full", "at_once"):
        table.add_row(name, *[""] * len(document["capacities"]), _proportion(document[name]))
    return table


def _proportion(found: dict) -> str:
    return _within(found["value"], found["ci95"])


def _difference(found: dict | None) -> str:
    return "" if found is None else _within(found["mean"], found["ci95"])


def _within(mean: float | None, interval: Sequence[float] | None) -> str:
    return in_words(mean, 2) + (f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else "")


def _policies(text: str) -> tuple[tuple[str, str], ...]:
    found = []
    for part in text.split(","):
        policy, _, embedding = part.strip().partition("@")
        if policy == "all":
            found += [(name, "auto") for name in POLICIES]
            continue
        if policy not in POLICIES:
            raise argparse.ArgumentTypeError(
                f"{policy!r} is no policy: known are {', '.join(POLICIES)}, or all"
            )
        if embedding not in ("", *EMBEDDINGS):
            raise argparse.ArgumentTypeError(
                f"{embedding!r} is no embedding: known are {', '.join(EMBEDDINGS)}"
            )
        found.append((policy, embedding or "auto"))
    return tuple(dict.fromkeys(found))


def _counts(text: str) -> tuple[int, ...]:
    return tuple(sorted({whole(1)(part) for part in text.split(",")}))


if __name__ == "__main__":
    sys.exit(main())
