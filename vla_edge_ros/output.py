"""Files that a command writes for its user."""

import os
from pathlib import Path

from vla_edge_ros.errors import UserError, reason_of


def prepare(path: Path) -> None:
    """Make the folder of `path` and see that the file can be written, before the work that it is to hold.

    Raises UserError.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not os.path.lexists(path)
        # A pipe or a device is opened once, by whoever writes.
        if is_new or path.is_file() or path.is_dir():
            path.open("ab").close()
        if is_new:
            path.unlink()
    except (OSError, ValueError) as error:
        raise _refusal(path, error) from None


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8; what has no form in it (a lone surrogate) becomes `?`. Raises UserError."""
    try:
        path.write_text(text, encoding="utf-8", errors="replace")
    except (OSError, ValueError) as error:
        raise _refusal(path, error) from None


def write_bytes(path: Path, data: bytes) -> None:
    """Raises UserError."""
    try:
        path.write_bytes(data)
    except (OSError, ValueError) as error:
        raise _refusal(path, error) from None


def _refusal(path: Path, error: OSError | ValueError) -> UserError:
    reason = reason_of(error)
    if isinstance(error, FileExistsError | NotADirectoryError):
        reason = "its folder is a file"
    return UserError(f"{path}: cannot be written: {reason}; name another file")
