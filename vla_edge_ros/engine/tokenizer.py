"""From the system prompt and the instruction to prompt tokens."""

import json
from pathlib import Path
from typing import Protocol

import numpy as np

from vla_edge_ros.engine.interface import EngineError
from vla_edge_ros.engine.model_config import MAX_FILE_BYTES, ModelConfig, ModelRefused, load_config
from vla_edge_ros.engine.presets import PRESETS
from vla_edge_ros.errors import UserError
from vla_edge_ros.input import read_text

MAX_TEXT_BYTES = 65_536
"""A longer instruction is refused untokenised: its callback would be held up."""

# Qwen2.5 splits text so before it merges bytes (tokenizer.json of the Qwen2.5 models, "pre_tokenizer").
_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


class InstructionRefused(UserError):
    """An instruction cannot become a prompt; the message is one line for the user."""


class _Encoder(Protocol):
    def encode(self, text: str, has_control_tokens: bool) -> list[int]: ...


class PromptTokenizer:
    """Makes prompts of one model; see `load_tokenizer`.

    max_tokens: the longest prompt, beside which a frame and the action tokens still fit in the cache.
    """

    def __init__(self, encoder: _Encoder, max_tokens: int):
        self._encoder = encoder
        self.max_tokens = max_tokens

    def make_prompt_tokens(self, instruction: str, system_prompt: str = "") -> np.ndarray:
        """(P,) int32: the system prompt's tokens, then the instruction's.

        Each is tokenised by itself, so the system prompt gives the same tokens before every instruction. Only
        the system prompt may hold control tokens (`<|im_start|>`); in an instruction they are plain text.
        Raises InstructionRefused for a prompt that is too long.
        """
        n_bytes = len(instruction.encode("utf-8", "replace"))
        if n_bytes > MAX_TEXT_BYTES:
            raise InstructionRefused(
                f"the instruction has {n_bytes} bytes; at most {MAX_TEXT_BYTES} are taken"
            )
        texts = ((system_prompt, True), (instruction, False))
        try:
            tokens = [token for text, has in texts for token in self._encoder.encode(_clean(text), has)]
        except Exception as error:  # the library's, for a text that its vocabulary does not cover
            raise InstructionRefused(f"the instruction cannot be tokenised: {error}") from None
        if len(tokens) > self.max_tokens:
            raise InstructionRefused(
                f"system prompt and instruction have {len(tokens)} tokens and at most {self.max_tokens} fit: "
                "shorten them or raise memory.slots"
            )
        return np.array(tokens, np.int32)


class _Bytes:
    """UTF-8 bytes as tokens 0 to 255."""

    def encode(self, text: str, has_control_tokens: bool) -> list[int]:
        return list(text.encode())


class _ByteLevelBpe:
    """A tokenizer of the `tokenizers` library."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer

    def encode(self, text: str, has_control_tokens: bool) -> list[int]:
        self._tokenizer.encode_special_tokens = not has_control_tokens
        return self._tokenizer.encode(text, add_special_tokens=False).ids


def load_tokenizer(model: str, max_tokens: int) -> PromptTokenizer:
    """The tokenizer of a preset (bytes) or of a directory (tokenizer.json, or vocab.json and merges.txt).

    Raises EngineError for an unknown model or where `tokenizers` is missing, ModelRefused for files that are
    missing, malformed or reach into the action rows.
    """
    if model in PRESETS:
        return PromptTokenizer(_Bytes(), max_tokens)
    directory = Path(model)
    if not directory.is_dir():
        raise EngineError(f"model {model!r} is neither a preset ({', '.join(PRESETS)}) nor a directory")
    config = load_config(directory / "config.json")
    try:
        import tokenizers
    except ImportError:
        raise EngineError(
            "a model directory needs the Python package `tokenizers`, which is missing"
        ) from None
    try:
        if (directory / "tokenizer.json").is_file():
            tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
        elif (directory / "vocab.json").is_file() and (directory / "merges.txt").is_file():
            tokenizer = _qwen2_tokenizer(directory)
        else:
            raise ModelRefused(f"{directory} has neither tokenizer.json nor vocab.json and merges.txt")
    except (ModelRefused, KeyboardInterrupt):
        raise
    except BaseException as error:  # a malformed file gives a plain Exception, or a panic that is none
        raise ModelRefused(f"the tokenizer in {directory} cannot be read: {error}") from None
    _require_text_rows(directory, tokenizer, config)
    return PromptTokenizer(_ByteLevelBpe(tokenizer), max_tokens)


def _qwen2_tokenizer(directory: Path):
    """The byte-level BPE of the Qwen2 family, with the added tokens of a tokenizer_config.json."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

    bpe = models.BPE.from_file(str(directory / "vocab.json"), str(directory / "merges.txt"))
    tokenizer = Tokenizer(bpe)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN2_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    settings = directory / "tokenizer_config.json"
    if settings.exists():
        added = json.loads(read_text(settings, MAX_FILE_BYTES)).get("added_tokens_decoder", {})
        for number, token in sorted((int(number), token) for number, token in added.items()):
            tokenizer.add_special_tokens([AddedToken(token["content"], normalized=False, special=True)])
            if tokenizer.token_to_id(token["content"]) != number:
                raise ModelRefused(
                    f"{settings}: {token['content']} is token {number}, and vocab.json ends elsewhere"
                )
    return tokenizer


def _require_text_rows(directory: Path, tokenizer, config: ModelConfig) -> None:
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
    if largest >= config.action_start:
        raise ModelRefused(
            f"the tokenizer in {directory} reaches row {largest}, and rows from {config.action_start} on are "
            "the action-start token and the actions"
        )


def _clean(text: str) -> str:
    """Text without lone surrogates, which have no UTF-8 form."""
    return text.encode("utf-8", "replace").decode("utf-8")
