"""Runs the node and the bag camera as processes of their own and drives the node's life cycle."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import rclpy
import yaml
from diagnostic_msgs.msg import DiagnosticStatus
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rclpy.executors import SingleThreadedExecutor
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.bags import Bag
from vla_edge_ros.evaluation.recorded_run import RecordedRun
from vla_edge_ros.share import share_directory

CONFIGURE_TIMEOUT_S = 600.0
START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 3.0
PROFILE_VARIABLES = ("FASTRTPS_DEFAULT_PROFILES_FILE", "FASTDDS_DEFAULT_PROFILES_FILE")
"""Humble to Jazzy read the first, Kilted the second."""


class Process:
    """A node of this package as a child process; what it prints goes to a file that errors quote."""

    def __init__(self, module: str, parameters: dict, folder: Path, name: str) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        file = folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump({"/**": {"ros__parameters": parameters}}), encoding="utf-8")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, "--ros-args", "--params-file", str(file)],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def log_lines(self) -> list[str]:
        return self._log.read_text(encoding="utf-8", errors="replace").splitlines()

    def complaint(self) -> str:
        """The last line that it printed, without the logger's prefix."""
        lines = [line for line in self.log_lines() if line.strip()]
        return lines[-1].rpartition("]: ")[2] if lines else "it printed nothing"

    def stop(self) -> int:
        """SIGTERM, then wait; returns the exit code. Raises UserError if it does not end in time."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise UserError(f"{self.name} did not end within {STOP_TIMEOUT_S:g} s of SIGTERM") from None

    def kill(self) -> None:
        if self.is_running:
            self._process.kill()
            self._process.wait()
