"""nvcc, with an on-disk cache keyed by sources, flags, compiler and architecture."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from vla_edge_ros.engine.interface import EngineError

FLAGS = ("-std=c++17", "-O3", "-cubin")


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


class Compiler:
    """Compiles files of `cuda/` to cubins for one architecture ("sm_90"); `build` names all that went in."""

    def __init__(self, architecture: str, defines: tuple[str, ...] = ()):
        self._nvcc = find_nvcc()
        self._directory = source_directory()
        version = subprocess.run(
            [self._nvcc, "--version"], capture_output=True, text=True, check=False
        ).stdout
        self._flags = (*FLAGS, f"-arch={architecture}", *defines)
        key = "\n".join((sources_sha256(self._directory), version, *self._flags))
        self.build = hashlib.sha256(key.encode()).hexdigest()

    def cubin(self, name: str) -> bytes:
        """`cuda/NAME.cu` compiled, from the cache if it was compiled before. Raises EngineError."""
        cached = _cache_directory() / self.build[:32] / f"{name}.cubin"
        if cached.is_file():
            return cached.read_bytes()
        with tempfile.TemporaryDirectory() as work:
            built = Path(work) / "out.cubin"
            self.compile(name, built)
            cubin = built.read_bytes()
        _store(cached, cubin)
        return cubin

    def compile(self, name: str, out: Path, *flags: str) -> str:
        """Compile to `out` without the cache and return what the compiler said. Raises EngineError."""
        source = self._directory / f"{name}.cu"
        command = [str(self._nvcc), *self._flags, *flags, "-o", str(out), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = (done.stderr + done.stdout).strip().splitlines()
            first = next((line for line in lines if "error" in line), lines[-1] if lines else "no message")
            raise EngineError(f"nvcc could not compile {name}.cu: {first}")
        return done.stderr + done.stdout


def _cache_directory() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "vla_edge_ros" / "cubins"


def _store(path: Path, content: bytes) -> None:
    """Write atomically; a cache that cannot be written only costs time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(content)
        os.replace(file.name, path)
    except OSError:
        return
