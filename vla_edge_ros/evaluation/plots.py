"""The plots of a run's report, as SVG for inline use."""

import math
from collections.abc import Iterable

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vla_edge_ros.engine.interface import STAGES
from vla_edge_ros.evaluation.plot_style import COLOUR, RC_PARAMS, to_svg
from vla_edge_ros.evaluation.summary import LATENCIES, ordered_decisions
from vla_edge_ros.figures import percentiles

_WIDTH_IN = 10.0
_MAX_BARS = 600
_LEFT_IN, _RIGHT_IN = 1.75, 0.1
"""Margins of every plot over time, so that their time axes stand below one another."""


def times_s(run: dict) -> np.ndarray:
    """(n,) seconds of each record since the first one was scheduled."""
    scheduled = _column(run, "scheduled_ns")
    return (scheduled - scheduled[0]) / 1e9 if len(scheduled) else scheduled


def latency_plot(run: dict) -> str:
    """Passes as bars of their stages over time, against the cut-off and the deadline.

    With more ticks than there is room for bars, each bar is the slowest pass of its stretch.
    """
    parameters = run.get("parameters") or {}
    deadline_ms = _finite(parameters.get("control.deadline_ms"))
    margin_ms = _finite(parameters.get("control.margin_ms")) or 0.0
    t = times_s(run)
    with matplotlib.rc_context(RC_PARAMS):
        figure, (axes,) = _over_time(3.0, top_in=0.35)
        pass_ms = _column(run, "pass_ms")
        stages = {stage: np.nan_to_num(_column(run, f"{stage}_ms")) for stage in STAGES}
        slowest = _slowest_of_each_stretch(pass_ms)
        middle_s = t[slowest] + _period_s(run) / 2
        stages = {stage: values[slowest] for stage, values in stages.items()}
        highest_ms = _draw_stages(axes, middle_s, stages, pass_ms[slowest])
        shown_ms = min(highest_ms, 2.5 * deadline_ms) if deadline_ms else highest_ms
        limit_ms = 1.15 * max(1.0, shown_ms, deadline_ms)
        axes.set_ylim(0, limit_ms)
        if deadline_ms:
            _draw_limit(axes, deadline_ms, f"deadline {deadline_ms:g} ms", "-")
            if margin_ms:
                _draw_limit(axes, deadline_ms - margin_ms, f"cut-off {deadline_ms - margin_ms:g} ms", "--")
        over = t[pass_ms > limit_ms]
        top_ms = np.full(len(over), 0.985 * limit_ms)
        axes.plot(over, top_ms, "^", color=COLOUR["late"], ms=4, clip_on=False)
        _finish(axes, t, _period_s(run), "pass\nin ms")
        if not np.isfinite(pass_ms).any():
            _say(axes, "no pass was finished")
        return to_svg(figure, "latency")


def decision_plot(run: dict) -> str:
    """One lane a decision, filled where a tick ended with it, and one for late publishes."""
    records = run.get("records") or []
    decided = [str(record.get("decision")) for record in records]
    lanes = [
        (name, count, [decision == name for decision in decided]) for name, count in ordered_decisions(run)
    ]
    is_late = [bool(record.get("is_late")) for record in records]
    if any(is_late):
        lanes.append(("late", sum(is_late), is_late))
    t = times_s(run)
    period_s = _period_s(run)
    with matplotlib.rc_context(RC_PARAMS | {"axes.grid": False}):
        figure, (axes,) = _over_time(0.65 + 0.27 * max(1, len(lanes)))
        for lane, (name, _, is_on) in enumerate(lanes):
            axes.axhline(lane, color=COLOUR["grid"], lw=0.6, zorder=0)
            x, y = _runs(t, is_on, period_s, lane)
            if len(t):
                _widen(x, 0.0016 * (t[-1] + period_s))
            colour = COLOUR.get(name, COLOUR["muted"])
            axes.plot(x, y, color=colour, lw=11, solid_capstyle="butt")
        axes.set_yticks(range(len(lanes)), [f"{name}  {count:,}" for name, count, _ in lanes])
        axes.set_ylim(max(0, len(lanes) - 1) + 0.6, -0.6)
        axes.spines["left"].set_visible(False)
        _finish(axes, t, period_s, "")
        if not lanes:
            _say(axes, "no tick was decided")
        return to_svg(figure, "decisions")


