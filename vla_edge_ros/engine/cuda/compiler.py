"""nvcc, with an on-disk cache keyed by sources, flags, compiler and architecture."""

import contextlib
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from vla_edge_ros.engine.interface import EngineError

FLAGS = ("-std=c++17", "-O3", "-cubin")
_ELF = b"\x7fELF"


def source_directory() -> Path:
    """`cuda/` of the source tree, or where the package was installed. Raises EngineError."""
    candidates = (
        Path(__file__).resolve().parents[3] / "cuda",
        Path(sys.prefix) / "share" / "vla_edge_ros" / "cuda",
    )
    for directory in candidates:
        if (directory / "decode.cu").is_file():
            return directory
    raise EngineError(f"the kernels' sources are in none of {', '.join(map(str, candidates))}: install again")


def find_nvcc() -> Path:
    """nvcc from PATH, CUDA_HOME, /usr/local/cuda or PyPI's nvidia-cuda-nvcc. Raises EngineError."""
    on_path = shutil.which("nvcc")
    candidates = [Path(on_path)] if on_path else []
    for root in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if root:
            candidates.append(Path(root) / "bin" / "nvcc")
    for entry in sys.path:
        candidates += sorted(Path(entry or ".").glob("nvidia/*/bin/nvcc"))
    for nvcc in candidates:
        if nvcc.is_file():
            return nvcc
    raise EngineError(
        "nvcc was not found on PATH, in CUDA_HOME or in /usr/local/cuda: install the CUDA toolkit"
    )


def sources_sha256(directory: Path) -> str:
    """One hash of all files in `cuda/`, names included."""
    digest = hashlib.sha256()
    for path in sorted(directory.glob("*.cu*")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Build:
    """What fixes the kernels' code beside a plan: architecture ("sm_90"), compiler, sources and flags.

    kernels: a hash of sources and flags.
    nvcc: the compiler itself, or None on a machine that has only kernels compiled by it.
    """

    architecture: str
    compiler: str
    kernels: str
    nvcc: Path | None = field(default=None, compare=False)

    @property
    def directory(self) -> Path:
        """Where compiled kernels and chosen plans of this build are kept; may be copied to a like machine."""
        return cache_directory() / f"{self.architecture}-{self.compiler}-k{self.kernels}"


def find_build(architecture: str) -> Build:
    """The build of this machine's nvcc; without one, of its newest cached kernels. Raises EngineError."""
    digest = hashlib.sha256("\n".join((sources_sha256(source_directory()), *FLAGS)).encode())
    kernels = digest.hexdigest()[:8]
    try:
        nvcc = find_nvcc()
    except EngineError as error:
        cached = [path.name.split("-") for path in cache_directory().glob(f"{architecture}-nvcc*-k{kernels}")]
        if not cached:
            raise EngineError(
                f"{error}; nor are these kernels for {architecture} in the cache {cache_directory()}"
            ) from None
        return Build(architecture, max((name[1] for name in cached), key=version_of), kernels)
    return Build(architecture, f"nvcc{_nvcc_version(nvcc)}", kernels, nvcc)


def version_of(compiler: str) -> tuple[int, ...]:
    """("nvcc13.0.48") -> (13, 0, 48)."""
    return tuple(map(int, re.findall(r"\d+", compiler)))


@functools.cache
def _nvcc_version(nvcc: Path) -> str:
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"\bV(\d+(?:\.\d+)+)", said)
    if found is None:
        raise EngineError(f"{nvcc} --version names no version: is it a whole CUDA toolkit?")
    return found[1]


class Compiler:
    """Compiles files of `cuda/` to cubins for one architecture, with `defines` such as "-DGRID=128"."""

    def __init__(self, architecture: str, defines: tuple[str, ...] = ()):
        self.build = find_build(architecture)
        self._flags = (*FLAGS, f"-arch={architecture}", *defines)

    def cubin(self, name: str) -> bytes:
        """`cuda/NAME.cu` compiled, from the cache if it was compiled before. Raises EngineError."""
        key = hashlib.sha256("\n".join(self._flags).encode()).hexdigest()[:16]
        cached = self.build.directory / key / f"{name}.cubin"
        with contextlib.suppress(OSError):
            cubin = cached.read_bytes()
            if cubin.startswith(_ELF):
                return cubin
        if self.build.nvcc is None:
            raise EngineError(
                f"nvcc was not found, and {name}.cu for this model is not in {self.build.directory}: install "
                "the CUDA toolkit, or copy that folder from a machine that has run this model"
            )
        with tempfile.TemporaryDirectory() as work:
            built = Path(work) / "out.cubin"
            self.compile(name, built)
            cubin = built.read_bytes()
        with contextlib.suppress(OSError):  # a cache that cannot be written only costs time
            store(cached, cubin)
        return cubin

    def compile(self, name: str, out: Path, *flags: str) -> str:
        """Compile to `out` without the cache and return what the compiler said. Raises EngineError."""
        source = source_directory() / f"{name}.cu"
        command = [str(self.build.nvcc), *self._flags, *flags, "-o", str(out), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = (done.stderr + done.stdout).strip().splitlines()
            first = next((line for line in lines if "error" in line), lines[-1] if lines else "no message")
            raise EngineError(f"nvcc could not compile {name}.cu: {first}")
        return done.stderr + done.stdout


def cache_directory() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "vla_edge_ros" / "kernels"


def store(path: Path, content: bytes) -> None:
    """Write a whole file or none, even if the power fails. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
