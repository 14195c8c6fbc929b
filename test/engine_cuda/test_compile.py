"""Every kernel compiles for every architecture, without spills or arrays in local memory; needs no GPU."""

import re
import subprocess

import pytest

from vla_edge_ros.engine.cuda.compiler import Compiler, find_nvcc
from vla_edge_ros.engine.cuda.plan import make_plan
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


@pytest.mark.parametrize("architecture", DEVICES)
def test_kernels_compile_without_spills_or_local_memory(architecture, architectures, tmp_path):
    if architecture not in architectures.split():
        pytest.skip(f"this nvcc is too old for {architecture}")
    plan = make_plan(PRESETS["qwen2.5-coder-1.5b"], 4096, *DEVICES[architecture])
    compiler = Compiler(architecture, plan.defines())
    for name in ("decode", "prefill", "frame", "ranked", "pack", "bandwidth"):
        said = compiler.compile(name, tmp_path / f"{name}.cubin", "-Xptxas", "-v")
        found = re.findall(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", said
        )
        assert found, f"{name}.cu: the compiler reported no kernel"
        assert all(numbers == ("0", "0", "0") for numbers in found), f"{name}.cu on {architecture}: {found}"