def memory_plot(run: dict) -> str:
    """Retained frames over time, and evictions in each second below them."""
    t = times_s(run)
    retained = _column(run, "retained_frames")
    evicted = np.array([len(record.get("evicted") or ()) for record in run.get("records") or []])
    with matplotlib.rc_context(RC_PARAMS):
        figure, (upper, lower) = _over_time(3.2, height_ratios=(2, 1))
        corners = _corners(retained)
        at_s, held = t[corners], retained[corners]
        upper.fill_between(at_s, held, step="post", color=COLOUR["accent"], alpha=0.18, lw=0)
        upper.step(at_s, held, where="post", color=COLOUR["accent"], lw=1.6)
        upper.set_ylim(0, 1.15 * np.nan_to_num(retained).max(initial=1.0))
        seconds = np.floor(t).astype(int) if len(t) else np.zeros(0, int)
        per_second = np.bincount(seconds, weights=evicted) if len(seconds) else np.zeros(1)
        bars = np.arange(len(per_second))
        lower.bar(bars + 0.5, per_second, width=0.82, color=COLOUR["accent"], alpha=0.75)
        lower.set_ylim(0, 1.15 * max(1.0, per_second.max()))
        _finish(upper, t, _period_s(run), "frames\nretained", is_lowest=False)
        _finish(lower, t, _period_s(run), "evicted\nin a second")
        if not np.isfinite(retained).any():
            _say(upper, "no frame entered the memory")
        return to_svg(figure, "memory")


def histogram_plot(run: dict) -> str:
    """How often each stage took how long; p50 and p99 marked."""
    with matplotlib.rc_context(RC_PARAMS | {"axes.grid": False}):
        figure = Figure(figsize=(_WIDTH_IN, 1.9), layout="constrained")
        for axes, stage in zip(figure.subplots(1, len(LATENCIES)), LATENCIES, strict=True):
            values = _column(run, f"{stage}_ms")
            values = values[np.isfinite(values)]
            axes.set_title(stage, fontsize=10, loc="left", color=COLOUR["ink"])
            axes.set_yticks([])
            axes.spines["left"].set_visible(False)
            axes.set_xlabel("ms")
            if not len(values):
                axes.set_xticks([])
                _say(axes, "none")
                continue
            figures = percentiles(values)
            low, high = float(values.min()), float(max(values.max(), values.min() + 1e-3))
            counts, edges = np.histogram(values, bins=36, range=(low, high))
            axes.stairs(counts, edges, fill=True, color=COLOUR[stage], alpha=0.85)
            axes.set_ylim(0, 1.3 * counts.max())
            axes.xaxis.set_major_locator(MaxNLocator(3))
            # On two lines, since the two values may be close together.
            for label, alignment, height in (("p50", "left", 1.28), ("p99", "right", 1.14)):
                top = height * counts.max()
                axes.axvline(figures[label], color=COLOUR["ink"], lw=0.8, ls=":")
                axes.text(figures[label], top, f" {label} ", ha=alignment, va="top", fontsize=7.5)
        return to_svg(figure, "histogram")


def _over_time(
    height_in: float, top_in: float = 0.1, height_ratios: tuple[int, ...] = (1,)
) -> tuple[Figure, list[Axes]]:
    """A figure with axes above one another and the margins that all plots over time share."""
    figure = Figure(figsize=(_WIDTH_IN, height_in))
    grid = figure.add_gridspec(
        len(height_ratios),
        1,
        height_ratios=height_ratios,
        left=_LEFT_IN / _WIDTH_IN,
        right=1 - _RIGHT_IN / _WIDTH_IN,
        bottom=0.5 / height_in,
        top=1 - top_in / height_in,
        hspace=0.22,
    )
    return figure, [figure.add_subplot(cell) for cell in grid]


