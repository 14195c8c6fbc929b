"""The tightest deadline that this machine can promise: measured with the real engine, tick by tick.

The statistics take ticks for exchangeable: a promise holds for a machine that goes on as it was measured.
"""

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass

import numpy as np

from vla_edge_ros.control import settings
from vla_edge_ros.control.realtime import set_fifo_priority
from vla_edge_ros.control.settings import Parameters
from vla_edge_ros.engine.benchmark import fill_prompt, run_pass
from vla_edge_ros.engine.linux import sleep_until
from vla_edge_ros.engine.process import ProcessEngine
from vla_edge_ros.figures import percentiles
from vla_edge_ros.memory.frame_memory import FrameMemory
from vla_edge_ros.memory.policies import make_policy
from vla_edge_ros.perception.frame_buffer import FrameBuffer

RISK = 0.05
"""That a promise is believed which the machine does not keep."""


@dataclass(frozen=True, slots=True)
class Promisable:
    """
    rate: misses per tick that can be promised: the one asked for or, with too few ticks, the best they show.
    time_ns: from a tick's start to the end of its pass; no more than `rate` of ticks take longer.
    n, exceeded: ticks measured, and how many of them took longer.
    """

    rate: float
    time_ns: int
    n: int
    exceeded: int


def ticks_to_certify(rate: float) -> int:
    """Ticks without a miss that show `rate` at 95 %: ln(20) / rate, the rule of three."""
    return math.ceil(math.log(1 / RISK) / -math.log1p(-rate))


def promisable(times_ns: Sequence[int], rate: float) -> Promisable:
    """The shortest time of which `times_ns` show at 95 % that at most `rate` of ticks exceed it.

    An order statistic: the k largest may be left out where as few as k of n above the limit are unlikely
    under `rate` (Clopper and Pearson 1934). With fewer ticks than k = 0 needs, the rate is what n ticks show.
    Raises ValueError without times.
    """
    if not times_ns:
        raise ValueError("no tick was measured")
    ordered, n = sorted(times_ns), len(times_ns)
    if n < ticks_to_certify(rate):
        return Promisable(-math.expm1(math.log(RISK) / n), ordered[-1], n, 0)
    left_out = 0
    term = likelihood = (1 - rate) ** n
    while left_out + 1 < n:
        term *= (n - left_out) / (left_out + 1) * rate / (1 - rate)
        likelihood += term
        if likelihood > RISK:
            break
        left_out += 1
    return Promisable(rate, ordered[-1 - left_out], n, left_out)


def measure(parameters: Parameters, seconds: float) -> list[int]:
    """Nanoseconds from each tick's start to the end of its pass as the control thread sees it.

    The engine of the parameters runs in its own process at full memory, on new frames at the control period.
    A pass that overruns its tick delays the starts of the following ones, which is not counted against them.
    The first pass at full memory is left out: it may be cold. Priority is that of the node, where the system
    grants it. Raises UserError where the engine fails.
    """
    with ThreadPoolExecutor(1) as pool:
        if parameters["control.priority"]:
            pool.submit(set_fifo_priority, parameters["control.priority"]).result()
        return pool.submit(_measure, parameters, seconds).result()


def _measure(parameters: Parameters, seconds: float) -> list[int]:
    period_ns = settings.ns(parameters["control.period_ms"])
    action_tokens = len(settings.policy_of(parameters).dimensions)
    spec = settings.engine_spec(parameters, action_tokens)
    noise = np.random.default_rng(0)
    times_ns: list[int] = []
    with ExitStack() as cleanup:
        frames = cleanup.enter_context(closing(FrameBuffer.create()))
        engine = cleanup.enter_context(closing(ProcessEngine(spec, frames)))
        info = engine.configure()
        memory = FrameMemory(spec.n_slots, action_tokens, make_policy("fifo"), info.embedding_size)
        fill_prompt(engine, memory)
        tick, end_ns, start_ns = 0, 0, 0
        while tick <= memory.capacity_frames or start_ns < end_ns:
            is_filling = tick <= memory.capacity_frames
            pixels = noise.integers(0, 256, (frames.height, frames.width, 3), np.uint8)
            frames.write(pixels, tick, tick, tick)
            if is_filling:
                start_ns = time.monotonic_ns()
                end_ns = start_ns + round(seconds * 1e9)
            else:
                start_ns = max(start_ns + period_ns, time.monotonic_ns())
                sleep_until(start_ns)
            run_pass(engine, memory, tick)
            if not is_filling:
                times_ns.append(time.monotonic_ns() - start_ns)
            tick += 1
    return times_ns


def in_words(found: Promisable, times_ns: Sequence[int], parameters: Parameters) -> tuple[bool, str]:
    """Whether the deadline of the parameters can be promised at their rate, and what was found, in words."""
    margin_ms, wanted = parameters["control.margin_ms"], parameters["admission.target_miss_rate"]
    deadline_ms = found.time_ns / 1e6 + margin_ms
    needed = ticks_to_certify(wanted)
    seconds = math.ceil(needed * parameters["control.period_ms"] / 1e3)
    ms = percentiles([ns / 1e6 for ns in times_ns])
    is_certified = found.rate <= wanted
    more = "" if is_certified else f"; {100 * wanted:g} % takes {needed:,} ticks: --seconds {seconds + 1}"
    text = (
        f"{deadline_ms:.1f} ms, missed in at most {100 * found.rate:.2g} % of ticks "
        f"(95 %; {found.n:,} ticks, {found.exceeded} longer): a pass takes p50 {ms['p50']:.1f}, "
        f"p99 {ms['p99']:.1f}, max {ms['max']:.1f} ms, the margin {margin_ms:g} ms{more}"
    )
    return deadline_ms <= parameters["control.deadline_ms"], text
