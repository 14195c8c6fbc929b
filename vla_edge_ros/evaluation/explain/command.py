"""`vla-edge explain`: why a tick of a recorded run decided as it did, and which are worth asking for."""

import argparse
import sys
import textwrap
from pathlib import Path

from rich.console import Console
from rich.text import Text

from vla_edge_ros.errors import one_line
from vla_edge_ros.evaluation.explain.page import explain
from vla_edge_ros.evaluation.explain.recorded_ticks import RecordedTicks, read_ticks
from vla_edge_ros.evaluation.explain.tick_list import NAMED, list_lines, number_in, place_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", type=Path, help="what control.record_path names, out/demo.json, or a replay's JSON"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--tick", metavar="N", help=f"explain this tick: its number, or {', '.join(NAMED)}")
    what.add_argument(
        "--list",
        action="store_true",
        help="one line for ticks in a row that were not FRESH, were late or followed missed ones, for the "
        "same reason (default)",
    )


def run(args: argparse.Namespace) -> int:
    """Raises UserError where the file holds no run, or the tick is not in it."""
    told = read_ticks(args.run, number_in(args.tick))
    console = Console(highlight=False)
    if told.is_cut:
        print(one_line(f"{args.run}: the last line is cut and is left out"), file=sys.stderr)
    if told.gaps_in_words:
        print(one_line(f"{args.run}: {told.gaps_in_words}"), file=sys.stderr)
    if args.tick is None:
        for line in list_lines(told):
            console.print(Text(line), soft_wrap=True)
        return 0
    _print_tick(told, place_of(told, args.tick), console)
    return 0


def _print_tick(told: RecordedTicks, place: int, console: Console) -> None:
    number = told.ticks[place]["tick"]
    n_alike = sum(tick["tick"] == number for tick in told.ticks)
    if n_alike > 1:
        console.print(
            f"The node was activated more than once: there are {n_alike} ticks {number}; this is the last of "
            "them that was asked for."
        )
    for section in explain(told, place):
        console.print(Text(section.title, style="bold"))
        for line in section.lines:
            wrapped = textwrap.fill(line, max(40, console.width - 2))
            console.print(Text(textwrap.indent(wrapped, "  ")), soft_wrap=True)