def _draw_stages(axes: Axes, t: np.ndarray, stages: dict[str, np.ndarray], pass_ms: np.ndarray) -> float:
    """Stacked bars, one path a stage; passes without stages in one colour. Returns the highest."""
    width = float(np.clip(560.0 / max(1, len(t)), 0.5, 5.0))
    bottom = np.zeros(len(t))
    for name, values in stages.items():
        _draw_bars(axes, t, bottom, bottom + values, values > 0, COLOUR[name], width, name)
        bottom = bottom + values
    rest = np.nan_to_num(pass_ms) - bottom
    _draw_bars(axes, t, bottom, bottom + rest, rest > 1e-6, COLOUR["pass"], width, "other")
    if axes.lines:
        n_shown = len(axes.lines)
        legend = axes.legend(
            ncol=n_shown, loc="lower left", bbox_to_anchor=(0, 1), frameon=False, borderaxespad=0.2
        )
        for line in legend.get_lines():
            line.set_linewidth(6)
    return float(np.maximum(bottom, np.nan_to_num(pass_ms)).max(initial=0.0))


def _slowest_of_each_stretch(pass_ms: np.ndarray) -> np.ndarray:
    """Indexes of at most _MAX_BARS records: all, or of equal stretches the one with the slowest pass."""
    stretches = np.array_split(np.arange(len(pass_ms)), min(len(pass_ms), _MAX_BARS) or 1)
    filled = np.nan_to_num(pass_ms, nan=-1.0)
    return np.array([part[np.argmax(filled[part])] for part in stretches if len(part)], np.intp)


def _corners(values: np.ndarray) -> np.ndarray:
    """Indexes at which a step line has to have a point: the ends and where the value changes."""
    is_corner = np.ones(len(values), bool)
    is_corner[1:-1] = values[1:-1] != values[:-2]
    return np.flatnonzero(is_corner)


def _draw_bars(
    axes: Axes,
    t: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    is_shown: np.ndarray,
    colour: str,
    width: float,
    label: str,
) -> None:
    """Vertical bars as one path: a lift of the pen (NaN) after each."""
    if not is_shown.any():
        return
    x = np.repeat(t[is_shown], 3)
    y = np.column_stack([low[is_shown], high[is_shown], np.full(is_shown.sum(), np.nan)]).ravel()
    axes.plot(x, y, color=colour, lw=width, solid_capstyle="butt", label=label)


def _draw_limit(axes: Axes, at_ms: float, label: str, line_style: str) -> None:
    axes.axhline(at_ms, color=COLOUR["deadline"], lw=1.2, ls=line_style)
    is_solid = line_style == "-"
    axes.annotate(
        label,
        (1, at_ms),
        xycoords=("axes fraction", "data"),
        xytext=(-2, 3 if is_solid else -3),
        textcoords="offset points",
        ha="right",
        va="bottom" if is_solid else "top",
        color=COLOUR["deadline"],
        fontsize=8.5,
    )


def _runs(
    t: np.ndarray, is_on: Iterable[bool], period_s: float, lane: int
) -> tuple[list[float], list[float]]:
    """Horizontal bars over runs of neighbouring ticks, as one path with lifts of the pen (NaN)."""
    x: list[float] = []
    end = None
    for time_s, on in zip(t, is_on, strict=True):
        if not on:
            continue
        if end is not None and time_s - end < 0.5 * period_s:
            x[-2] = time_s + period_s
        else:
            x += [time_s, time_s + period_s, math.nan]
        end = time_s + period_s
    return x, [math.nan if math.isnan(value) else float(lane) for value in x]


def _widen(x: list[float], least_s: float) -> None:
    """Make each bar of a path wide enough to be seen."""
    for start in range(0, len(x), 3):
        x[start + 1] = max(x[start + 1], x[start] + least_s)


def _finish(axes: Axes, t: np.ndarray, period_s: float, label: str, is_lowest: bool = True) -> None:
    axes.set_xlim(0, t[-1] + period_s if len(t) else 1.0)
    axes.set_ylabel(label, rotation=0, ha="right", va="center", labelpad=10)
    if is_lowest:
        axes.set_xlabel("seconds since the first tick")
    else:
        axes.tick_params(labelbottom=False)


def _say(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=COLOUR["muted"])


def _column(run: dict, name: str) -> np.ndarray:
    """(n,) float64 of one field of the records; NaN where it is null."""
    values = [record.get(name) for record in run.get("records") or []]
    return np.array([math.nan if value is None else float(value) for value in values], np.float64)


def _period_s(run: dict) -> float:
    return (_finite((run.get("parameters") or {}).get("control.period_ms")) or 33.333) / 1e3


def _finite(value: object) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0
