"""The record of a run on a GPU: put together from the parts of its steps, and what it must be.

A part is what one step wrote: `step`, `sources_sha256`, `device`, `driver`, `date`, `versions`, `wall_s`,
`exit_code`, and `figures`, the step's own document.
"""

from collections.abc import Callable, Mapping

from rich.table import Table
from rich.text import Text

from vla_edge_ros.engine.cuda.roofline import roofline
from vla_edge_ros.evaluation.musts import Must, Record, late_allowed
from vla_edge_ros.evaluation.record_parts import require_alike
from vla_edge_ros.figures import in_words

KEYS = (
    *("read_ceiling_gbps", "copy_ceiling_gbps", "decode_fraction_of_read", "decode_fraction_of_copy"),
    *("pass_ms_p50", "pass_p999_over_p50", "speedup_hf_eager", "speedup_torch_compile", "speedup_best_peer"),
    *("host_ms_per_tick", "process_gpu_bytes", "token_agreement", "late_publishes", "bare_loop_late"),
    *("ticks", "stamp_to_publish_ms_p999", "abort_ms_p99", "sources_sha256", "device", "driver", "versions"),
)
"""What a whole record has at its top level, among other things."""

PASSES, TICKS = 20_000, 10_000
"""What a whole record is measured from; a tail is not known from less."""

_SAME = ("sources_sha256", "device", "driver")
_STAGES = ("fetch_and_rank", "vision", "prefill", "decode_step")


def merge(parts: Mapping[str, dict]) -> dict:
    """The record of these parts, by step; a figure whose step is missing or failed is None.

    Raises UserError, one line, where parts are of different sources, devices or drivers, or where there are
    none.
    """
    require_alike(parts.values(), _SAME)
    figures = {step: part["figures"] for step, part in parts.items()}
    passes = figures.get("passes", {})
    peers = figures.get("peers", {})
    node = figures.get("node", {})
    full = node.get("at_full_memory", {})
    latest = max(parts.values(), key=lambda part: part["date"])
    return {
        "date": latest["date"],
        **{name: latest[name] for name in (*_SAME, "versions")},
        # What the engine's benchmark measured alone stands at the top level, as it wrote it.
        **{name: value for name, value in passes.items() if name not in ("date", *_SAME)},
        **{
            name: passes.get(name)
            for name in (
                *("read_ceiling_gbps", "copy_ceiling_gbps", "decode_fraction_of_read"),
                *("decode_fraction_of_copy", "decode_step_ms_p50", "pass_ms_p50", "pass_p999_over_p50"),
                *("process_gpu_bytes", "abort_ms_p99"),
            )
        },
        "passes": passes.get("full", {}).get("pass_us", {}).get("n"),
        **{
            name: peers.get(name)
            for name in ("speedup_hf_eager", "speedup_torch_compile", "speedup_best_peer", "bf16_tflops")
        },
        "token_agreement": figures.get("gate", {}).get("token_agreement"),
        "host_ms_per_tick": sum(node["cpu_ms_per_tick"].values()) if "cpu_ms_per_tick" in node else None,
        "late_publishes": node.get("late_publishes"),
        "bare_loop_late": node.get("bare_loop", {}).get("late"),
        "ticks": full.get("ticks"),
        "tick_to_publish_ms_p999": full.get("tick_to_publish_ms", {}).get("p999"),
        "stamp_to_publish_ms_p999": full.get("stamp_to_publish_ms", {}).get("p999"),
        "roofline": _rooflines(passes, peers.get("bf16_tflops")),
        "sizes_roofline": {
            model: _rooflines(size, peers.get("bf16_tflops"))
            for model, size in figures.get("sizes", {}).items()
        },
        "steps": {
            step: {name: part[name] for name in ("date", "wall_s", "exit_code")}
            for step, part in parts.items()
        },
        **{step: value for step, value in figures.items() if step not in ("passes", "tests")},
    }


def _rooflines(passes: Record, bf16_tflops: float | None) -> dict[str, dict]:
    """By memory (`full`, `at_1024`, ...) and stage; FLOPs count where the rate of products was measured."""
    read_gbps = passes.get("read_ceiling_gbps")
    return {
        name: roofline(
            section["work"],
            {stage: section[f"{stage}_us"]["p50"] for stage in _STAGES},
            read_gbps,
            bf16_tflops,
        )
        for name, section in passes.items()
        if read_gbps and isinstance(section, dict) and "work" in section
    }


def _decode_step(share: float) -> Callable[[Record], float | None]:
    def bound(record: Record) -> float | None:
        step_ms = record.get("decode_step_ms_p50")
        return None if step_ms is None else share * step_ms

    return bound


MUSTS = (
    Must("passes timed", "passes", ">=", PASSES),
    Must("ticks at full memory", "ticks", ">=", TICKS),
    Must("decode step, of the read ceiling", "decode_fraction_of_read", ">=", 0.70, 0.85, "%", 100),
    Must("pass, p50", "pass_ms_p50", "<=", 9.0, 7.2, "ms"),
    Must("pass, p99.9 over p50", "pass_p999_over_p50", "<=", 1.2, 1.05, "x"),
    Must("against Hugging Face eager", "speedup_hf_eager", ">=", 60, 100, "x"),
    Must("against Hugging Face + torch.compile", "speedup_torch_compile", ">=", 4, 5, "x"),
    Must("against the best peer that ran", "speedup_best_peer", ">=", 2.0, 2.8, "x"),
    Must("processor time a tick", "host_ms_per_tick", "<=", 1.0, 0.3, "ms"),
    Must("GPU memory of the process", "process_gpu_bytes", "<=", 3.9e9, 3.5e9, "GB", 1e-9),
    Must("start of tick to FRESH published, p99.9", "tick_to_publish_ms_p999", "<=", 31, 9, "ms"),
    Must("capture to FRESH published, p99.9", "stamp_to_publish_ms_p999", "<=", 50, 27, "ms"),
    Must("late publishes", "late_publishes", "<=", late_allowed, 0),
    Must("abort latency, p99", "abort_ms_p99", "<=", _decode_step(1), _decode_step(0.5), "ms"),
    Must("tokens equal to the reference's", "token_agreement", ">=", 0.999, None, "%", 100),
)


def stage_table(record: Record) -> Table:
    """Time, bytes and FLOPs of each stage of a pass, and how near the stage is to its roofline."""
    rate = record["bf16_tflops"]
    beside = f"products in bf16 at {rate:.0f} TFLOP/s" if rate else "the rate of products was not measured"
    table = Table(
        title=Text(f"stages of a pass; reads at {in_words(record['read_ceiling_gbps'])} GB/s, {beside}")
    )
    for column in ("model", "memory", "stage", "p50, us", "MB", "GFLOP", "limit, us", "of the limit"):
        table.add_column(column, justify="left" if column in ("model", "memory", "stage") else "right")
    models = {record.get("model"): record["roofline"], **record["sizes_roofline"]}
    for model, memories in models.items():
        for memory, stages in memories.items():
            for stage, row in stages.items():
                figures = (row["us"], row["bytes"] / 1e6, row["flops"] / 1e9, row["limit_us"])
                share = None if row["share"] is None else 100 * row["share"]
                words = (in_words(float(figure), 1) for figure in figures)
                table.add_row(str(model), memory, stage, *words, in_words(share, 1, "%"))
    return table
