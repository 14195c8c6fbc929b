"""Which files make up a recording, and what kind each of them is.

A file's kind is told from its first bytes, since suffixes and metadata.yaml are often missing or wrong;
metadata.yaml only says which files belong to a recording.
"""

import re
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path, PurePath

import yaml
import zstandard

from vla_edge_ros.evaluation import storage_mcap, storage_ros1, storage_sqlite, storage_video
from vla_edge_ros.evaluation.recording import ZSTD_MAGIC, Storage, StorageError, compression_name
from vla_edge_ros.input import read_text

_SUFFIXES = (".mcap", ".db3", ".bag", ".mcap.zstd", ".db3.zstd", ".bag.zstd")
_LISTED_FILES = 12
_MAX_METADATA_BYTES = 16_000_000


def recording_files(path: Path) -> list[Path]:
    """The files of a recording in the order of recording."""
    if not path.exists():
        raise StorageError("no such file or folder")
    if not path.is_dir():
        return [path]
    named = _files_named_by_metadata(path)
    if named:
        return named
    files = sorted((f for f in path.iterdir() if f.name.endswith(_SUFFIXES)), key=_natural_order)
    if not files:
        inside = sorted({f.parent.name for f in path.glob("*/*") if f.name.endswith(_SUFFIXES)})
        hint = f"; there are some in its folders {', '.join(inside[:3])}" if inside else ""
        raise StorageError(f"no recording in this folder (wanted {', '.join(_SUFFIXES[:3])}){hint}")
    if len({re.sub(r"_\d+\.", "_N.", f.name) for f in files}) > 1:
        names = ", ".join(f.name for f in files[:_LISTED_FILES])
        raise StorageError(f"several recordings and no metadata.yaml, name one of them: {names}")
    return files


def _files_named_by_metadata(folder: Path) -> list[Path]:
    """The files that metadata.yaml names; none where it is missing or broken."""
    try:
        metadata = yaml.safe_load(read_text(folder / "metadata.yaml", _MAX_METADATA_BYTES))
        names = [
            PurePath(name).name for name in metadata["rosbag2_bagfile_information"]["relative_file_paths"]
        ]
    # Whatever it is: the folder is looked through instead. PyYAML raises more than YAMLError.
    except Exception:
        return []
    files = []
    for name in names:
        # A recording may have been compressed or decompressed after its metadata was written.
        alternatives = (folder / name, folder / f"{name}.zstd", folder / name.removesuffix(".zstd"))
        there = next((file for file in alternatives if file.is_file()), None)
        if there is None:
            raise StorageError(f"metadata.yaml names {name}, which is not there")
        files.append(there)
    return files


def _natural_order(file: Path) -> list:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", file.name)]


def open_storage(path: Path, resources: ExitStack) -> Storage:
    """Open one file by its first bytes; `resources` keeps what was decompressed until it is closed."""
    if not path.is_file():
        raise StorageError("not a regular file")
    head = _head(path)
    if head.startswith(ZSTD_MAGIC):
        path = _decompress_file(path, resources)
        head = _head(path)
    if not head:
        raise StorageError("the file is empty (0 bytes)")
    if head.startswith(storage_mcap.MAGIC):
        return storage_mcap.McapStorage(path)
    if head.startswith(storage_sqlite.MAGIC):
        return storage_sqlite.SqliteStorage(path)
    if head.startswith(storage_ros1.MAGIC):
        return storage_ros1.Ros1Storage(path)
    if storage_video.looks_like_video(head):
        return storage_video.VideoStorage(path)
    if compression := compression_name(head):
        raise StorageError(f"compressed with {compression}, which is not read here; decompress it first")
    raise StorageError(
        f"not a recording, since it begins with {head!r}; wanted rosbag2 (mcap, sqlite3), a ROS 1 bag"
        " or a video (mp4, avi, mkv)"
    )


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(16)


def _decompress_file(path: Path, resources: ExitStack) -> Path:
    """Decompress to disk, since sqlite3 needs to seek; what a cut file still gives is kept."""
    folder = resources.enter_context(tempfile.TemporaryDirectory(prefix="vla_edge_bag_"))
    target = Path(folder) / path.stem
    try:
        with path.open("rb") as compressed, target.open("wb") as plain:
            reader = zstandard.ZstdDecompressor().stream_reader(compressed, read_across_frames=True)
            shutil.copyfileobj(reader, plain, 1 << 20)
    except zstandard.ZstdError:
        pass
    except OSError as error:
        raise StorageError(
            f"cannot be decompressed into {folder}: {error.strerror}; set TMPDIR to a folder with room"
        ) from None
    if not target.stat().st_size:
        raise StorageError("nothing can be decompressed, the zstd file is empty, cut short or damaged")
    return target
