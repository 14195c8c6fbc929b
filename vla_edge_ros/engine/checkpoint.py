"""Weights from safetensors files, one or sharded; headers are checked before a tensor is read.

Format: 8 bytes little-endian header size n, n bytes of JSON that give every tensor's dtype, shape and
[begin, end) in the data that follows (https://huggingface.co/docs/safetensors).
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vla_edge_ros.engine.model_config import MAX_FILE_BYTES, ModelRefused
from vla_edge_ros.input import read_text

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_STORED_AS = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
_MAX_HEADER_BYTES = 100_000_000
_CHUNK_VALUES = 1 << 22


@dataclass(frozen=True, slots=True)
class _Tensor:
    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Of the first value, in bytes from the file's start."""


class CheckpointWeights:
    """Tensors of a checked checkpoint, read from disk as float32."""

    notes: tuple[str, ...] = ()

    def __init__(self, tensors: dict[str, _Tensor]):
        self._tensors = tensors

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def read(self, name: str, out: np.ndarray, first_row: int = 0) -> np.ndarray:
        """Fill `out` (float32, C-contiguous) with the tensor's rows from `first_row` on, and return it.

        Raises ModelRefused where the file has changed and ends too early.
        """
        tensor = self._tensors[name]
        stored = _STORED_AS[tensor.dtype]
        flat = out.reshape(-1)
        with tensor.path.open("rb") as file:
            file.seek(tensor.offset + first_row * math.prod(tensor.shape[1:]) * stored.itemsize)
            for start in range(0, flat.size, _CHUNK_VALUES):
                n = min(_CHUNK_VALUES, flat.size - start)
                values = np.fromfile(file, stored, n)
                if len(values) < n:
                    raise ModelRefused(f"{tensor.path} ends within tensor {name}")
                if tensor.dtype == "BF16":
                    values = (values.astype(np.uint32) << 16).view(np.float32)
                flat[start : start + n] = values
        return out


def open_checkpoint(
    directory: Path,
    required: dict[str, tuple[int, ...]],
    optional: dict[str, tuple[int, ...]],
    ignored: tuple[str, ...],
) -> CheckpointWeights:
    """Check the files of `directory` against the shapes wanted, by their headers alone.

    optional: tensors that are there all or not at all. ignored: names that may be there and are not read.
    Raises ModelRefused, naming the file or tensor, for files that are missing, truncated, no safetensors, or
    in disagreement with each other or with `required`.
    """
    found: dict[str, _Tensor] = {}
    for path, names in _files(directory).items():
        header = _read_header(path)
        for name in names if names is not None else header:
            if name not in header:
                raise ModelRefused(f"{path} has no tensor {name}, which {_INDEX} says it holds")
        for name, tensor in header.items():
            if name in found:
                raise ModelRefused(f"tensor {name} is in {found[name].path.name} and in {path.name}")
            found[name] = tensor
    wanted = dict(required)
    if any(name in found for name in optional):
        wanted |= optional
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ModelRefused(
            f"{directory} lacks tensor {missing[0]} ({len(missing)} of {len(wanted)} are missing)"
        )
    unknown = [
        name for name in found if name not in wanted and name not in ignored and "rotary_emb" not in name
    ]
    if unknown:
        raise ModelRefused(
            f"{directory} has tensor {unknown[0]} ({len(unknown)} in all) that config.json does not explain"
        )
    for name, shape in wanted.items():
        tensor = found[name]
        if tensor.shape != shape:
            raise ModelRefused(
                f"{tensor.path}: tensor {name} has shape {list(tensor.shape)}; config.json: {list(shape)}"
            )
        if tensor.dtype not in _STORED_AS:
            raise ModelRefused(
                f"{tensor.path}: tensor {name} is stored as {tensor.dtype}; known are {', '.join(_STORED_AS)}"
            )
    return CheckpointWeights({name: found[name] for name in wanted})


