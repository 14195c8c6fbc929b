"""Footage as an evaluation keeps it, and what it was made of."""

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vla_edge_ros.errors import UserError, reason_of
from vla_edge_ros.evaluation.bags import BagRefused
from vla_edge_ros.evaluation.forgetting.footage import Footage, read_footage
from vla_edge_ros.evaluation.recording import StorageError
from vla_edge_ros.evaluation.recording_files import recording_files


class Kept(NamedTuple):
    """file: of `save_footage`. digest: the first 12 hex digits of the SHA-256 of its frames and times."""

    file: Path
    digest: str
    n_images: int


def keep(recording: Path, topic: str | None, file: Path) -> Kept:
    """Read `recording` into `file`, unless it is there already, whole.

    Raises BagRefused where the recording is not there or cannot be used, UserError where `file` was made of
    another one.
    """
    source = source_of(recording, topic)
    try:
        footage, found = load_footage(file), _source_in(file)
    except Exception:  # not there, cut, or of another version
        footage, found = read_footage(recording, topic), source
        file.parent.mkdir(exist_ok=True)
        partial = file.with_suffix(".part")
        save_footage(partial, footage, source)
        partial.rename(file)
    if found != source:
        raise UserError(f"{recording}: {file} was made of {found}; wanted {source}: give another --out")
    digest = hashlib.sha256(footage.frames)
    digest.update(footage.times_s)
    return Kept(file, digest.hexdigest()[:12], len(footage.frames))


def save_footage(path: Path, footage: Footage, source: str = "") -> None:
    with path.open("wb") as file:
        np.savez(file, frames=footage.frames, times_s=footage.times_s, source=source)


def load_footage(path: str | Path) -> Footage:
    with np.load(path, allow_pickle=False) as stored:
        return Footage(stored["frames"], stored["times_s"])


def source_of(recording: Path, topic: str | None) -> str:
    """Path, topic, and its files' size and last change, in words. Raises BagRefused where there are none."""
    try:
        found = [file.stat() for file in recording_files(recording)]
    except (StorageError, OSError) as error:
        raise BagRefused(f"{recording}: {reason_of(error)}") from None
    n_bytes, changed_ns = sum(file.st_size for file in found), max(file.st_mtime_ns for file in found)
    return f"{recording.resolve()} ({topic or 'its only topic'}, {n_bytes} bytes, changed at {changed_ns} ns)"


def _source_in(path: Path) -> str:
    with np.load(path, allow_pickle=False) as stored:
        return str(stored["source"])
