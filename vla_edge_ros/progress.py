"""What a command says while a long piece of work is silent."""

import contextlib
import sys
import threading
from collections.abc import Iterator

from vla_edge_ros.errors import one_line

SOON_S = 2.0


@contextlib.contextmanager
def told(work: str, after_s: float = SOON_S) -> Iterator[None]:
    """Say in one line on stderr what is being done, once it has taken longer than `after_s`.

    What is done or refused sooner says nothing, so that a refusal stays one line.
    """
    timer = threading.Timer(after_s, lambda: print(one_line(f"{work} ..."), file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
