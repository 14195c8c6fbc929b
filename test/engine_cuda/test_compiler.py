"""The cache of compiled kernels, with a compiler that is a shell script."""

import shutil
from pathlib import Path

import pytest

from vla_edge_ros.engine.cuda import compiler
from vla_edge_ros.engine.cuda.compiler import Compiler, find_build
from vla_edge_ros.engine.interface import EngineError

SCRIPT = """#!/bin/sh
if [ "$1" = --version ]; then echo "Cuda compilation tools, release 12.8, V{version}"; exit; fi
echo "$@" >> "{log}"
while [ "$1" != -o ]; do shift; done
printf '\\177ELF compiled' > "$2"
"""


class Nvcc:
    def __init__(self, folder: Path, version: str):
        self.path, self._log = folder / f"nvcc-{version}", folder / f"log-{version}"
        self.path.write_text(SCRIPT.format(version=version, log=self._log))
        self.path.chmod(0o755)

    @property
    def n_runs(self) -> int:
        return len(self._log.read_text().splitlines()) if self._log.exists() else 0


@pytest.fixture
def nvcc(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    nvcc = Nvcc(tmp_path, "12.8.93")
    monkeypatch.setattr(compiler, "find_nvcc", lambda: nvcc.path)
    return nvcc


@pytest.fixture
def lose_nvcc(monkeypatch):
    def lose():
        def find():
            raise EngineError("nvcc was not found")

        monkeypatch.setattr(compiler, "find_nvcc", find)

    return lose


def test_a_kernel_is_compiled_once_for_its_options(nvcc):
    first = Compiler("sm_90", ("-DGRID=1",)).cubin("decode")
    assert Compiler("sm_90", ("-DGRID=1",)).cubin("decode") == first == b"\x7fELF compiled"
    assert nvcc.n_runs == 1
    Compiler("sm_90", ("-DGRID=2",)).cubin("decode")
    Compiler("sm_80", ("-DGRID=1",)).cubin("decode")
    Compiler("sm_90", ("-DGRID=1",)).cubin("prefill")
    assert nvcc.n_runs == 4


def test_another_compiler_compiles_anew(nvcc, monkeypatch, tmp_path):
    Compiler("sm_90").cubin("decode")
    newer = Nvcc(tmp_path, "13.0.48")
    monkeypatch.setattr(compiler, "find_nvcc", lambda: newer.path)
    Compiler("sm_90").cubin("decode")
    assert (nvcc.n_runs, newer.n_runs) == (1, 1)
    assert Compiler("sm_90").build.compiler == "nvcc13.0.48"


@pytest.mark.parametrize("content", [b"", b"\0" * 4096])
def test_a_cached_kernel_that_a_lost_disk_left_empty_is_compiled_again(nvcc, content, tmp_path):
    Compiler("sm_90").cubin("decode")
    (cached,) = tmp_path.rglob("decode.cubin")
    cached.write_bytes(content)
    assert Compiler("sm_90").cubin("decode") == b"\x7fELF compiled"
    assert cached.read_bytes() == b"\x7fELF compiled"


def test_a_cache_that_cannot_be_written_only_costs_time(nvcc, tmp_path):
    (tmp_path / "cache").write_text("no folder")
    for _ in range(2):
        assert Compiler("sm_90").cubin("decode") == b"\x7fELF compiled"
    assert nvcc.n_runs == 2


def test_without_nvcc_the_kernels_of_the_newest_one_are_taken(nvcc, lose_nvcc, monkeypatch, tmp_path):
    Compiler("sm_90").cubin("decode")
    newer = Nvcc(tmp_path, "12.10.1")
    monkeypatch.setattr(compiler, "find_nvcc", lambda: newer.path)
    Compiler("sm_90").cubin("decode")
    lose_nvcc()
    assert find_build("sm_90").compiler == "nvcc12.10.1"
    assert Compiler("sm_90").cubin("decode") == b"\x7fELF compiled"
    with pytest.raises(
        EngineError, match=r"nvcc was not found, and prefill.cu for this model is not in .*sm_90"
    ):
        Compiler("sm_90").cubin("prefill")


def test_without_nvcc_and_kernels_of_these_sources_the_build_is_refused(nvcc, lose_nvcc):
    Compiler("sm_90").cubin("decode")
    lose_nvcc()
    with pytest.raises(EngineError, match="nvcc was not found; nor are these kernels for sm_80 in the cache"):
        find_build("sm_80")
    (folder,) = compiler.cache_directory().iterdir()
    shutil.move(folder, folder.with_name(folder.name[:-8] + "0" * 8))
    with pytest.raises(EngineError, match="nor are these kernels for sm_90 in the cache"):
        find_build("sm_90")


def test_a_file_is_stored_whole_or_not_at_all(tmp_path, monkeypatch):
    target = tmp_path / "file"
    compiler.store(target, b"first")

    def fail(*_):
        raise OSError("no space")

    monkeypatch.setattr(compiler.os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        compiler.store(target, b"second")
    assert target.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [target]
