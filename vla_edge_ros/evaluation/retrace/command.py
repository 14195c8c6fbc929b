"""`vla-edge replay --ticks`: is a recorded run what the node decides again at the recorded times?"""

import argparse
import json

from rich.console import Console

from vla_edge_ros.control.settings import Parameters
from vla_edge_ros.errors import UserError, printable
from vla_edge_ros.evaluation.bags import open_bag
from vla_edge_ros.evaluation.recorded_run import RecordedRun
from vla_edge_ros.evaluation.retrace.compare import OUT_AT, Comparison, compare
from vla_edge_ros.evaluation.retrace.run import BY_AGE, check_whole, retrace
from vla_edge_ros.evaluation.virtual_run import replay_recorded
from vla_edge_ros.parameters import validate_all


def run(args: argparse.Namespace, given: dict) -> int:
    """given: parameters that are other than the run's. Returns 1 where a tick is another one.

    Raises UserError where the run cannot be run again.
    """
    for option in ("instruction", "json", "report"):
        if getattr(args, option) is not None:
            raise UserError(f"--{option} does not go with --ticks, which compares a run with its own record")
    recorded = RecordedRun.load(args.ticks)
    values = validate_all(recorded.run["parameters"] | given)
    recorded = recorded.until_tick(args.seconds * 1000 / values["control.period_ms"])
    if args.bag is None:
        comparison = compare(recorded.ticks, retrace(values, recorded))
    else:
        check_whole(recorded)
        values = validate_all(recorded.run["parameters"] | recorded.engine_plan() | given)
        with open_bag(args.bag) as bag:
            topic = bag.pick_image_topic(args.topic).name
            replayed = replay_recorded(bag, topic, values, recorded)
        comparison = compare(recorded.ticks, replayed.records, OUT_AT)
    console = Console(highlight=False, markup=False)
    for line in [*in_words(comparison), *taken_over(values, recorded, args.bag is not None)]:
        console.print(printable(line), soft_wrap=True)
    return 0 if comparison.is_equal else 1


def in_words(comparison: Comparison) -> list[str]:
    """What came out, and where the first difference is."""
    lines = [f"{comparison.n_ticks:,} ticks run again, {comparison.n_equal:,} equal bit for bit"]
    first = comparison.first
    if first is not None:
        lines.append(f"the first that differs is tick {first.tick}, in {first.field}:")
        lines.append(f"  recorded:  {_shown(first.recorded)}")
        lines.append(f"  run again: {_shown(first.again)}")
        if first.others:
            lines.append(f"  it differs too in {', '.join(first.others)}")
    return lines


def taken_over(parameters: Parameters, recorded: RecordedRun, has_recording: bool) -> list[str]:
    """What was taken from the record, so that its being equal says nothing."""
    if has_recording:
        return ["not compared: when messages were out, which is the machine's"]
    lines = ["taken from the record: what the engine gave and when, of a pass its tokens"]
    if recorded.vocabulary_size is None:
        lines = [
            "taken from the record: what the engine gave and when; of a pass's action, its limited values "
            "(limits, holds and stops were applied to them again), since its tokens are not there"
        ]
    policy = parameters["memory.policy"]
    if policy not in BY_AGE:
        lines.append(f"taken from the record: which frame {policy} names, since that hangs on pictures")
    return [*lines, "with the recording, `vla-edge replay BAG --ticks RUN`, those are computed again too"]


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 300 else f"{text[:297]}..."
