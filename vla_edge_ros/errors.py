"""The error that a user can do something about."""

_LONGEST = 1000


class UserError(Exception):
    """Something outside the program is wrong; the message is one line that says what to do about it.

    It may quote what is not ours (file names, topics, texts of a file): whatever it holds comes out on one
    line of bounded length and without control characters. The command line prints it without a traceback and
    exits with 2.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


def one_line(text: str) -> str:
    """`text` on one line of at most 1000 characters that can all be printed."""
    line = printable(" ".join(part.strip() for part in text.splitlines()))
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."


def reason_of(error: Exception) -> str:
    """What an error says, without the file that an OSError names: for a line that begins with it."""
    return getattr(error, "strerror", None) or str(error)


def printable(text: str) -> str:
    """`text` with U+FFFD for every line break, control character or other that cannot be printed."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)
