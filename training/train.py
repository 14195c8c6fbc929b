"""Behaviour cloning under the deployed memory, in parts: a call goes on where the last one stopped."""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypedDict

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from training.batch import Batch
from training.data import Labelled, Steps, load_data
from training.hints import LAYER, Hints
from training.model import TinyVla, action_loss
from training.optimiser import Optimiser
from vla_edge_ros.control import settings
from vla_edge_ros.engine.presets import PRESETS
from vla_edge_ros.errors import reason_of
from vla_edge_ros.evaluation.json_shape import check
from vla_edge_ros.input import read_text
from vla_edge_ros.parameters import validate_all
from vla_edge_ros.simulation.model_actor import DEPLOYMENT

PRESET = "tiny-vla"
REFRESH_STEPS = 200
"""Steps from one computation of all pooled embeddings to the next."""
_MAX_PROGRESS_BYTES = 10_000_000


@dataclass(frozen=True, slots=True)
class Recipe:
    """What fixes a training beside its data.

    sequences, queries: of a step, prompts and ticks of each. width_bins: see `action_loss`. hints_weight: of
    the hints' loss beside the actions'.
    """

    steps: int = 1600
    sequences: int = 128
    queries: int = 40
    learning_rate: float = 1.5e-3
    warmup_steps: int = 200
    weight_decay: float = 0.02
    width_bins: float = 1.5
    hints_weight: float = 0.5
    seed: int = 0


class _Progress(TypedDict):
    step: int
    recipe: object
    seconds: float
    history: list


