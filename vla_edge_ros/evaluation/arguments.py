"""What demo, replay, bench and doctor have in common on the command line."""

import argparse
import re
from collections.abc import Iterable, Mapping

import yaml

from vla_edge_ros.errors import UserError
from vla_edge_ros.memory.policies import POLICIES
from vla_edge_ros.parameters import NODE, validate

_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")
"""8e9: a number to ROS, and a text to PyYAML."""


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--policy", choices=POLICIES, help="eviction policy (default: memory.policy)")
    parser.add_argument(
        "--instruction", help="what the robot is told (default: the recording's, if it has one)"
    )
    add_parameter_argument(parser)


def add_parameter_argument(parser: argparse.ArgumentParser) -> None:
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
        if not separator or not name:
            raise UserError(f"--param {pair}: wanted NAME=VALUE, for example --param memory.slots=2048")
        # A text is taken as it stands: YAML would make nothing of an empty one, and a number of `1`.
        is_text = any(row.name == name and row.type_name == "string" for row in NODE)
        values[name] = validate(name, text if is_text else _yaml_value(pair, text))
    if getattr(args, "policy", None) is not None:
        values["memory.policy"] = args.policy
    if getattr(args, "instruction", None) is not None:
        values["instruction.initial"] = args.instruction
    return values


def refuse_own(given: Mapping[str, object], own: Iterable[str], command: str) -> None:
    """Raises UserError where `given` names a parameter of those that `command` sets itself."""
    for name in own:
        if name in given:
            raise UserError(f"--param {name}: {command} sets it itself; leave it out")


def _yaml_value(pair: str, text: str) -> object:
    try:
        return float(text) if _EXPONENT.fullmatch(text) else yaml.safe_load(text)
    # What the library raises for a tag that does not fit or for too many digits is not only YAMLError.
    except Exception:
        shown = pair if len(pair) <= 60 else f"{pair[:57]}..."
        raise UserError(f"--param {shown}: the value cannot be read as YAML") from None
