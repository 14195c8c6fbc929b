"""Which process runs a node's engine."""

import contextlib
from pathlib import Path

MODULES = (b"vla_edge_ros.engine.child", b"vla_edge_ros.nodes.fault_engine")


def engine_of(node_pid: int) -> int | None:
    """The engine process among the children of the node; None while there is none."""
    for children in Path(f"/proc/{node_pid}/task").glob("*/children"):
        # Threads and processes may end while they are looked at.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for child in children.read_text().split():
                command = Path(f"/proc/{child}/cmdline").read_bytes()
                if any(module in command for module in MODULES):
                    return int(child)
    return None
