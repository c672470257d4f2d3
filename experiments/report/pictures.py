"""The figure of accuracy against compression rate, and the histograms of log dropout rates."""

from collections.abc import Sequence
from math import exp, log

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bhc.cli.plots import AFTER, LINE, STYLE

from .budgets import BASELINES, OURS, Curves, curves_of
from .curves import ALL, Point, accuracy_at
from .histogram import Rates, rates_of
from .load import Results
from .methods import TITLES
from .numbers import NOT_RUN, measure
from .paper import Paper

LINES = {
    (OURS, "c_w = 0"): (AFTER, "-", "o"),
    (OURS, "c_w = 1"): ("#0f766e", "-", "s"),
    ("bc-gnj", ALL): (LINE, "--", "^"),
    ("bc-ghs", ALL): ("#6b7280", "--", "D"),
}
GROUPS = ("#1f6feb", "#8db7f5", "#0f766e", "#7cc4bd", "#c2410c", "#f0a67f", "#6b7280", "#c3c9d1")
LOWEST = 80.0  # percent right; what is under it is of no use to anyone
MARKS = (80, 85, 90, 93, 95, 96, 97, 98, 98.5, 99, 99.2, 99.4, 99.6, 99.8)
EDGE = 12.0  # rates beyond are drawn there


def accuracy_figure(results: Results, paper: Paper) -> Figure:
    """Accuracy against compression rate, a panel a network."""
    models = paper.models_with(OURS)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 4.6))
        panels = np.atleast_1d(figure.subplots(1, len(models)))
        for axes, model in zip(panels, models, strict=True):
            _draw_accuracy(axes, results, model)
            axes.set_title(paper.title(model))
        handles = [Line2D([], [], color=colour, ls=dashes, lw=1.8) for colour, dashes, _ in LINES.values()]
        figure.legend(handles, [_label(*key) for key in LINES], loc="outside lower center", ncols=4, frameon=False)
        return figure


def _label(method: str, name: str) -> str:
    return TITLES[method] if name == ALL else f"BHC, {name}"


def _draw_accuracy(axes: Axes, results: Results, model: str) -> None:
    drawn = {key: _draw_curves(axes, results, model, *key) for key in LINES}
    missing = [_label(*key) for key, points in drawn.items() if not points]
    if len(missing) == len(LINES):
        say_nothing(axes)
        return
    if missing:
        axes.text(0.02, 0.02, f"{NOT_RUN}: {', '.join(missing)}", transform=axes.transAxes, fontsize=8)
    points = [point for some in drawn.values() for point in some]
    _accuracy_scale(axes, [accuracy for _, accuracy in points])
    rate_scale(axes, [rate for rate, accuracy in points if accuracy >= LOWEST])
    axes.minorticks_off()
    axes.grid(alpha=0.25, lw=0.6)


def rate_scale(axes: Axes, rates: Sequence[float]) -> None:
    """As far as any network is of use."""
    low, high = min(rates, default=1.0) / 1.15, 1.3 * max(rates, default=10.0)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    marks = (1, 2, 3, 5, 7) if high < 8 * low else (1, 2, 5) if high < 2000 * low else (1,)
    axes.set_xticks([tick for power in range(6) for mark in marks if low <= (tick := mark * 10**power) <= high])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("compression rate (times fewer weights)")


def _accuracy_scale(axes: Axes, accuracies: Sequence[float]) -> None:
    """Spaced by the logarithm of the error: a tenth of a point shows at 99 % and a fall to 80 % still fits."""
    top = min(100.0, max(accuracies) + 0.15)
    bottom = min(max(LOWEST, min(accuracies) - 0.2), top - 0.5)
    axes.set_yscale("function", functions=(_spaced, _unspaced))
    axes.set_ylim(bottom, top)
    marks = [mark for mark in MARKS if bottom <= mark <= top]
    axes.set_yticks(marks, [f"{mark:g}" for mark in marks])
    axes.set_ylabel("test accuracy, %")


def _spaced(accuracy: np.ndarray) -> np.ndarray:
    return -np.log(np.maximum(100.1 - accuracy, 1e-3))


def _unspaced(spaced: np.ndarray) -> np.ndarray:
    return 100.1 - np.exp(-spaced)


