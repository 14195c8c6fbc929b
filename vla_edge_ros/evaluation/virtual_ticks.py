"""Ticks of the whole controller on a virtual clock, with the service times of simulated passes.

A camera frame and joint states arrive every period, motion is enabled, and nothing but the loop's own logic
can make a publish late.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from vla_edge_ros.control import settings
from vla_edge_ros.control.clock import VirtualClock
from vla_edge_ros.control.decision import Decision
from vla_edge_ros.control.events import Enable
from vla_edge_ros.control.record import WorkTimes
from vla_edge_ros.control.tick_thread import run_ticks
from vla_edge_ros.engine.factory import make_engine
from vla_edge_ros.engine.interface import FrameWork, PromptWork
from vla_edge_ros.engine.vision import FRAME_HEIGHT, FRAME_WIDTH
from vla_edge_ros.errors import UserError
from vla_edge_ros.evaluation.admission_traces import HICCUP_MS, TRACES, make_trace
from vla_edge_ros.evaluation.run_document import summarise
from vla_edge_ros.evaluation.virtual_engine import StatedService, VirtualEngine
from vla_edge_ros.evaluation.virtual_run import RecordingSink
from vla_edge_ros.parameters import validate_all
from vla_edge_ros.perception.frame_buffer import FrameBuffer

PARAMETERS = {"engine.backend": "fake", "engine.model": "fake"}
ROS_OFFSET_NS = 10**18
FRAME_DELAY_NS = 20_000_000
PROMPT_NS = 1_000_000
HICCUP_AT = 200
COUNTS = ("ticks", "fresh", "late_publishes", "skipped_ticks", "misses", "refusals", "aborted_passes")
MS = 1_000_000


class _TracedService:
    """A pass that is begun in tick n takes the n-th of the given times, a prompt PROMPT_NS."""

    def __init__(self, services_ms: Sequence[float], period_ns: int) -> None:
        self._services_ms, self._period_ns = services_ms, period_ns

    def times(self, work: PromptWork | FrameWork, now_ns: int) -> WorkTimes:
        tick = now_ns // self._period_ns
        service_ns = round(self._services_ms[tick] * MS) if isinstance(work, FrameWork) else PROMPT_NS
        return StatedService(service_ns).times(work, now_ns)


def run(services_ms: Sequence[float]) -> list[dict]:
    """The records of as many ticks as there are times.

    Raises UserError where the engine fails, which is a defect.
    """
    n_ticks = len(services_ms)
    values = validate_all(PARAMETERS)
    policy = settings.policy_of(values)
    frames = FrameBuffer.create()
    pixels = np.zeros((FRAME_HEIGHT, FRAME_WIDTH, 3), np.uint8)
    schedule = settings.tick_schedule(values, 0)
    names = [dimension.name for dimension in policy.dimensions]
    middle = [(dimension.min + dimension.max) / 2 for dimension in policy.dimensions]

    def arrive() -> None:
        now_ns = clock.now_ns()
        frames.write(pixels, ROS_OFFSET_NS + now_ns, now_ns, now_ns)
        controller.planner.observe_joints(names, middle, None, now_ns)

    def arrivals() -> Iterator:
        for tick in range(-1, n_ticks):
            yield (tick + 1) * schedule.period_ns + FRAME_DELAY_NS, arrive

    faults: list[str] = []
    clock = VirtualClock(arrivals(), ROS_OFFSET_NS)
    spec = settings.engine_spec(values, len(policy.dimensions))
    engine = VirtualEngine(
        make_engine(spec, frames),
        clock,
        _TracedService(services_ms, schedule.period_ns),
        lambda times: clock.sleep_until(times.started_ns),
    )
    sink = RecordingSink()
    controller = settings.build_controller(
        values, policy, clock, engine, engine.configure(), frames, faults.append, None
    )
    try:
        controller.begin(schedule)
        controller.post(settings.Prompter(values).changed_to(values["instruction.initial"]))
        controller.post(Enable(True))
        run_ticks(controller, schedule, clock, sink, lambda: bool(faults) or len(sink.records) >= n_ticks)
    finally:
        engine.close()
        frames.close()
    if faults:
        raise UserError(f"the controller failed on the virtual clock: {faults[0].splitlines()[-1]}")
    return [record.to_json() for record in sink.records]


def accelerated(n_ticks: int) -> dict:
    """Counts over `n_ticks` or more: an equal part of every simulated trace, with a controller for each."""
    total: Counter[str] = Counter()
    decisions: Counter[str] = Counter()
    for name in TRACES:
        services_ms = make_trace(name, -(-n_ticks // len(TRACES))).service_ms
        summary = summarise(run(services_ms.tolist()))
        total.update({count: summary[count] for count in COUNTS})
        decisions.update(summary["decision_counts"])
    return {**total, "decision_counts": dict(decisions)}


def recovery() -> dict:
    """After one pass of HICCUP_MS in steady 20 ms: ticks until the next FRESH one, and ticks refused."""
    services_ms = make_trace("steady", 2 * HICCUP_AT).service_ms.tolist()
    services_ms[HICCUP_AT] = HICCUP_MS
    decisions = [record["decision"] for record in run(services_ms)]
    return {
        "ticks": len(decisions),
        "hiccup_ms": HICCUP_MS,
        "recovery_ticks": decisions.index(Decision.FRESH.value, HICCUP_AT) - HICCUP_AT,
        "refused": decisions.count(Decision.HOLD_REFUSED.value),
    }
