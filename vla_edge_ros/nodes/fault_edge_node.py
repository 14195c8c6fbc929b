"""The edge node as it is, with faults that only code inside a process can bring about.

SIGUSR1 makes it collect garbage among 4 million objects: nothing else holds the interpreter lock like that.
Its engine's process is `fault_engine`, which heeds signals of its own.
"""

import gc
import signal
import subprocess
import sys
import threading
import time

from vla_edge_ros.engine import linux, process
from vla_edge_ros.nodes import edge_node, fault_engine

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


def start_fault_engine(module: str, *rest, **keywords) -> subprocess.Popen:
    return linux.start_bound_module(fault_engine.__name__, *rest, **keywords)


if __name__ == "__main__":
    process.start_bound_module = start_fault_engine
    signal.signal(signal.SIGUSR1, on_signal)
    sys.exit(edge_node.main())
