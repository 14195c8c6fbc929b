"""What demo, replay and bench have in common on the command line."""

import argparse

import yaml

from vla_edge_ros.errors import UserError
from vla_edge_ros.memory.policies import POLICIES
from vla_edge_ros.parameters import validate


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", help="image topic of the recording (default: the only one)")
    parser.add_argument("--policy", choices=POLICIES, help="eviction policy (default: memory.policy)")
    parser.add_argument(
        "--instruction", help="what the robot is told (default: the recording's, if it has one)"
    )
    parser.add_argument(
        "--param",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any parameter of the node (docs/parameters.md); may be given several times",
    )


def given_parameters(args: argparse.Namespace) -> dict:
    """The node's parameters as far as the command line names them. Raises UserError."""
    values = {}
    for pair in args.param:
        name, separator, text = pair.partition("=")
        if not separator:
            raise UserError(f"--param {pair}: wanted NAME=VALUE, for example --param memory.slots=2048")
        try:
            values[name] = validate(name, yaml.safe_load(text))
        except yaml.YAMLError:
            raise UserError(f"--param {pair}: the value cannot be read as YAML") from None
    if args.policy is not None:
        values["memory.policy"] = args.policy
    if args.instruction is not None:
        values["instruction.initial"] = args.instruction
    return values


def positive(text: str) -> float:
    """A number above 0, for argparse."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} must be above 0")
    return number
