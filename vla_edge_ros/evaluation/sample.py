"""Writes the sample recording: `python -m vla_edge_ros.evaluation.sample OUT [--seed N]`.

A rosbag2 folder (mcap) of a drawn arm on a table at 60 Hz, with an instruction. The same seed gives the same
pictures and the same times.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
from rosbags.rosbag2 import StoragePlugin, Writer

from vla_edge_ros.evaluation.message_types import COMPRESSED_IMAGE, STRING, header, ros2_types
from vla_edge_ros.evaluation.sample_motion import DURATION_S, RATE_HZ, scene_at
from vla_edge_ros.evaluation.sample_scene import draw

IMAGE_TOPIC = "/camera/image_raw/compressed"
INSTRUCTION_TOPIC = "/instruction"
INSTRUCTION = "put everything into the blue tray"
SEED = 7
N_FRAMES = round(DURATION_S * RATE_HZ)

_START_NS = 1_760_000_000_000_000_000
_STAMP_JITTER_NS = 300_000
_TRANSPORT_NS, _TRANSPORT_JITTER_NS = 8_000_000, 400_000

_LENS_BLUR = 0.6
"""Standard deviation in pixels; it saves a tenth of the bytes."""

_SENSOR_NOISE = 0.9
"""Standard deviation in grey levels: enough that no two frames of a still scene are equal."""

_JPEG_QUALITY = 42


def bundled_sample() -> Path:
    """The recording that comes with the package: in a checkout, or in share/ of an installation.

    Raises FileNotFoundError.
    """
    prefixes = [*os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep), sys.prefix]
    folders = [Path(__file__).resolve().parents[2] / "recordings" / "sample"]
    folders += [
        Path(prefix, "share", "vla_edge_ros", "recordings", "sample") for prefix in prefixes if prefix
    ]
    for folder in folders:
        if (folder / "metadata.yaml").is_file():
            return folder
    raise FileNotFoundError(f"the sample recording is in none of {', '.join(map(str, folders))}")


def frame(index: int, seed: int = SEED) -> np.ndarray:
    """(180, 320, 3) uint8 RGB, as the drawn camera sees it."""
    seen = cv2.GaussianBlur(draw(scene_at(index / RATE_HZ)), (0, 0), _LENS_BLUR)
    noise = np.random.default_rng((seed, 1, index)).normal(0.0, _SENSOR_NOISE, (180, 320, 1))
    return np.clip(np.rint(seen + noise), 0, 255).astype(np.uint8)


def times(seed: int = SEED) -> tuple[np.ndarray, np.ndarray]:
    """Stamps and log times of all frames, (n,) int64 nanoseconds each."""
    rng = np.random.default_rng((seed, 0))
    nominal_ns = _START_NS + np.arange(N_FRAMES, dtype=np.int64) * 1_000_000_000 // RATE_HZ
    stamps_ns = nominal_ns + rng.normal(0.0, _STAMP_JITTER_NS, N_FRAMES).astype(np.int64)
    transport_ns = rng.normal(_TRANSPORT_NS, _TRANSPORT_JITTER_NS, N_FRAMES).astype(np.int64)
    return stamps_ns, stamps_ns + transport_ns


def write_sample(folder: Path, seed: int = SEED) -> Iterator[int]:
    """Write the recording into the new `folder`, yielding the index of each frame once it is written."""
    store = ros2_types()
    stamps_ns, logs_ns = times(seed)
    with Writer(folder, version=8, storage_plugin=StoragePlugin.MCAP) as writer:
        instructions = writer.add_connection(INSTRUCTION_TOPIC, STRING, typestore=store)
        images = writer.add_connection(IMAGE_TOPIC, COMPRESSED_IMAGE, typestore=store)
        said = store.types[STRING](data=INSTRUCTION)
        writer.write(instructions, int(logs_ns[0]) - 1_000_000, store.serialize_cdr(said, STRING))
        for index in range(N_FRAMES):
            bgr = cv2.cvtColor(frame(index, seed), cv2.COLOR_RGB2BGR)
            options = [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY, cv2.IMWRITE_JPEG_OPTIMIZE, 1]
            _, jpeg = cv2.imencode(".jpg", bgr, options)
            message = store.types[COMPRESSED_IMAGE](
                header=header(int(stamps_ns[index]), "camera"), format="jpeg", data=jpeg.ravel()
            )
            writer.write(images, int(logs_ns[index]), store.serialize_cdr(message, COMPRESSED_IMAGE))
            yield index


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m vla_edge_ros.evaluation.sample", description=__doc__)
    parser.add_argument("out", type=Path, help="folder to make; it must not be there yet")
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args(argv)
    if arguments.out.exists():
        print(f"{arguments.out}: already there; name a new folder", file=sys.stderr)
        return 2
    n_frames = sum(1 for _ in write_sample(arguments.out, arguments.seed))
    size_bytes = sum(file.stat().st_size for file in arguments.out.iterdir())
    print(f"{arguments.out}: {n_frames} frames, {size_bytes / 1e6:.2f} MB, seed {arguments.seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
