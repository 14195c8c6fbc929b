"""How a command ends: with an exit code, and where it is not done with one line on stderr."""

import os
import signal
import sys
from collections.abc import Callable

from vla_edge_ros.errors import UserError, reason_of

INTERRUPTED = 128 + signal.SIGINT


def exit_code(command: str, run: Callable[[], int], kept: str = "") -> int:
    """What `run` returns, or 2 where it raises UserError or OSError, and 130 for Ctrl-C.

    kept: what an interrupted command leaves, for the line that says so.
    SIGTERM and a closed terminal unwind `run` as Ctrl-C does, and raise SystemExit with 143 and 129.
    """
    _unwind_when_told_to_end()
    try:
        return run()
    except UserError as error:
        return _refuse(command, str(error))
    except BrokenPipeError:
        # Whoever read the output has gone; what is still buffered must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        return _refuse(command, f"{where}{reason_of(error)}")
    except KeyboardInterrupt:
        print(f"{command}: interrupted{f'; {kept}' if kept else ''}", file=sys.stderr)
        return INTERRUPTED


def _refuse(command: str, reason: str) -> int:
    print(f"{command}: {UserError(reason)}", file=sys.stderr)
    return 2


def _unwind_when_told_to_end() -> None:
    """Child processes of a command end with it where it is unwound."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda number, frame: sys.exit(128 + number))
