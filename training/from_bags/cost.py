"""The memory and the time that a training will need, told before it starts."""

import re
import resource
import time
from pathlib import Path

import torch
from torch import Tensor

from training.data import Steps
from training.train import Training
from vla_edge_ros.engine.vision import FRAME_HEIGHT, FRAME_WIDTH
from vla_edge_ros.errors import UserError

_FLOAT_BYTES = 4
_COPIES = 4
"""Of every parameter: the weight, its gradient and the two moments of AdamW."""


class TooLittleMemory(UserError):
    """The frames do not fit beside what is running; the message says what would."""


def bytes_of_frames(n_frames: int, embedding_size: int) -> int:
    """Frames as they are kept, and their pooled embeddings."""
    return n_frames * (FRAME_HEIGHT * FRAME_WIDTH * 3 + _FLOAT_BYTES * embedding_size)


def bytes_of_weights(training: Training) -> int:
    return _COPIES * _FLOAT_BYTES * sum(p.numel() for p in training.model.parameters())


def require_memory(wanted_bytes: int, available_bytes: int) -> None:
    """Reading holds frames twice for a moment: of an episode and of all. Raises TooLittleMemory."""
    if 2 * wanted_bytes > available_bytes:
        raise TooLittleMemory(
            f"the frames may take {wanted_bytes / 1e9:.1f} GB, twice that while they are read, and "
            f"{available_bytes / 1e9:.1f} GB are free: give fewer recordings"
        )


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """What the kernel would give to a new process without swapping."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 1 << 62


def try_step(training: Training, steps: Steps, frames: Tensor, n_sharp: int) -> tuple[float, int]:
    """Seconds of the second of two steps that change nothing, and the most bytes in use during them.

    Bytes are the device's, or those of the whole process where it computes itself.
    """
    is_cuda = training.device.type == "cuda"
    for _ in range(2):
        began = time.monotonic()
        batch = steps[training.step].to(training.device)
        sum(training.loss_of(batch, frames, n_sharp)).backward()
        if is_cuda:
            torch.cuda.synchronize()
        seconds = time.monotonic() - began
    training.optimiser.zero_grad()
    if is_cuda:
        return seconds, torch.cuda.max_memory_allocated()
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
