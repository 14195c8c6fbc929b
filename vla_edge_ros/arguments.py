"""Numbers on the command line, as types for argparse."""

import argparse
import math
from collections.abc import Callable


def positive(text: str) -> float:
    """A finite number above 0."""
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} must be a finite number above 0")
    return number


def whole(lowest: int) -> Callable[[str], int]:
    """A whole number of at least `lowest`."""

    def whole_number(text: str) -> int:
        number = int(text)
        if number < lowest:
            raise argparse.ArgumentTypeError(f"{text} must be at least {lowest}")
        return number

    return whole_number
