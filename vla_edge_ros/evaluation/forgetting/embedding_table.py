"""How embeddings answer to what happens before a camera.

    python -m vla_edge_ros.evaluation.forgetting.embedding_table [RECORDING ...]

The cosine of a frame and the same frame after a change, for every embedding that `memory.embedding` knows:
median and least over frames. A memory wants it near 1 for exposure and noise, and lower for what moves.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np

from vla_edge_ros.engine.interface import FRAME_TOKENS
from vla_edge_ros.engine.vision import PATCH
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.forgetting.footage import read_footage
from vla_edge_ros.evaluation.forgetting.trial_model import TrialModel
from vla_edge_ros.memory.policies import EMBEDDINGS
from vla_edge_ros.share import share_directory

N_FRAMES = 24
NOISE_LEVELS = 5.0

Change = Callable[[np.ndarray, np.random.Generator], tuple[np.ndarray, np.ndarray]]


def _exposure(factor: float) -> Change:
    def change(frame: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        return frame, np.clip(np.rint(frame * factor), 0, 255).astype(np.uint8)

    return change


def _noise(frame: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    noisy = frame + random.normal(0.0, NOISE_LEVELS, frame.shape)
    return frame, np.clip(np.rint(noisy), 0, 255).astype(np.uint8)


def _shake(pixels: int) -> Change:
    def change(frame: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        shift = np.float32([[1, 0, pixels], [0, 1, pixels]])
        size = (frame.shape[1], frame.shape[0])
        return frame, cv2.warpAffine(frame, shift, size, borderMode=cv2.BORDER_REPLICATE)

    return change


def _object(shows_first: bool, shows_then: bool, moves_by: int = 0) -> Change:
    """A shaded ball of a patch's size, at a seeded place and of a seeded colour."""

    def change(frame: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        radius = PATCH // 2
        height, width = frame.shape[:2]
        x = int(random.integers(radius, width - radius - moves_by))
        y = int(random.integers(radius, height - radius))
        colour = random.integers(0, 256, 3).tolist()

        def with_ball(at: int) -> np.ndarray:
            drawn = cv2.circle(frame.copy(), (at, y), radius, colour, cv2.FILLED, cv2.LINE_AA)
            light = [min(255, value + 60) for value in colour]
            return cv2.circle(drawn, (at - 3, y - 3), radius // 3, light, cv2.FILLED, cv2.LINE_AA)

        return with_ball(x) if shows_first else frame, with_ball(x + moves_by) if shows_then else frame

    return change


CHANGES: dict[str, Change] = {
    "exposure +20 %": _exposure(1.2),
    "exposure -20 %": _exposure(0.8),
    f"noise, {NOISE_LEVELS:g} levels": _noise,
    "shake, 1 pixel": _shake(1),
    "shake, 2 pixels": _shake(2),
    "an object moves by a patch": _object(True, True, PATCH),
    "an object appears": _object(False, True),
    "an object vanishes": _object(True, False),
}


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """0 where one of them is zero."""
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.dot(a, b)) / lengths if lengths > 1e-16 else 0.0


def answers(
    frames: np.ndarray, embed: Callable[[np.ndarray], np.ndarray], seed: int = 0
) -> dict[str, np.ndarray]:
    """By change, the cosine (n,) of each of `frames` (n, 64, 128, 3) before and after it."""
    random = np.random.default_rng(seed)
    seen: dict[str, list[float]] = {name: [] for name in CHANGES}
    for frame in frames:
        for name, change in CHANGES.items():
            before, after = change(frame, random)
            seen[name].append(cosine(embed(before).copy(), embed(after)))
    return {name: np.array(values) for name, values in seen.items()}


def embedder(kind: str, model: TrialModel) -> Callable[[np.ndarray], np.ndarray]:
    """`memory.embedding` = `kind`, of a frame that stands alone in memory."""
    slots = np.arange(model.n_slots, dtype=np.int32)
    block, rest = slots[:FRAME_TOKENS], slots[FRAME_TOKENS : FRAME_TOKENS + model.action_tokens]

    def embed(frame: np.ndarray) -> np.ndarray:
        if kind == "key_summary":
            model.run(frame, slots[:0], block, rest)
        return model.embedding(kind, frame, block)

    return embed


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m vla_edge_ros.evaluation.forgetting.embedding_table",
        description=__doc__.split("\n")[0],
    )
    parser.add_argument("recordings", nargs="*", type=Path, help="default: the bundled sample")
    args = parser.parse_args(argv)
    model = TrialModel("tiny", 0, n_slots=64, action_tokens=1)
    for path in args.recordings or [share_directory() / "recordings/sample"]:
        try:
            footage = read_footage(path)
        except UserError as error:
            print(error, file=sys.stderr)
            return 2
        frames = footage.every(N_FRAMES, seed=0).frames
        print(f"{path.name}, {len(frames)} frames: cosine, median and least")
        columns = {kind: answers(frames, embedder(kind, model)) for kind in EMBEDDINGS}
        print(f"  {'':28}" + "".join(f"{kind:>18}" for kind in columns))
        for name in CHANGES:
            cells = (columns[kind][name] for kind in columns)
            print(f"  {name:28}" + "".join(f"{np.median(c):9.3f} {c.min():8.3f}" for c in cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
