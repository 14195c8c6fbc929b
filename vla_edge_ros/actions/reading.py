"""Values out of files that people write: each reader returns the value or refuses it in one line."""

import math
from collections.abc import Callable
from pathlib import Path

from vla_edge_ros.errors import UserError
from vla_edge_ros.input import read_text

MAX_FILE_BYTES = 16_000_000


class PolicyError(UserError):
    """A policy or its statistics cannot be used."""


def read_mapping(path: Path, parse: Callable[[str], object]) -> dict:
    """The mapping at the top of a file; `parse` is the format's (`json.loads`, `yaml.safe_load`)."""
    try:
        content = parse(read_text(path, MAX_FILE_BYTES))
    except OSError as error:
        raise PolicyError(f"{path}: cannot be read: {error.strerror or error}") from error
    # What PyYAML raises for a tag that does not fit its value is not only YAMLError.
    except Exception as error:
        raise PolicyError(f"{path}: cannot be parsed: {' '.join(str(error).split())}") from error
    return mapping(content, str(path))


def mapping(value: object, what: str) -> dict:
    if not isinstance(value, dict):
        raise PolicyError(f"{what} holds {describe(value)}, wanted a mapping")
    return value


def sequence(value: object, what: str) -> list:
    if not isinstance(value, list) or not value:
        raise PolicyError(f"{what} is {describe(value)}, wanted a list with at least one entry")
    return value


def text(value: object, what: str) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise PolicyError(
            f"{what} is {describe(value)}, wanted one line of text; put quotes around a name like on or 1"
        )
    return value


def number(value: object, what: str) -> float:
    """A finite number. Text is refused even where it looks like one: YAML reads 1e-3 as text, 1.0e-3 not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        hint = "; write an exponent as 1.0e-3 and no quotes" if isinstance(value, str) else ""
        raise PolicyError(f"{what} is {describe(value)}, wanted a number{hint}")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        raise PolicyError(f"{what} is {describe(value)}, wanted a finite number")
    return result


def positive(value: object, what: str) -> float:
    result = number(value, what)
    if result <= 0:
        raise PolicyError(f"{what} is {result:g}, wanted a number above 0")
    return result


def describe(value: object) -> str:
    """What was found, short enough for one line."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    shown = str(value).lower() if isinstance(value, bool) else repr(value)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."
