"""The NumPy model as the trials need it: any context, and whole distributions of actions."""

import hashlib
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from vla_edge_ros.engine.interface import FRAME_TOKENS
from vla_edge_ros.engine.key_summary import key_summary
from vla_edge_ros.engine.numpy_decoder import NumpyDecoder
from vla_edge_ros.engine.presets import PRESETS, TRAINED, model_folder
from vla_edge_ros.engine.weights import open_weights, read_vision
from vla_edge_ros.memory.signals import PassSignals
from vla_edge_ros.perception.signature import patch_signature

SEEDED = "seeded"
"""Instead of a digest, where a model has no weights of its own."""


class Pass(NamedTuple):
    """tokens (A,) rows of the 256 actions that were decoded or given; log_probabilities (A, 256) float64.

    signals: as the NumPy engine tells them.
    """

    tokens: np.ndarray
    log_probabilities: np.ndarray
    signals: PassSignals


class TrialModel:
    """A decoder and its cache of `n_slots`; several memories may take turns in it.

    Arithmetic is that of the NumPy engine, on one BLAS thread. Where the tokens are given, the A action
    tokens are run as one block, which is the same attention in one call.

    has_positions: False turns RoPE off.
    """

    def __init__(self, model: str, seed: int, n_slots: int, action_tokens: int, has_positions: bool = True):
        config, weights = open_weights(model, seed)
        self._threads = threadpool_limits(1, user_api="blas")
        self.n_slots = n_slots
        self.action_tokens = action_tokens
        self.first_action = config.first_action
        self._action_start = config.action_start
        self.decoder = NumpyDecoder(config, weights, n_slots, FRAME_TOKENS)
        if not has_positions:
            self.decoder.cosines[:] = 1.0
            self.decoder.sines[:] = 0.0
        self._n_prompt = 0
        self._vision = read_vision(weights, config.hidden_size)

    def fill_prompt(self, tokens: np.ndarray, slots: np.ndarray) -> None:
        self._n_prompt = len(tokens)
        self.decoder.count_attention(0, None)
        self.decoder.start(slots[:0])
        for first in range(0, len(tokens), FRAME_TOKENS):
            part = slice(first, first + FRAME_TOKENS)
            self.decoder.extend(self.decoder.embed_tokens(tokens[part]), slots[part])

    def embedding(self, kind: str, frame: np.ndarray, frame_slots: np.ndarray) -> np.ndarray:
        """What `memory.embedding` = `kind` gives for `frame`, which a pass has put into `frame_slots`."""
        if kind == "patch_signature":
            return patch_signature(frame)
        if kind == "pooled":
            return self._vision.embed(frame).mean(axis=0)
        return key_summary(self.decoder.cached_keys[0, frame_slots])

    def run(
        self,
        frame: np.ndarray,
        context: np.ndarray,
        frame_slots: np.ndarray,
        action_slots: np.ndarray,
        tokens: np.ndarray | None = None,
    ) -> Pass:
        """A pass over `context` (n,) in rank order; `tokens` (A,) are those it must decode, else its own."""
        decoder = self.decoder
        attention = np.zeros(max(0, len(context) - self._n_prompt) // FRAME_TOKENS)
        decoder.count_attention(self._n_prompt, attention if len(attention) else None)
        decoder.start(context)
        decoder.extend(self._vision.embed(frame), frame_slots)
        by_frame = attention.copy()
        if tokens is None:
            tokens, logits = self._decode(action_slots)
        else:
            given = np.concatenate(([self._action_start], self.first_action + tokens[:-1]))
            normed = decoder.extend(decoder.embed_tokens(given), action_slots)
            logits = np.array([decoder.action_logits(row).copy() for row in normed], np.float64)
        value_norm = float(np.linalg.norm(decoder.cached_values[:, frame_slots], axis=2).mean())
        signals = PassSignals(by_frame, attention - by_frame, value_norm)
        return Pass(tokens, log_softmax(logits), signals)

    def _decode(self, action_slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        decoder, n_actions = self.decoder, len(action_slots)
        logits = np.zeros((n_actions, 256))
        token = np.array([self._action_start], np.intp)
        for step in range(n_actions):
            normed = decoder.extend(decoder.embed_tokens(token), action_slots[step : step + 1])
            logits[step] = decoder.action_logits(normed[0])
            token[0] = self.first_action + int(np.argmax(logits[step]))
        return logits.argmax(axis=1), logits


def weights_digest(model: str) -> str:
    """The first 12 hex digits of the SHA-256 of a model's safetensors, by name, or `SEEDED`.

    Raises EngineError for a model that `open_weights` refuses.
    """
    open_weights(model, 0)
    folder = model_folder(model)
    if (model in PRESETS and model not in TRAINED) or not folder.is_dir():
        return SEEDED
    single = folder / "model.safetensors"
    digest = hashlib.sha256()
    for path in [single] if single.exists() else sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:12]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
