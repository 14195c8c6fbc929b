"""Bytes and FLOPs of a pass against sums done by hand, and what the driver's tool is understood to say."""

import pytest

from vla_edge_ros.engine.cuda.nvidia_smi import device_and_driver, process_gpu_bytes
from vla_edge_ros.engine.cuda.roofline import roofline, stage_work, step_bytes
from vla_edge_ros.engine.presets import PRESETS

CONFIG = PRESETS["qwen2.5-coder-1.5b"]
# A layer: Q and O 1536 x 1536 each, K and V 256 x 1536 each, gate, up and down 8960 x 1536 each.
LAYER = 2 * 1536 * 1536 + 2 * 256 * 1536 + 3 * 8960 * 1536
RANK = 28 * 2 * 256 * 2
"""Bytes of the keys and values of a rank: 28 layers, 256 values each, bf16."""


def test_a_decode_step_moves_the_weights_the_context_and_the_small_head_once():
    assert step_bytes(CONFIG, 4081) == 2 * 28 * LAYER + 4081 * RANK + 2 * 256 * 1536 == 2_738_188_288


def test_the_work_of_each_stage_is_what_its_arithmetic_needs():
    work = stage_work(CONFIG, n_context=4045, n_moved=4000)
    assert work["fetch_and_rank"] == {"bytes": 2 * 4000 * RANK, "flops": 0}
    assert work["vision"] == {"bytes": 2 * 1536 * 768 + 32 * 768, "flops": 2 * 32 * 768 * 1536}
    # Query t of the frame sees 4045 + t + 1 keys; scores and their sum take two products of 1536 each.
    seen = sum(4045 + t + 1 for t in range(32))
    assert work["prefill"]["flops"] == 2 * 32 * 28 * LAYER + 4 * seen * 1536 * 28
    assert work["prefill"]["bytes"] == 2 * 28 * LAYER + 4077 * RANK
    assert work["decode_step"]["bytes"] == step_bytes(CONFIG, 4081) + RANK
    assert work["decode_step"]["flops"] == 2 * (28 * LAYER + 256 * 1536) + 4 * 4081 * 1536 * 28


def test_a_stage_is_bound_by_what_takes_longer():
    work = {"a": {"bytes": 4_000_000, "flops": 10**9}, "b": {"bytes": 0, "flops": 0}}
    times_us = {"a": 2.0, "b": 1.0}
    by_bytes = roofline(work, times_us, read_gbps=4000, bf16_tflops=1000)["a"]
    assert (by_bytes["bound_by"], by_bytes["limit_us"], by_bytes["share"]) == ("bytes", 1.0, 0.5)
    by_flops = roofline(work, times_us, read_gbps=4000, bf16_tflops=800)["a"]
    assert (by_flops["bound_by"], by_flops["limit_us"], by_flops["share"]) == ("flops", 1.25, 0.625)
    assert roofline(work, times_us, read_gbps=4000, bf16_tflops=None)["a"] == by_bytes
    assert roofline(work, times_us, 4000, 800)["b"]["share"] is None


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Puts an `nvidia-smi` with this answer on the PATH."""

    def put(text: str, exit_code: int = 0) -> None:
        path = tmp_path / "nvidia-smi"
        path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {exit_code}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")

    return put


def test_the_memory_of_a_process_is_the_sum_of_its_rows(tool):
    tool("17, 3210\n18, 77\n17, 40")
    assert process_gpu_bytes(17) == 3250 * 2**20
    assert process_gpu_bytes(19) is None
    tool("17, [N/A]")
    assert process_gpu_bytes(17) is None


def test_device_and_driver_are_those_of_the_first_gpu(tool):
    tool("NVIDIA H200, 580.159.04\nNVIDIA H100, 580.159.04")
    assert device_and_driver() == ("NVIDIA H200", "580.159.04")
    tool("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", exit_code=9)
    assert device_and_driver() is None
    assert process_gpu_bytes(17) is None
