"""A row of the doctor's table."""

from dataclasses import dataclass

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One row: `level` is ok, warn (works, with a loss that `found` or `advice` names) or fail.

    command: a line for a shell that does what `advice` says; empty where there is none.
    """

    name: str
    level: str
    found: str
    advice: str = ""
    command: str = ""


def row(name: str, is_good: bool, found: str, advice: str, otherwise: str = WARN, command: str = "") -> Check:
    return Check(name, OK, found) if is_good else Check(name, otherwise, found, advice, command)
