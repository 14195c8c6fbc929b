"""Measure the CUDA engine on this machine's GPU: `python -m vla_edge_ros.engine.cuda.benchmark --json PATH`.

Weights are random normals of the preset's distribution (timing does not depend on them); the memory is full,
or holds about 128 and 1024 slots. Device times come from the kernels (globaltimer), host times from the
steady clock; every figure is printed with its n.
"""

import argparse
import hashlib
import json
import os
import sys
import time
import traceback
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from vla_edge_ros.engine.cuda import nvidia_smi
from vla_edge_ros.engine.cuda.ceilings import measure_ceilings
from vla_edge_ros.engine.cuda.decoder import CudaDecoder, FrameMemory
from vla_edge_ros.engine.cuda.device import Device
from vla_edge_ros.engine.cuda.kernels import STAGE_MARKS, Kernels
from vla_edge_ros.engine.cuda.roofline import stage_work, step_bytes
from vla_edge_ros.engine.cuda.sources import sources_sha256
from vla_edge_ros.engine.cuda.tuning import plan_of_device
from vla_edge_ros.engine.interface import FRAME_TOKENS, MAX_ACTION_TOKENS
from vla_edge_ros.engine.presets import PRESETS
from vla_edge_ros.engine.weights import SeededWeights
from vla_edge_ros.figures import percentiles
from vla_edge_ros.perception.frame_buffer import FrameBuffer

PROMPT_TOKENS = 45


def full_context(n_slots: int) -> int:
    """Ranks before the frame of a pass at full memory."""
    n_frames = (n_slots - PROMPT_TOKENS - MAX_ACTION_TOKENS) // FRAME_TOKENS
    return PROMPT_TOKENS + (n_frames - 1) * FRAME_TOKENS


class RandomWeights(SeededWeights):
    """The preset's distribution from a fast generator, repeated every million values."""

    def read(self, name: str, out: np.ndarray, first_row: int = 0) -> np.ndarray:
        mean, deviation = self._distribution(name)
        rng = np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little"))
        flat = out.reshape(-1)
        block = rng.standard_normal(min(flat.size, 1 << 20), dtype=np.float32)
        block = block * np.float32(deviation) + np.float32(mean)
        for first in range(0, flat.size, block.size):
            piece = flat[first : first + block.size]
            piece[:] = block[: piece.size]
        return out


def quantiles_us(values_ns) -> dict[str, float]:
    found = percentiles(np.asarray(values_ns).reshape(-1).tolist())
    return {name: value if name == "n" else round(value / 1e3, 1) for name, value in found.items()}


