"""A rule of admission against a trace: which ticks are FRESH, missed, refused."""

from collections.abc import Iterator
from dataclasses import dataclass

from vla_edge_ros.control.admission import Admission
from vla_edge_ros.engine.interface import StageTimes
from vla_edge_ros.evaluation.admission_traces import CUTOFF_MS, Trace

CUTOFF_NS = round(CUTOFF_MS * 1e6)


@dataclass(slots=True)
class Outcome:
    """Counts of ticks; longest_refusal is the most refusals in a row."""

    ticks: int = 0
    fresh: int = 0
    misses: int = 0
    refusals: int = 0
    longest_refusal: int = 0


def simulate(admission: Admission, trace: Trace) -> Outcome:
    """Every tick wakes up in time and finds a frame; a pass not done at the cut-off is stopped there."""
    outcome = Outcome(len(trace.service_ms))
    services_ns = (trace.service_ms * 1e6).astype(int).tolist()
    for service_ns, tokens in zip(services_ns, trace.context_tokens.tolist(), strict=True):
        is_miss = False
        if admission.ask(0, CUTOFF_NS, tokens).is_admitted:
            is_miss = end_pass(admission, service_ns)
            outcome.misses += is_miss
            outcome.fresh += not is_miss
        admission.settle(is_miss)
    outcome.refusals, outcome.longest_refusal = admission.refusals, admission.longest_refusal
    return outcome


def end_pass(admission: Admission, service_ns: int) -> bool:
    """Tell `admission` of a pass that takes `service_ns`, or is stopped at the cut-off; was it a miss?"""
    is_miss = service_ns > CUTOFF_NS
    if is_miss:
        admission.observe_aborted(StageTimes(*_until_cutoff(service_ns)), CUTOFF_NS)
    else:
        admission.observe(StageTimes(*_stages(service_ns)), service_ns)
    return is_miss


def _stages(service_ns: int) -> tuple[int, int, int, int]:
    """A made-up pass: a third prefill, most of the rest decode."""
    return service_ns // 64, service_ns // 32, service_ns // 3, service_ns // 2


def _until_cutoff(service_ns: int) -> Iterator[int]:
    """Of each stage what is done at the cut-off."""
    left_ns = CUTOFF_NS
    for stage_ns in _stages(service_ns):
        yield min(stage_ns, left_ns)
        left_ns -= min(stage_ns, left_ns)
