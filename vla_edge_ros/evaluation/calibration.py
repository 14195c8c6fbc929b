"""How good admission's predictions were: a plot of predicted against actual time, as SVG for inline use."""

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vla_edge_ros.evaluation.plot_style import COLOUR, RC_PARAMS, to_svg

_MAX_POINTS = 1500


def predicted_and_actual_ms(run: dict) -> tuple[np.ndarray, np.ndarray]:
    """(n,) ms each, of every pass that was predicted and ended, in whichever tick."""
    records = run.get("records") or []
    took_ms = {
        work["work_id"]: (work["finished_ns"] - work["submitted_ns"]) / 1e6
        for record in records
        for work in record.get("work") or ()
    }
    pairs = [
        (record["predicted_ms"], took_ms[record["submitted_work"]])
        for record in records
        if record.get("predicted_ms") is not None and record.get("submitted_work") in took_ms
    ]
    predicted, actual = np.array(pairs, np.float64).reshape(-1, 2).T
    return predicted, actual


def calibration_plot(run: dict) -> str:
    predicted, actual = predicted_and_actual_ms(run)
    with matplotlib.rc_context(RC_PARAMS):
        figure = Figure(figsize=(10.0, 2.9), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.6))
        if len(predicted):
            _draw_pairs(left, predicted, actual)
            _draw_coverage(right, actual - predicted)
        for axes, x, y in (
            (left, "predicted, in ms", "actual,\nin ms"),
            (right, "longer than predicted by at most, in ms", "passes,\nin %"),
        ):
            axes.set_xlabel(x)
            axes.set_ylabel(y, rotation=0, ha="right", va="center", labelpad=10)
            if not len(predicted):
                axes.text(
                    0.5, 0.5, "no pass was predicted", transform=axes.transAxes, ha="center", va="center"
                )
        return to_svg(figure, "calibration")


def _draw_pairs(axes: Axes, predicted: np.ndarray, actual: np.ndarray) -> None:
    step = -(-len(predicted) // _MAX_POINTS)
    # Of a long run every so many-th, and each of the slowest hundred.
    shown = np.union1d(np.arange(0, len(actual), step), np.argsort(actual)[-100:])
    axes.plot(predicted[shown], actual[shown], ".", color=COLOUR["pass"], ms=3, alpha=0.6)
    ends = [min(predicted.min(), actual.min()), max(predicted.max(), actual.max())]
    axes.plot(ends, ends, color=COLOUR["muted"], lw=0.8, ls=":")


def _draw_coverage(axes: Axes, excess_ms: np.ndarray) -> None:
    excess_ms = np.sort(excess_ms)
    shares = np.linspace(0, 1, min(len(excess_ms), 400))
    at_ms = np.quantile(excess_ms, shares, method="inverted_cdf")
    axes.step(at_ms, 100 * shares, where="post", color=COLOUR["accent"], lw=1.4)
    p99_ms = float(np.quantile(excess_ms, 0.99, method="inverted_cdf"))
    axes.axvline(0, color=COLOUR["muted"], lw=0.8, ls=":")
    axes.axvline(p99_ms, color=COLOUR["ink"], lw=0.8, ls=":")
    axes.text(p99_ms, 4, f" 99 %: {p99_ms:+.2f} ms", fontsize=8)
    low_ms, high_ms = np.quantile(excess_ms, (0.005, 0.995))
    reach_ms = max(1.0, 2 * p99_ms, high_ms - low_ms)
    axes.set_xlim(max(excess_ms[0], low_ms - 0.2 * reach_ms), min(excess_ms[-1], reach_ms) + 0.1)
    axes.set_ylim(0, 104)
