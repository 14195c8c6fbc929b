"""What tests ask about other processes, and the ROS that they share with them."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from vla_edge_ros.engine.linux import same_imports
from vla_edge_ros.nodes.private_domain import private_domain
from vla_edge_ros.share import large_image_variables


@contextlib.contextmanager
def private_ros_environment() -> Iterator[None]:
    """ROS in a domain of its own that does not leave this computer, for this process and its children."""
    with mock.patch.dict(os.environ):
        if not os.environ.get("AMENT_PREFIX_PATH"):
            os.environ["AMENT_PREFIX_PATH"] = sys.prefix
        os.environ["RMW_IMPLEMENTATION"] = "rmw_fastrtps_cpp"
        with private_domain(os.environ):
            os.environ.update(large_image_variables(os.environ))
            yield


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