class Bench:
    def __init__(self, device: Device, model: str, n_slots: int):
        self.device, self.config = device, PRESETS[model]
        plan, _ = plan_of_device(device, self.config, n_slots)
        self.frames = FrameBuffer.create()
        memory = FrameMemory(self.frames.address, self.frames.size_bytes)
        kernels = Kernels(device, plan)
        self.decoder = CudaDecoder(device, plan, kernels, RandomWeights(self.config, 0), memory)
        self.rng = np.random.default_rng(1)
        self.slots = self.rng.permutation(plan.n_slots).astype(np.int32)
        self.full = full_context(plan.n_slots) + FRAME_TOKENS
        tokens = self.rng.integers(0, self.config.vocab_size, PROMPT_TOKENS).astype(np.int32)
        self.decoder.fill_prompt(tokens, self.slots[:PROMPT_TOKENS])
        for n in range(PROMPT_TOKENS, self.full - FRAME_TOKENS, FRAME_TOKENS):
            self.write_frame()
            self.decoder.begin(self.slots[:n], self.slots[n : n + FRAME_TOKENS], 1)
            self.decoder.finish()

    def write_frame(self) -> None:
        self.frames.write(self.rng.integers(0, 256, (64, 128, 3), dtype=np.uint8), 0, 0, 0)

    def passes(self, n_passes: int, n_context: int, is_evicting: bool) -> dict:
        """Time passes after `n_context` ranks; evicting: the oldest frame leaves first, so all ranks move."""
        rows, steps, host, busy = [], [], [], []
        # What the engine knows of a pass when it waits for one.
        least_ns = 0
        context = self.slots[:n_context].copy()
        frame = self.slots[n_context : n_context + FRAME_TOKENS]
        for i in range(n_passes + 20):
            self.write_frame()
            if is_evicting:
                context[PROMPT_TOKENS:] = np.roll(context[PROMPT_TOKENS:], -FRAME_TOKENS)
            cpu, began = time.thread_time_ns(), time.perf_counter_ns()
            self.decoder.begin(context, frame, MAX_ACTION_TOKENS)
            told = self.decoder.finish(least_ns)
            ended, cpu = time.perf_counter_ns(), time.thread_time_ns() - cpu
            ends = told["step_ended_ns"].astype(np.int64)
            marks = [int(told[name]) for name in STAGE_MARKS]
            took_ns = int(ends[-1]) - marks[0]
            least_ns = min(least_ns or took_ns, took_ns)
            if i < 20:
                continue
            rows.append(np.diff([*marks, ends[-1]]))
            steps.append(np.diff(ends))
            host.append(ended - began)
            busy.append(cpu)
        rows = np.array(rows)
        median_step_ns = float(np.median(steps))
        moved = step_bytes(self.config, n_context + FRAME_TOKENS + MAX_ACTION_TOKENS // 2)
        return {
            "n_context": n_context,
            "is_evicting": is_evicting,
            "pass_us": quantiles_us(rows.sum(axis=1)),
            "fetch_and_rank_us": quantiles_us(rows[:, 0]),
            "vision_us": quantiles_us(rows[:, 1]),
            "prefill_us": quantiles_us(rows[:, 2]),
            "decode_step_us": quantiles_us(steps),
            "host_pass_us": quantiles_us(host),
            "host_cpu_us": quantiles_us(busy),
            "work": stage_work(self.config, n_context, (n_context - PROMPT_TOKENS) * is_evicting),
            "decode_step_bytes": moved,
            "decode_gbps": round(moved / median_step_ns, 1),
        }

    def aborts(self, n: int) -> dict:
        """Time from a cut-off amid decoding to the end of the pass, in device time."""
        context, frame = (
            self.slots[: self.full - FRAME_TOKENS],
            self.slots[self.full - FRAME_TOKENS : self.full],
        )
        late_ns, aborted = [], 0
        for i in range(n):
            self.write_frame()
            self.decoder.begin(context, frame, MAX_ACTION_TOKENS)
            told = self.decoder.finish()
            offset_ns = time.monotonic_ns() - int(told["step_ended_ns"][-1])
            cut_ns = time.monotonic_ns() - offset_ns + 3_000_000 + i * 7_919 % 4_000_000
            self.decoder.begin(context, frame, MAX_ACTION_TOKENS, abort_ns=cut_ns)
            told = self.decoder.finish()
            if told["is_aborted"]:
                aborted += 1
                late_ns.append(int(told["stopped_ns"]) - cut_ns)
        return {"abort_us": quantiles_us(late_ns), "aborted": aborted, "n": n}


def device_memory(device: Device) -> dict:
    """`process_gpu_bytes` as the driver sees it, and from what."""
    own = nvidia_smi.process_gpu_bytes(os.getpid())
    if own is not None:
        return {"process_gpu_bytes": own, "process_gpu_bytes_from": "nvidia-smi, of this process"}
    return {
        "process_gpu_bytes": device.used_bytes(),
        "process_gpu_bytes_from": "cuMemGetInfo: all that is in use on the device, by any process",
    }


def measure(options: argparse.Namespace, record: dict) -> None:
    """Fill `record` as far as it goes. Raises what a measurement raises."""
    device = Device()
    record |= {"device": device.name, "driver_cuda": device.driver_version}
    record["context_bytes"] = device.used_bytes()
    bench = Bench(device, options.model, options.slots)
    record |= {
        "plan_id": bench.decoder.plan_id,
        "account_bytes": bench.decoder.arena.account,
        **device_memory(device),
    }
    n_context = bench.full - FRAME_TOKENS
    record["full"] = full = bench.passes(options.passes, n_context, is_evicting=True)
    record["pass_ms_p50"] = round(full["pass_us"]["p50"] / 1e3, 4)
    record["pass_p999_over_p50"] = round(full["pass_us"]["p999"] / full["pass_us"]["p50"], 4)
    record["decode_step_ms_p50"] = round(full["decode_step_us"]["p50"] / 1e3, 4)
    record["host_ms_per_pass"] = round(full["host_cpu_us"]["p50"] / 1e3, 4)
    record["full_unchanged"] = bench.passes(min(options.passes, 500), n_context, is_evicting=False)
    for n in (128, 1024):
        if n + FRAME_TOKENS + MAX_ACTION_TOKENS <= options.slots:
            record[f"at_{n}"] = bench.passes(
                min(options.passes, 200), n - n % 32 + PROMPT_TOKENS - 32, is_evicting=False
            )
    record["abort"] = bench.aborts(min(options.passes, 200))
    record["abort_ms_p99"] = record["abort"]["abort_us"]["p99"] / 1e3
    bench.decoder.close()
    record |= {name: round(value, 1) for name, value in measure_ceilings(device).items()}
    record["decode_fraction_of_read"] = round(full["decode_gbps"] / record["read_ceiling_gbps"], 4)
    record["decode_fraction_of_copy"] = round(full["decode_gbps"] / record["copy_ceiling_gbps"], 4)
    bench.frames.close()
    device.close()


def main() -> int:
    """1 where a measurement failed: those before it are written all the same."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--model", default="qwen2.5-coder-1.5b", choices=sorted(PRESETS))
    parser.add_argument("--slots", type=int, default=4096)
    parser.add_argument("--passes", type=int, default=20_000)
    options = parser.parse_args()

    record = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "model": options.model,
        "n_slots": options.slots,
        "sources_sha256": sources_sha256(),
    }
    try:
        measure(options, record)
    except Exception as error:
        traceback.print_exc()
        record["failed"] = f"{type(error).__name__}: {error}"
    text = json.dumps(record, indent=1)
    if options.json:
        options.json.write_text(text + "\n")
    print(text)
    return 1 if "failed" in record else 0


if __name__ == "__main__":
    sys.exit(main())
