"""`vla-edge evaluate`: recordings x policies x capacities x seeds, in processes of this machine or on Ray."""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Collection, Iterator
from dataclasses import astuple, replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from vla_edge_ros import output
from vla_edge_ros.engine.tokenizer import load_tokenizer
from vla_edge_ros.errors import UserError, printable
from vla_edge_ros.evaluation.bags import BagRefused
from vla_edge_ros.evaluation.forgetting import results
from vla_edge_ros.evaluation.forgetting.footage import recordings_in
from vla_edge_ros.evaluation.forgetting.jobs import Job, Plan, run_job
from vla_edge_ros.evaluation.forgetting.kept_footage import Kept, keep, load_footage
from vla_edge_ros.evaluation.forgetting.page import page
from vla_edge_ros.evaluation.forgetting.pool import run_local, run_on_ray
from vla_edge_ros.evaluation.forgetting.remembered import read_remembered, with_remembered
from vla_edge_ros.evaluation.forgetting.trial_model import weights_digest
from vla_edge_ros.evaluation.run_document import machine
from vla_edge_ros.figures import counted, in_words
from vla_edge_ros.memory.benchmark import FULL_EMBEDDING, eviction_cost_us
from vla_edge_ros.memory.policies import POLICIES

ROWS, FIGURES, TABLE = "rows.jsonl", "forgetting.json", "rows.parquet"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recordings", nargs="+", type=Path, help="recordings, or folders of them")
    parser.add_argument("--topic", help="image topic of the recordings (default: the only one)")
    parser.add_argument(
        "--policies", type=_policies, default=POLICIES, help="eviction policies by commas (default: all)"
    )
    parser.add_argument(
        "--capacities", type=_counts, default=(4, 8, 16), help="frames of memory (default: 4,8,16)"
    )
    parser.add_argument("--seeds", type=_count, default=20, help="seeds from 0 on (default: %(default)s)")
    parser.add_argument("--frames", type=_count, default=32, help="passes of a trial (default: %(default)s)")
    parser.add_argument("--model", default="tiny", help="preset or Hugging Face folder (default: tiny)")
    parser.add_argument(
        "--no-positions", action="store_true", help="turn RoPE off: a control, see docs/forgetting.md"
    )
    parser.add_argument("--workers", type=_count, default=os.cpu_count(), help="processes (default: cores)")
    parser.add_argument(
        "--address",
        help="a Ray cluster instead of processes: `auto`, or HOST:PORT; several machines need --out and the "
        "model, by its absolute path, on a file system that they share",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("out/evaluate"), help="folder of rows; a run that is there goes on"
    )
    parser.add_argument(
        "--report", type=Path, metavar="PATH", help="page to write (default: OUT/report.html)"
    )
    parser.add_argument(
        "--remembered",
        type=Path,
        metavar="PATH",
        help="take up the success of `python -m vla_edge_ros.simulation.remember_study`: its remember.json",
    )
    parser.add_argument(
        "--parquet", action="store_true", help="also write the rows as Parquet (needs pyarrow)"
    )


def run(args: argparse.Namespace) -> int:
    console = Console()
    report_path = args.report or args.out / "report.html"
    for path in (args.out / ROWS, args.out / FIGURES, report_path):
        output.prepare(path)
    # What is missing or wrong is said before the work begins.
    remembered = read_remembered(args.remembered) if args.remembered else None
    if args.parquet:
        import pyarrow  # noqa: F401
    if args.address is not None:
        import ray  # noqa: F401
    for capacity in args.capacities:
        if capacity >= args.frames:
            raise UserError(
                f"--capacities {capacity}: with --frames {args.frames} nothing would be forgotten; "
                "ask for fewer frames of memory, or longer trials"
            )
    load_tokenizer(args.model, 1024)
    weights = weights_digest(args.model)
    plan = Plan(args.model, args.frames, has_positions=not args.no_positions, weights=weights)
    with results.RowFile(args.out / ROWS) as rows:
        try:
            return _evaluate(args, plan, rows, remembered, report_path, console)
        except (KeyboardInterrupt, SystemExit):
            with contextlib.suppress(OSError):  # a closed terminal
                print(
                    f"stopped: {counted(len(rows.rows), 'trial')} kept in {printable(str(args.out / ROWS))}; "
                    "the same command goes on from there",
                    file=sys.stderr,
                )
            raise


def _evaluate(
    args: argparse.Namespace,
    plan: Plan,
    rows: results.RowFile,
    remembered: dict | None,
    report_path: Path,
    console: Console,
) -> int:
    kept, refused = _read_recordings(args, console)
    jobs = list(_missing(plan, kept, args, {results.key_of(row) for row in rows.rows}))
    n_cells = len(kept) * len(args.capacities) * args.seeds * len(args.policies)
    n_missing = sum(len(job.policies) for job in jobs)
    console.print(f"{n_cells} trials, of which {n_cells - n_missing} are there already", highlight=False)
    given_up = {job.name: error for job, error in _work(jobs, rows, args, console)}
    errors = [f"{name}: {error}" for name, error in given_up.items()]
    wanted = {*_keys(plan, kept, args)}
    own = [row for row in rows.rows if results.key_of(row) in wanted]
    if not own:
        raise UserError(f"no trial came to an end: {errors[0] if errors else 'nothing was asked for'}")
    document = {"machine": machine(), **results.document(own), "refused": refused, "given_up": given_up}
    for name, figures in document["policies"].items():
        cost = eviction_cost_us(name, FULL_EMBEDDING)["choose"]
        figures |= {"victim_us_p50": cost["p50"], "victim_us_p99": cost["p99"]}
    if remembered:
        document = with_remembered(document, remembered)
    output.write_text(args.out / FIGURES, json.dumps(document, indent=1))
    if args.parquet:
        results.write_parquet(args.out / TABLE, own)
    n_policies = len(document["policies"])
    policies = "one policy" if n_policies == 1 else f"{n_policies} policies"
    title = f"Forgetting: {policies} on {counted(len(kept), 'recording')}"
    model = plan.model if plan.has_positions else f"{plan.model} without positions"
    facts = (
        f"{', '.join(document['bags'])} · model {model} · {counted(document['seeds'], 'seed')} · "
        f"{plan.frames} frames a trial · memories of {', '.join(map(str, document['capacities']))} frames"
        f"{_named(' · refused: ', [Path(path).name for path in refused])}{_named(' · given up: ', given_up)}"
    )
    footage = {name: load_footage(found.file) for name, found in kept.items()}
    output.write_text(report_path, page(title, facts, own, document, footage))
    console.print(_table(document))
    console.print(f"written: {args.out / FIGURES} and {report_path}", soft_wrap=True, highlight=False)
    for line in (*refused.values(), *errors):
        console.print(line, style="yellow", highlight=False, markup=False, soft_wrap=True)
    return 1 if errors else 0