def _draw_curves(axes: Axes, results: Results, model: str, method: str, name: str) -> list[tuple[float, float]]:
    """Each seed's test points, and the mean over seeds of what validation would choose; the points drawn."""
    colour, dashes, marker = LINES[method, name]
    found = [curves for run in results.of(model, method) if (curves := run.trade_off(name))]
    for curves in found:
        _draw_points(axes, curves["test"], colour, marker)
    rates, accuracies = mean_line(curves_of(results, model, method, name))
    axes.plot(rates, accuracies, dashes, color=colour, lw=1.8)
    every = [(point["ratio_mean"], 100 - point["error"]) for curves in found for point in curves["test"]]
    return [*zip(rates, accuracies, strict=True), *every]


def _draw_points(axes: Axes, points: Sequence[Point], colour: str, marker: str) -> None:
    ordered = sorted(points, key=lambda point: point["threshold"])
    rates = [point["ratio_mean"] for point in ordered]
    accuracies = [100 - point["error"] for point in ordered]
    axes.plot(rates, accuracies, "-", marker=marker, color=colour, lw=0.6, ms=3, mew=0, alpha=0.35)


def mean_line(curves: Curves) -> tuple[list[float], list[float]]:
    """The mean over seeds on the rates that all of them cover."""
    fronts = [front for front in curves.test if front]
    low = max((log(front[0]["ratio_mean"]) for front in fronts), default=0.0)
    high = min((log(front[-1]["ratio_mean"]) for front in fronts), default=-1.0)
    if high < low:
        return [], []
    line = []
    for step in range(101):
        rate = exp(low + (high - low) * step / 100)
        measured = measure(accuracy_at(front, rate) for front in fronts)
        if measured is not None:
            line.append((rate, measured.mean))
    return [rate for rate, _ in line], [accuracy for _, accuracy in line]


def dropout_figure(results: Results, paper: Paper) -> Figure:
    """Log dropout rates of the two baselines, a row a network."""
    models = paper.models_with(*BASELINES)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 3.2 * len(models)))
        panels = figure.subplots(len(models), len(BASELINES), squeeze=False)
        found = {(model, method): rates_of(results, model, method) for model in models for method in BASELINES}
        for axes, ((model, method), rates) in zip(panels.flat, found.items(), strict=True):
            # The two priors leave rates of different ranges: each method has its own axis, alike for all networks.
            own = [some for key, some in found.items() if key[1] == method]
            _draw_rates(axes, rates, _common_bins([rate for some in own for group in some.values() for rate in group]))
            axes.set_title(f"{paper.title(model)}, {TITLES[method]}")
        return figure


def _common_bins(rates: Sequence[float]) -> list[float]:
    """Sixty of them, over all rates but those far out."""
    values = np.clip(rates, -EDGE, EDGE) if rates else np.zeros(1)
    return np.linspace(np.floor(values.min()), np.floor(values.max()) + 1, 61).tolist()


def _draw_rates(axes: Axes, rates: Rates, bins: list[float]) -> None:
    if not rates:
        say_nothing(axes)
        return
    values = [np.clip(group, -EDGE, EDGE) for group in rates.values()]
    labels = [f"{name} ({len(group):,})" for name, group in rates.items()]
    many = len(values) > len(GROUPS)
    axes.hist(values, bins=bins, histtype="stepfilled", stacked=True, color=_colours(len(values)), label=labels)
    beyond = any(abs(rate) > EDGE for group in rates.values() for rate in group)
    axes.set_xlabel(f"log dropout rate (beyond ±{EDGE:g}: drawn at the edge)" if beyond else "log dropout rate")
    axes.set_yscale("symlog", linthresh=20)  # the units that go are many times those that stay
    axes.set_ylabel("number of scales")
    # Clusters stand left or right, so the room for names is above them.
    axes.set_ylim(top=(100 if many else 6) * axes.get_ylim()[1])
    size = 6 if many else 8
    axes.legend(frameon=False, fontsize=size, ncols=3, loc="upper left", columnspacing=1.2, handlelength=1.2)


def _colours(count: int) -> list[str]:
    """Of many groups neighbours look alike: from the first layer to the last."""
    if count <= len(GROUPS):
        return list(GROUPS[:count])
    return [to_hex(colour) for colour in matplotlib.colormaps["viridis"](np.linspace(0, 1, count))]


def say_nothing(axes: Axes) -> None:
    axes.text(0.5, 0.5, NOT_RUN, ha="center", va="center", transform=axes.transAxes)
    axes.set_xticks([])
    axes.set_yticks([])
