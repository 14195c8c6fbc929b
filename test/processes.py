"""What tests ask about other processes."""

import os
import subprocess
import sys
import time
from pathlib import Path

from vla_edge_ros.engine.linux import same_imports


def run_python(code):
    """A finished Python process that ran `code` with the imports of this one."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=same_imports(os.environ), timeout=60
    )


def has_ended(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def becomes_true(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True
