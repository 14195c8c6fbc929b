"""What the driver's own tool says of the first GPU; None where there is no tool or no answer."""

import subprocess

TIMEOUT_S = 20.0


def device_and_driver() -> tuple[str, str] | None:
    """The name of the device and the version of the driver."""
    rows = _query("--query-gpu=name,driver_version")
    return (rows[0][0], rows[0][1]) if rows and len(rows[0]) == 2 else None


def process_gpu_bytes(pid: int) -> int | None:
    """Device memory of a process as the driver counts it, its context included, to the MiB."""
    sizes = [row[1] for row in _query("--query-compute-apps=pid,used_memory") if row[0] == str(pid)]
    # "[N/A]" inside some containers and virtual machines.
    return sum(int(size) for size in sizes) << 20 if sizes and all(map(str.isdigit, sizes)) else None


def _query(question: str) -> list[list[str]]:
    try:
        answer = subprocess.run(
            ["nvidia-smi", question, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [[field.strip() for field in line.split(",")] for line in answer.splitlines() if line.strip()]
