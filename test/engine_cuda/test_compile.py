"""Every kernel compiles for every architecture, without spills or local memory, and fits; needs no GPU."""

import re
import struct
import subprocess

import pytest

from vla_edge_ros.engine.cuda.compiler import Compiler, find_nvcc
from vla_edge_ros.engine.cuda.kernels import KERNELS
from vla_edge_ros.engine.cuda.plan import decode_shared_bytes, make_plan
from vla_edge_ros.engine.interface import EngineError
from vla_edge_ros.engine.presets import PRESETS

DEVICES = {
    "sm_80": (108, 166_912),
    "sm_87": (16, 166_912),
    "sm_89": (128, 101_376),
    "sm_90": (132, 232_448),
    "sm_110": (20, 232_448),
}
"""Multiprocessors and shared memory a block may ask for: A100, Orin, RTX 4090, H200, Thor."""


@pytest.fixture(scope="module")
def architectures() -> str:
    try:
        nvcc = find_nvcc()
    except EngineError as error:
        pytest.skip(str(error))
    return subprocess.run([nvcc, "--list-gpu-code"], capture_output=True, text=True, check=True).stdout


MODELS = [("qwen2.5-coder-1.5b", architecture) for architecture in DEVICES]
MODELS += [(model, "sm_90") for model in PRESETS if model != "qwen2.5-coder-1.5b"]
WITHOUT_ROOM = {("qwen2.5-coder-1.5b", "sm_87")}
"""A block's share on 16 multiprocessors does not fit: refused when loaded."""


@pytest.mark.parametrize(("model", "architecture"), MODELS)
def test_kernels_compile_without_spills_or_local_memory_and_fit(model, architecture, architectures, tmp_path):
    if architecture not in architectures.split():
        pytest.skip(f"this nvcc is too old for {architecture}")
    plan = make_plan(PRESETS[model], 4096, *DEVICES[architecture])
    for name in (*KERNELS, "bandwidth"):
        cubin = tmp_path / f"{name}.cubin"
        said = Compiler(architecture, plan.defines(name)).compile(name, cubin, "-Xptxas", "-v")
        found = re.findall(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", said
        )
        assert found, f"{name}.cu: the compiler reported no kernel"
        assert all(numbers == ("0", "0", "0") for numbers in found), f"{name}.cu on {architecture}: {found}"
    decode, prefill = (
        constant((tmp_path / f"{name}.cubin").read_bytes(), b"SHARED_BYTES") for name in ("decode", "prefill")
    )
    assert decode <= decode_shared_bytes(plan) <= decode + 1024
    fits = max(decode, prefill) <= DEVICES[architecture][1]
    assert fits != ((model, architecture) in WITHOUT_ROOM)


def constant(cubin: bytes, name: bytes) -> int:
    """A 64-bit constant of a cubin, which is an ELF file."""
    (sections_at,) = struct.unpack_from("<Q", cubin, 0x28)
    size, n = struct.unpack_from("<HH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", cubin, sections_at + i * size) for i in range(n)]
    _, _, _, _, symbols_at, symbols_bytes, names, *_ = next(s for s in sections if s[1] == 2)
    for at in range(symbols_at, symbols_at + symbols_bytes, 24):
        name_at, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", cubin, at)
        if cubin.startswith(name + b"\0", sections[names][4] + name_at):
            return struct.unpack_from("<Q", cubin, sections[section][4] + value)[0]
    raise AssertionError(f"the cubin has no constant {name}")