def _read_recordings(args: argparse.Namespace, console: Console) -> tuple[dict[str, Kept], dict[str, str]]:
    """By name, the footage of each recording that does not fit into memory; and why each other is refused.

    Raises BagRefused where none can be used, UserError where two have the same name, or where --out has
    footage of another recording of that name.
    """
    most = max(args.capacities)
    kept: dict[str, Kept] = {}
    refused: dict[str, str] = {}
    last: BagRefused | None = None
    for path in (recording for given in args.recordings for recording in recordings_in(given)):
        name = path.resolve().name
        if name in kept:
            raise UserError(f"{path}: there is another recording named {name}: give each a name of its own")
        try:
            with console.status(f"reading {name}"):
                found = keep(path, args.topic, args.out / "footage" / f"{name}.npz")
        except BagRefused as error:
            last = error
            refused[str(path)] = str(error)
            continue
        if found.n_images > most:
            kept[name] = found
        else:
            refused[str(path)] = (
                f"{path}: its {found.n_images} images fit into a memory of {most}: nothing is forgotten"
            )
    if not kept and last is not None:
        raise last
    if not kept:
        raise UserError(next(iter(refused.values()), "no recording was named"))
    return kept, refused


def _missing(plan: Plan, kept: dict[str, Kept], args: argparse.Namespace, done: set[tuple]) -> Iterator[Job]:
    for seed in range(args.seeds):
        for name, found in kept.items():
            for capacity in args.capacities:
                file = str(found.file.resolve())
                job = Job(plan, name, file, seed, capacity, args.policies, found.digest)
                policies = tuple(policy for policy in job.policies if _key(job, policy) not in done)
                if policies:
                    yield replace(job, policies=policies)


def _keys(plan: Plan, kept: dict[str, Kept], args: argparse.Namespace) -> Iterator[tuple]:
    for job in _missing(plan, kept, args, set()):
        for policy in job.policies:
            yield _key(job, policy)


def _key(job: Job, policy: str) -> tuple:
    return (job.bag, job.footage_digest, policy, job.capacity, job.seed, *astuple(job.plan))


def _work(
    jobs: list[Job], rows: results.RowFile, args: argparse.Namespace, console: Console
) -> Iterator[tuple[Job, str]]:
    """Have the jobs done and their rows written; yields each that was given up, and why."""
    if not jobs:
        return
    outcomes = (
        run_on_ray(jobs, run_job, args.address)
        if args.address is not None
        else run_local(jobs, run_job, args.workers)
    )
    with Progress(console=console) as progress:
        task = progress.add_task("trials", total=sum(len(job.policies) for job in jobs))
        for outcome in outcomes:
            rows.append(outcome.rows)
            progress.advance(task, len(outcome.job.policies))
            if outcome.error:
                yield outcome.job, outcome.error


def _named(label: str, names: Collection[str], most: int = 5) -> str:
    """`label` and the first of `names`; nothing where there are none."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{label}{'; '.join(list(names)[:most])}{more}" if names else ""


def _table(document: dict) -> Table:
    table = Table(box=None)
    table.add_column("policy", no_wrap=True)  # in a narrow terminal the other heads wrap
    for head in ("regret, rank", "regret, nats", "KL, nats", "recall", "coverage", "us, p99"):
        table.add_column(head, justify="right")
    for name, figures in document["policies"].items():
        table.add_row(
            name,
            in_words(figures["regret_rank_mean"], 3),
            in_words(figures["regret_mean"], 3),
            in_words(figures["kl_mean"], 3),
            in_words(figures["needle_recall"], 2),
            in_words(figures["coverage_mean"], 2),
            in_words(figures["eviction_us_p99"], 0),
        )
    return table


def _policies(text: str) -> tuple[str, ...]:
    if text == "all":
        return POLICIES
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in POLICIES]
    if unknown or not names:
        raise argparse.ArgumentTypeError(
            f"{(unknown or [text])[0]!r} is no policy: known are {', '.join(POLICIES)}, or all"
        )
    return names


def _counts(text: str) -> tuple[int, ...]:
    return tuple(sorted({_count(part) for part in text.split(",")}))


def _count(text: str) -> int:
    if not text.strip().isdecimal() or not 1 <= int(text) <= 100_000:
        raise argparse.ArgumentTypeError(f"{text!r}: wanted a whole number from 1 to 100000")
    return int(text)