def _files(directory: Path) -> dict[Path, list[str] | None]:
    """The safetensors files of a directory, each with the tensors that an index promises (None: no index)."""
    if (directory / _SINGLE).exists():
        return {directory / _SINGLE: None}
    index_path = directory / _INDEX
    if not index_path.exists():
        pickles = sorted(
            path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in directory.glob(pattern)
        )
        instead = (
            f"; {pickles[0]} is a pickle, which is never read: convert it to safetensors" if pickles else ""
        )
        raise ModelRefused(f"{directory} has neither {_SINGLE} nor {_INDEX}{instead}")
    try:
        shards = json.loads(read_text(index_path, MAX_FILE_BYTES))["weight_map"].items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelRefused(f"{index_path} is no index of shards: {error!r}") from None
    files: dict[Path, list[str] | None] = {}
    for name, shard in shards:
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise ModelRefused(
                f"{index_path} puts tensor {name} in {shard!r}: wanted a .safetensors file beside it"
            )
        files.setdefault(directory / shard, []).append(name)
    return files


def _read_header(path: Path) -> dict[str, _Tensor]:
    """Every tensor of a file, after checking that they fill its data without gap or overlap."""
    header, data_start, size = _read_json(path)
    tensors, spans = {}, []
    for name, entry in header.items():
        dtype, shape, begin, end = _checked_entry(path, name, entry)
        tensors[name] = _Tensor(path, dtype, shape, data_start + begin)
        spans.append((begin, end, name))
    expected = 0
    for begin, end, name in sorted(spans):
        if begin != expected:
            raise ModelRefused(f"{path}: data of tensor {name} begins at byte {begin}, wanted {expected}")
        expected = end
    if data_start + expected != size:
        fault = "truncated" if size < data_start + expected else "too long"
        raise ModelRefused(
            f"{path} is {fault}: {size} bytes, its header accounts for {data_start + expected}"
        )
    return tensors


def _read_json(path: Path) -> tuple[dict, int, int]:
    """A file's header without its metadata, where the data begins, and the file's size, both in bytes."""
    try:
        size = path.stat().st_size
        if not path.is_file() and not path.is_dir():
            raise ModelRefused(f"{path} is no safetensors file: it is not a regular file")
        with path.open("rb") as file:
            start = file.read(8)
            header_bytes = int.from_bytes(start, "little")
            if len(start) < 8 or header_bytes > min(_MAX_HEADER_BYTES, size - 8):
                raise ModelRefused(f"{path} ({size} bytes) is no safetensors file{_kind(start, size)}")
            header = json.loads(file.read(header_bytes))
    except OSError as error:
        raise ModelRefused(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ModelRefused(f"{path} is no safetensors file: its header is not JSON") from None
    if not isinstance(header, dict):
        raise ModelRefused(f"{path} is no safetensors file: its header is not a JSON object")
    header.pop("__metadata__", None)
    return header, 8 + header_bytes, size


def _checked_entry(path: Path, name: str, entry: object) -> tuple[str, tuple[int, ...], int, int]:
    """Type, shape, begin and end of a tensor in the header."""
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        is_sound = isinstance(dtype, str) and all(type(n) is int and n >= 0 for n in (*shape, begin, end))
    except (KeyError, TypeError, ValueError):
        is_sound = False
    if not is_sound:
        raise ModelRefused(f"{path}: the header's entry of tensor {name} is malformed")
    if dtype in _STORED_AS and end - begin != math.prod(shape) * _STORED_AS[dtype].itemsize:
        raise ModelRefused(
            f"{path}: tensor {name} of shape {list(shape)} and type {dtype} has {end - begin} bytes"
        )
    return dtype, shape, begin, end


def _kind(start: bytes, size: int) -> str:
    if size < 8:
        return ": it is shorter than a header"
    if start.startswith(b"PK"):
        return ": it is a zip archive, as PyTorch's pickles are, under another name"
    if start[:1] == b"\x80":
        return ": it is a pickle under another name"
    if start.startswith(b"version "):
        return ": it is a Git LFS pointer; fetch the file itself"
    return ": the header would be longer than the file"
