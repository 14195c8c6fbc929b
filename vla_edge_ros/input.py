"""Files that a user names."""

import errno
from pathlib import Path


def read_text(path: Path, max_bytes: int) -> str:
    """The UTF-8 text of a regular file of at most `max_bytes`.

    Raises UnicodeDecodeError and OSError, the second also for a device or a pipe, which may have no end.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"Larger than {max_bytes / 1e6:.0f} MB, which no such file is", str(path))
    return content.decode("utf-8")
