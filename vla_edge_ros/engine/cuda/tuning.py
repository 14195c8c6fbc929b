"""The plan of a device: the fastest of a few, measured once and kept beside the compiled kernels.

Compiling takes seconds and the weights' values do not matter to time, so each plan is measured whole: its
kernels, an arena with random weights, passes at full memory. The weights are read once, for the plan chosen.
"""

import json
import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np

from vla_edge_ros.engine.cuda.compiler import Build, Compiler, find_build, store
from vla_edge_ros.engine.cuda.decoder import CudaDecoder, FrameMemory
from vla_edge_ros.engine.cuda.device import Device
from vla_edge_ros.engine.cuda.kernels import KERNELS, Kernels
from vla_edge_ros.engine.cuda.plan import Plan, candidates
from vla_edge_ros.engine.interface import FRAME_TOKENS, MAX_ACTION_TOKENS, EngineError
from vla_edge_ros.engine.model_config import ModelConfig
from vla_edge_ros.engine.seeded import usable_threads
from vla_edge_ros.perception.frame_buffer import FrameBuffer

MEASURE_S = 10.0
"""No further plan is begun after so long."""
LEAST_GAIN = 0.01
"""A plan replaces the one by rule only if it saves this share of a pass: else noise would choose."""
_WARM_UP_PASSES, _TIMED_PASSES = 30, 30


class PlanCache:
    """The choice for one device and model, in a file of its own."""

    def __init__(self, build: Build, device: Device, plan: Plan):
        self._device = f"{device.name}, {device.multiprocessors} multiprocessors"
        name = re.sub(r"\W+", "_", self._device)
        self.path = build.directory / "plans" / f"{name}-{plan.identity(build)[-8:]}.json"

    def read(self, allowed: Iterable[str]) -> tuple[str, str]:
        """The id kept, or nothing; and a line where there is a file that cannot be followed."""
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            if kept["device"] == self._device and kept["plan_id"] in allowed:
                return kept["plan_id"], ""
            reason = "it names another device or a plan that is not one of today's"
        except FileNotFoundError:
            return "", ""
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            reason = type(error).__name__
        return "", f"{self.path} is no record of a plan for this device ({reason}): measured again"

    def write(self, plan_id: str, pass_us: dict[str, float], refused: dict[str, str]) -> str:
        """A line where it cannot be kept."""
        kept = {"device": self._device, "plan_id": plan_id, "pass_us": pass_us, "refused": refused}
        try:
            store(self.path, json.dumps(kept, indent=1).encode())
        except OSError as error:
            return (
                f"the plan measured cannot be kept in {self.path} ({error.strerror}): measured at every start"
            )
        return ""


def plan_of_device(device: Device, config: ModelConfig, n_slots: int) -> tuple[Plan, tuple[str, ...]]:
    """What an engine that is asked for no plan runs here, and lines worth saying. Raises EngineError."""
    plans = candidates(config, n_slots, device.multiprocessors, device.shared_bytes)
    return choose_plan(device, find_build(device.architecture), plans)


def choose_plan(device: Device, build: Build, plans: list[Plan]) -> tuple[Plan, tuple[str, ...]]:
    """The plan kept from an earlier start, or else the fastest, measured now; and lines worth saying.

    plans: the first is taken unless another is clearly faster. Raises EngineError where the first fails.
    """
    by_id = {plan.identity(build): plan for plan in plans}
    cache = PlanCache(build, device, plans[0])
    kept, complaint = cache.read(by_id)
    notes = [complaint]
    if not kept:
        refused = compile_all(device.architecture, by_id)
        pass_us, refused = measure_all(lambda plan: pass_us_on(device, plan), by_id, refused)
        kept = fastest(pass_us)
        notes.append(f"measured {len(pass_us)} plans, a pass takes {pass_us[kept]:.0f} us with {kept}")
        notes.append(cache.write(kept, pass_us, refused))
    return by_id[kept], tuple(note for note in notes if note)


def fastest(pass_us: dict[str, float]) -> str:
    """The first plan, or the fastest where that is faster by LEAST_GAIN."""
    first, best = next(iter(pass_us)), min(pass_us, key=pass_us.__getitem__)
    return best if pass_us[best] < pass_us[first] * (1 - LEAST_GAIN) else first


def measure_all(
    pass_us_of: Callable[[Plan], float],
    plans: dict[str, Plan],
    refused: dict[str, str],
    clock_s: Callable[[], float] = time.monotonic,
) -> tuple[dict[str, float], dict[str, str]]:
    """Time of a pass by plan id, as long as there is time; and why other plans do not work here.

    refused: those that are known not to. Raises EngineError where the first plan does not work.
    """
    pass_us, refused = {}, dict(refused)
    began_s = clock_s()
    for plan_id, plan in plans.items():
        if plan_id not in refused and not (pass_us and clock_s() - began_s > MEASURE_S):
            try:
                pass_us[plan_id] = pass_us_of(plan)
            except EngineError as error:
                refused[plan_id] = str(error)
        if not pass_us:
            raise EngineError(refused[plan_id])
    return pass_us, refused


def compile_all(architecture: str, plans: dict[str, Plan]) -> dict[str, str]:
    """Compile every kernel of every plan once, side by side; the reasons of plans that do not compile."""
    jobs = {(name, plan.defines(name)) for plan in plans.values() for name in KERNELS}
    with ThreadPoolExecutor(usable_threads()) as pool:
        running = {
            (name, defines): pool.submit(Compiler(architecture, defines).cubin, name)
            for name, defines in jobs
        }
    refused = {}
    for plan_id, plan in plans.items():
        for name in KERNELS:
            error = running[name, plan.defines(name)].exception()
            if isinstance(error, EngineError):
                refused.setdefault(plan_id, str(error))
            elif error is not None:
                raise error
    return refused


def pass_us_on(device: Device, plan: Plan) -> float:
    """Median device time of a pass at full memory. Raises EngineError."""
    with closing(FrameBuffer.create()) as frames:
        frames.write(np.random.default_rng(0).integers(0, 256, (64, 128, 3), np.uint8), 0, 0, 0)
        memory = FrameMemory(frames.address, frames.size_bytes)
        with closing(CudaDecoder(device, plan, Kernels(device, plan), None, memory)) as decoder:
            decoder.arena.fill("cache", 0)
            device.synchronize()
            slots = np.arange(plan.n_slots - MAX_ACTION_TOKENS, dtype=np.int32)
            times_us = []
            for _ in range(_WARM_UP_PASSES + _TIMED_PASSES):
                decoder.begin(slots[:-FRAME_TOKENS], slots[-FRAME_TOKENS:], MAX_ACTION_TOKENS)
                told = decoder.finish()
                times_us.append((int(told["step_ended_ns"][-1]) - int(told["fetched_ns"])) / 1e3)
            return float(np.median(times_us[_WARM_UP_PASSES:]))
