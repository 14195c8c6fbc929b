"""From a finished training to the folder that the preset reads: weights, config and the model card."""

import hashlib
import json
import math
import shutil
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

from training.evaluate import SMALL_FRAMES
from training.rollouts import FIRST_SEED
from training.train import PRESET
from vla_edge_ros.engine.presets import PRESETS
from vla_edge_ros.engine.vision import vision_shapes
from vla_edge_ros.engine.weights import decoder_shapes
from vla_edge_ros.parameters import validate_all
from vla_edge_ros.simulation.model_actor import DEPLOYMENT

CARD = """\
# {preset}

A vision-language-action policy for the simulated arm of this repository (`config/simulation/table.xml`): a
Qwen2 decoder of {parameters:,} parameters, its patch embedding included, that reads 16x16 patches of a 128x64
frame and decodes eight action tokens, seven joint deltas and a gripper. It knows four tasks and their
instructions (`vla_edge_ros/simulation/tasks.py`), four colours, three shapes, and nothing else: it is no
policy for a real arm.

| | |
|---|---|
| weights | `model.safetensors`, {bytes:,} bytes, float32, sha256 `{sha256}` |
| licence | Apache-2.0, as the repository |
| data | {sequences:,} sequences, {frames:,} frames of the scripted expert, seeds from {first_seed:,} on |
| training | {steps:,} steps of {batch_sequences} prompts with {batch_queries} ticks each, seed {seed} |
| loss | {loss:.4f}, the mean of the last steps |
| machine | {device}, torch {torch}, {minutes:.1f} minutes of training |
| memory | one frame in {stride} ticks is retained; trained under `{policy}` and smaller memories |

Success in closed loop, on layouts that no roll-out had, with Wilson's 95 % interval:

| condition | success | episodes | 95 % |
|---|---|---|---|
{results}

`remember_full` has memory for the whole episode, `remember_evicted` none but the frame at hand, where one pad
in four is chance; `remember_fifo` and `remember_semantic` hold {small_frames} frames. `python -m training`
makes all of it again (docs/training.md).
"""


def hugging_face_config() -> dict:
    """What config.json says of the preset."""
    config = PRESETS[PRESET]
    fields = {name: getattr(config, name) for name in config.__dataclass_fields__}
    return {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu"} | fields


def write_model(source: Path, folder: Path) -> None:
    """A directory that `engine.model` takes, from a training's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source / "model.safetensors", folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(hugging_face_config(), indent=2) + "\n")
    byte_tokenizer().save(str(folder / "tokenizer.json"))


def byte_tokenizer() -> Tokenizer:
    """UTF-8 bytes as tokens 0 to 255, as the presets have them: a byte-level BPE without merges.

    A byte-level BPE writes a byte as the character of its own number where that one is printable, else as one
    of those from 256 on, in order (GPT-2's `bytes_to_unicode`).
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    vocabulary = {chr(byte): byte for byte in printable}
    vocabulary |= {chr(256 + place): byte for place, byte in enumerate(others)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return tokenizer


def write_card(progress: dict, results: dict[str, dict], folder: Path) -> None:
    """README.md beside the weights; every figure in it is of the training's progress or of the evaluation."""
    weights = (folder / "model.safetensors").read_bytes()
    shapes = decoder_shapes(PRESETS[PRESET]) | vision_shapes(PRESETS[PRESET].hidden_size)
    deployment, recipe = validate_all(DEPLOYMENT), progress["recipe"]
    rows = [
        f"| `{name}` | {found['value']:.3f} | {found['episodes']} | "
        f"{found['ci95'][0]:.3f} to {found['ci95'][1]:.3f} |"
        for name, found in results.items()
    ]
    card = CARD.format(
        preset=PRESET,
        parameters=sum(math.prod(shape) for shape in shapes.values()),
        bytes=len(weights),
        sha256=hashlib.sha256(weights).hexdigest(),
        sequences=progress["sequences"],
        frames=progress["frames"],
        first_seed=FIRST_SEED,
        steps=progress["step"],
        batch_sequences=recipe["sequences"],
        batch_queries=recipe["queries"],
        seed=recipe["seed"],
        loss=progress["history"][-1]["loss"],
        device=progress["device"],
        torch=progress["torch"],
        minutes=progress["seconds"] / 60,
        stride=deployment["memory.stride_ticks"],
        policy=deployment["memory.policy"],
        small_frames=SMALL_FRAMES,
        results="\n".join(rows),
    )
    (folder / "README.md").write_text(card)
