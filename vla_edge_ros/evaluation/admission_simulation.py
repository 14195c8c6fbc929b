"""A rule of admission against a trace: which ticks are FRESH, missed, refused."""

from dataclasses import dataclass

from vla_edge_ros.control.admission import Admission
from vla_edge_ros.engine.interface import StageTimes
from vla_edge_ros.evaluation.admission_traces import CUTOFF_MS, Trace

PERIOD_NS = 33_333_000
CUTOFF_NS = round(CUTOFF_MS * 1e6)


@dataclass(slots=True)
class Outcome:
    """Counts of ticks; what is left of them found the engine busy with a late pass.

    longest_refusal: the most refusals in a row. last_miss: the tick of the last miss, -1 for none.
    """

    ticks: int = 0
    fresh: int = 0
    misses: int = 0
    refusals: int = 0
    longest_refusal: int = 0
    last_miss: int = -1


def simulate(admission: Admission, trace: Trace) -> Outcome:
    """Every tick wakes up in time and finds a frame; a late pass keeps the engine busy until it ends."""
    outcome = Outcome(len(trace.service_ms))
    services_ns = (trace.service_ms * 1e6).astype(int).tolist()
    free_ns = now_ns = 0
    for tick, (service_ns, tokens) in enumerate(zip(services_ns, trace.context_tokens.tolist(), strict=True)):
        is_miss = False
        if free_ns <= now_ns and admission.ask(now_ns, now_ns + CUTOFF_NS, tokens).is_admitted:
            free_ns = now_ns + service_ns
            is_miss = service_ns > CUTOFF_NS
            admission.observe(_stages(service_ns), service_ns)
            outcome.fresh += not is_miss
            if is_miss:
                outcome.misses += 1
                outcome.last_miss = tick
        admission.settle(is_miss)
        now_ns += PERIOD_NS
    outcome.refusals, outcome.longest_refusal = admission.refusals, admission.longest_refusal
    return outcome


def _stages(service_ns: int) -> StageTimes:
    """A made-up pass: a third prefill, most of the rest decode."""
    return StageTimes(service_ns // 64, service_ns // 32, service_ns // 3, service_ns // 2)
