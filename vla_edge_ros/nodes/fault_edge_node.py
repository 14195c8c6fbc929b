"""The edge node as it is, with one thing more: SIGUSR1 makes it collect garbage among 4 million objects.

Nothing but code inside the process can hold the interpreter lock as a collection does.
"""

import gc
import signal
import sys
import threading
import time

from vla_edge_ros.nodes import edge_node

N_OBJECTS, AT_ONCE = 4_000_000, 20_000
PAUSE_S = 0.005
DONE = "collected garbage for"


def collect_garbage() -> None:
    """Make the objects so slowly that nobody waits, then walk them in one collection, for which all wait.

    Says on standard error how long it held the lock.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    objects = []
    for _ in range(N_OBJECTS // AT_ONCE):
        objects += [[] for _ in range(AT_ONCE)]
        time.sleep(PAUSE_S)
    began_s = time.monotonic()
    gc.collect()
    print(f"{DONE} {1e3 * (time.monotonic() - began_s):.0f} ms", file=sys.stderr, flush=True)
    if was_enabled:
        gc.enable()


def on_signal(*_) -> None:
    threading.Thread(target=collect_garbage, name="garbage").start()


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, on_signal)
    sys.exit(edge_node.main())