class Training:
    """The model, its optimiser and how far it is; `folder` holds all three between calls.

    Each file is below 10 MB: `model.safetensors` and `hints.safetensors` with float32 weights,
    `first_moments.safetensors` and `second_moments.safetensors` of the optimiser, and `progress.json`.
    """

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        device: torch.device,
        initial: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Weights begin at `initial`, or at random.

        Raises ValueError where `folder` is of another recipe, or holds no whole training.
        """
        self.recipe = recipe
        self.device = device
        self.step = 0
        self.seconds = 0.0
        self.history: list[dict] = []
        self._folder = folder
        # cuDNN's attention plans anew for every shape, and each step brings others.
        torch.backends.cuda.enable_cudnn_sdp(False)
        torch.manual_seed(recipe.seed)
        self.model = TinyVla(PRESETS[PRESET]).to(device)
        if initial is not None:
            self.model.load_state_dict(initial)
        self.hints = Hints(self.model.config.hidden_size).to(device)
        parameters = dict(self.model.named_parameters())
        parameters |= {f"hints.{name}": value for name, value in self.hints.named_parameters()}
        self.optimiser = Optimiser(parameters, recipe.weight_decay)
        self._resume()

    @property
    def is_done(self) -> bool:
        return self.step >= self.recipe.steps

    def run(self, data_folder: Path, until_s: float, workers: int) -> None:
        """Train until the recipe's steps are done or the monotonic clock reads `until_s`, and save."""
        frames, sequences = load_data(data_folder, self.device)
        self.fit(frames, sequences, validate_all(DEPLOYMENT), until_s, workers)

    def fit(
        self,
        frames: Tensor,
        sequences: list[Labelled],
        deployment: settings.Parameters,
        until_s: float,
        workers: int,
        n_sharp: int = 1,
    ) -> None:
        """`run` on data in memory: frames (N, 64, 128, 3) uint8 on the device. n_sharp: see `action_loss`.

        Saves what there is on any way out.
        """
        embeddings = self._embeddings_of(frames)
        steps = self.steps(sequences, embeddings, deployment)
        loader = torch.utils.data.DataLoader(
            steps, batch_size=None, sampler=range(self.step, self.recipe.steps), num_workers=workers
        )
        print(
            f"training: {len(sequences)} sequences, {len(frames)} frames, from step {self.step} of "
            f"{self.recipe.steps}"
        )
        began, said = time.monotonic(), time.monotonic()
        losses: list[Tensor] = []
        try:
            for batch in loader:
                losses.append(self._train_on(batch.to(self.device), frames, n_sharp))
                self.step += 1
                if self.step % REFRESH_STEPS == 0:
                    self._refresh(embeddings, frames)
                if self.step % 100 == 0 or self.is_done:
                    loss, hints = torch.stack(losses).mean(dim=0).tolist()
                    losses.clear()
                    self.history.append({"step": self.step, "loss": loss, "hints": hints})
                    print(
                        f"step {self.step}: loss {loss:.4f}, hints {hints:.4f}, "
                        f"{time.monotonic() - said:.1f} s",
                        flush=True,
                    )
                    said = time.monotonic()
                if time.monotonic() > until_s:
                    break
        finally:
            self.seconds += time.monotonic() - began
            if self.step:
                self._save(len(sequences), len(frames))

    def steps(self, sequences: list[Labelled], embeddings: Tensor, deployment: settings.Parameters) -> Steps:
        recipe = self.recipe
        return Steps(
            sequences,
            embeddings,
            deployment,
            recipe.sequences,
            recipe.queries,
            recipe.steps,
            recipe.seed,
        )

    def loss_of(self, batch: Batch, frames: Tensor, n_sharp: int) -> tuple[Tensor, Tensor]:
        """Of the step that comes next, of actions and of hints; `batch` is on the device."""
        recipe = self.recipe
        generator = torch.Generator(self.device).manual_seed(recipe.seed * 1_000_003 + self.step)
        retained, queries = (
            augmented(frames[blocks.frames], generator) for blocks in (batch.retained, batch.queries)
        )
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            middle, final = self.model.states(batch, retained, queries, LAYER)
            hints = self.hints(middle, batch.hints)
        actions = action_loss(self.model.logits(final), batch.labels, recipe.width_bins, n_sharp)
        return actions, hints

    def _train_on(self, batch: Batch, frames: Tensor, n_sharp: int) -> Tensor:
        recipe, step = self.recipe, self.step
        warm = min(1.0, (step + 1) / recipe.warmup_steps)
        rate = recipe.learning_rate * warm * (1 - step / recipe.steps) ** 0.5 * (1 - step / recipe.steps)
        actions, hints = self.loss_of(batch, frames, n_sharp)
        self.optimiser.zero_grad()
        (actions + recipe.hints_weight * hints).backward()
        self.optimiser.step(rate)
        return torch.stack([actions.detach(), hints.detach()])

    def _embeddings_of(self, frames: Tensor) -> Tensor:
        """(N, hidden) pooled embeddings, in a file: shared memory is small on some machines."""
        hidden = self.model.config.hidden_size
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / "embeddings.partial"
        n_values = len(frames) * hidden
        embeddings = torch.from_file(str(path), shared=True, size=n_values).view(len(frames), hidden)
        path.unlink()
        self._refresh(embeddings, frames)
        return embeddings

    def _refresh(self, embeddings: Tensor, frames: Tensor) -> None:
        embeddings[:] = self.model.pooled_embeddings(frames)

    def _resume(self) -> None:
        progress = self._folder / "progress.json"
        if not progress.exists():
            return
        try:
            found = json.loads(read_text(progress, _MAX_PROGRESS_BYTES))
            check(found, _Progress)
        except (OSError, ValueError) as error:
            raise _unfit(progress, reason_of(error)) from None
        if found["recipe"] != asdict(self.recipe):
            raise ValueError(
                f"{progress} is of the recipe {found['recipe']}, wanted {asdict(self.recipe)}: "
                "give another --out or the same options"
            )
        self.step, self.history = found["step"], found["history"]
        self.seconds = found["seconds"]
        try:
            self.model.load_state_dict(load_file(self._folder / "model.safetensors"))
            first, second = (
                load_file(self._folder / f"{name}_moments.safetensors", str(self.device))
                for name in ("first", "second")
            )
            self.hints.load_state_dict(load_file(self._folder / "hints.safetensors"))
            self.optimiser.restore(first, second, self.step)
        except (OSError, KeyError, RuntimeError, SafetensorError) as error:
            raise _unfit(self._folder, str(error)) from None

    def _save(self, n_sequences: int, n_frames: int) -> None:
        """Weights and moments, then the progress that names them."""
        self._folder.mkdir(parents=True, exist_ok=True)
        first, second = self.optimiser.moments()
        tensors = {
            "model": self.model.state_dict(),
            "hints": self.hints.state_dict(),
            "first_moments": first,
            "second_moments": second,
        }
        for name, values in tensors.items():
            values = {key: value.detach().float().cpu().contiguous() for key, value in values.items()}
            path = self._folder / f"{name}.safetensors"
            save_file(values, path.with_suffix(".partial"))
            os.replace(path.with_suffix(".partial"), path)
        progress = {
            "step": self.step,
            "recipe": asdict(self.recipe),
            "seconds": self.seconds,
            "device": torch.cuda.get_device_name() if self.device.type == "cuda" else "cpu",
            "torch": torch.__version__,
            "sequences": n_sequences,
            "frames": n_frames,
            "history": self.history,
        }
        path = self._folder / "progress.json"
        path.with_suffix(".partial").write_text(json.dumps(progress))
        os.replace(path.with_suffix(".partial"), path)


def _unfit(path: Path, reason: str) -> ValueError:
    return ValueError(f"{path}: no training to go on with: {reason}; remove it, or give another --out")


def augmented(frames: Tensor, generator: torch.Generator) -> Tensor:
    """(n, 64, 128, 3) float in [-1, 1] and a little beyond: other light and sensor noise for each frame.

    Without it a model reads renderers: two of them differ by a grey level or two.
    """
    n, device = len(frames), frames.device
    gain = 1 + 0.05 * (2 * torch.rand(n, 1, 1, 1, generator=generator, device=device) - 1)
    shift = 0.03 * torch.randn(n, 1, 1, 3, generator=generator, device=device)
    noise = 0.02 * torch.randn(frames.shape, generator=generator, device=device)
    return (frames.float() / 127.5 - 1) * gain + shift + noise
