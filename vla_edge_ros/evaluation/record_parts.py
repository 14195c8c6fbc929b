"""Parts of a record: what each step of a measurement leaves in a file, until all are put together.

A part is a JSON object: its `step`, what it was measured on and of, and `figures`, the step's own document.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypedDict

from rich.console import Console

from vla_edge_ros import output
from vla_edge_ros.errors import UserError, reason_of
from vla_edge_ros.evaluation.json_shape import WrongShape, check
from vla_edge_ros.evaluation.run_document import machine
from vla_edge_ros.input import read_text

_MAX_BYTES = 20_000_000


class _Part(TypedDict, total=False):
    """What every part has; its figures are the step's own."""

    weights_sha256: str
    sources_sha256: str
    device: str
    machine: dict
    date: str
    versions: dict[str, str]
    wall_s: float
    figures: dict


def files_sha256(root: Path, patterns: Iterable[str]) -> str:
    """One hash of the files below `root` that match, names included."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in root.glob(pattern)):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Of Python and of those of the packages that are installed."""
    found = {"python": sys.version.split()[0]}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def write_part(
    path: Path, step: str, made_of: Mapping[str, str], packages: Iterable[str], measure: Callable[[], dict]
) -> None:
    """Measure on this machine's processor, and write the part. made_of: hashes, from before `measure`."""
    output.prepare(path)
    here, began_s = machine(), time.monotonic()
    figures = measure()
    part = {
        "step": step,
        **made_of,
        "device": here["processor"],
        "machine": here,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": versions(packages),
        "wall_s": round(time.monotonic() - began_s, 1),
        "figures": figures,
    }
    output.write_text(path, json.dumps(part, indent=1) + "\n")


def read_part(path: Path, step: str, keys: Collection[str]) -> dict:
    """The part of `step`, which has all `keys`. Raises UserError for a file that is none."""
    try:
        part = json.loads(read_text(path, _MAX_BYTES))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path}: cannot be read: {reason_of(error)}; remove it and run the step {step} again"
        ) from None
    if not isinstance(part, dict) or not {"step", *keys} <= part.keys() or part["step"] != step:
        raise UserError(f"{path}: is no part of a record: remove it and run the step {step} again")
    try:
        check(part, _Part)
    except WrongShape as wrong:
        raise UserError(f"{path}: {wrong}: remove it and run the step {step} again") from None
    return part


def require_alike(parts: Collection[dict], names: Iterable[str]) -> None:
    """Raises UserError, one line, where there are no parts, or where they differ in one of `names`."""
    if not parts:
        raise UserError("there is no part to make a record of: run a step first")
    for name in names:
        if len({part[name] for part in parts}) > 1:
            told = dict.fromkeys(f"{part['step']} of {str(part[name])[:16]}" for part in parts)
            raise UserError(f"the parts are of different {name}: {', '.join(told)}; run the older ones again")


def require_current(record: Mapping, sources_sha256: str, folder: Path) -> None:
    """Raises UserError, one line, where the record of the parts in `folder` is of other sources."""
    if record["sources_sha256"] != sources_sha256:
        raise UserError(f"{folder}: the parts are older than the sources: run their steps again")


def write_pages(pages: Mapping[Path, str], console: Console) -> None:
    """Write these texts, and say where."""
    for path, text in pages.items():
        output.prepare(path)
        output.write_text(path, text)
        console.print(f"written: {path}", soft_wrap=True)


def run_module(module: str, *words: object) -> dict:
    """What a module writes to the path after `--json`, run with these words. Raises UserError."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figures.json"
        command = [sys.executable, "-m", module, *map(str, words), "--json", str(path)]
        print("$ " + " ".join(command), file=sys.stderr, flush=True)
        code = subprocess.run(command, check=False, stdout=sys.stderr).returncode
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise UserError(f"{module} ended with exit code {code} and measured nothing") from None
