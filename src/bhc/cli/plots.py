"""Pictures of a run and of an emitted network."""

import io
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bhc.contexts import Context, ContextBatch
from bhc.emission import BranchCut, Compressed, Report, SizeCurve, find_branch_cuts, make_cut
from bhc.files import write_bytes
from bhc.formats import Part, StoredLayer
from bhc.hypernet import ConditionalNetwork
from bhc.layers import Select
from bhc.studio.preview import rate_groups
from bhc.tasks import Task

BEFORE, AFTER, KEPT, CUT, LINE = "#9aa5b1", "#1f6feb", "#1f6feb", "#e4e8ec", "#c2410c"
RATES_OF = {"in": "inputs", "out": "outputs", "weight": "weights"}
MOST_COLUMNS = 6  # of a run's picture
LOST = ("lost_least", "lost_most")
STRIP = 8  # times as long as it is high
MOST_TALL, LAYERS_IN_A_ROW = 5.0, 7  # of its first row, in others
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "figure.constrained_layout.use": True,
}


def save_figure(figure: Figure, path: Path) -> None:
    """Write a PNG in one step."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150)
    write_bytes(path, content.getvalue())


def run_figure(
    network: ConditionalNetwork, training: dict[str, Any], context: Context, threshold: float, name: str
) -> Figure:
    """A run at a glance: the trade-off, one context's cut, and the rates it was cut by."""
    with matplotlib.rc_context(STYLE):
        scales = _scale_groups(network, context)
        columns = min(MOST_COLUMNS, max(3, (len(scales) + 1) // 2))
        cut = make_cut(network, context, threshold)
        branches = find_branch_cuts(network, cut)
        first = 2 if branches else 1  # row of the rates
        rows = first + ceil(len(scales) / columns)
        heights = [min(MOST_TALL, max(1.0, len(network.layers) / LAYERS_IN_A_ROW)), *[1.0] * (rows - 1)]
        figure = Figure(figsize=(4 * columns, 3 * sum(heights)))
        grid = figure.add_gridspec(rows, columns, height_ratios=heights)
        draw_trade_off(figure.add_subplot(grid[0, : columns - 1]), training, threshold, network.task)
        if branches:
            draw_branches(figure.add_subplot(grid[1, :]), branches)
        axes = figure.add_subplot(grid[0, columns - 1])
        names, before = zip(*((layer.name, layer.width) for layer in network.layers), strict=True)
        draw_architecture(axes, names, before, [layer.width for layer in cut.layers], f"kept for {name}")
        for place, (title, rates) in enumerate(scales):
            axes = figure.add_subplot(grid[first + place // columns, place % columns])
            draw_histogram(axes, title, rates, threshold)
        return figure


def contexts_figure(smalls: Sequence[tuple[str, Compressed]], training: dict[str, Any], threshold: float) -> Figure:
    """Several contexts side by side: which pixels each reads, how wide each layer stays; the trade-off below."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(2.1 * len(smalls), 7.6))
        grid = figure.add_gridspec(3, len(smalls), height_ratios=[1, 1, 1.5])
        for column, (name, small) in enumerate(smalls):
            report = small.report
            draw_pixels(figure.add_subplot(grid[0, column]), small, f"{name}\n{report.file_bytes:,} bytes")
            axes = figure.add_subplot(grid[1, column])
            kept = f"{report.pruning_ratio:,.0f} x fewer weights"
            draw_architecture(axes, report.layers, report.architecture_before, report.architecture, kept)
        draw_trade_off(figure.add_subplot(grid[2, :]), training, threshold)
        return figure


def file_figure(small: Compressed, parts: Sequence[Part]) -> Figure:
    """One emitted network: what it reads, what is left of each layer, what its bytes are for, its weights."""
    with matplotlib.rc_context(STYLE):
        report: Report = small.report
        layers = small.network.layers
        figure = Figure(figsize=(10, 6.2))
        top, bottom = figure.subfigures(2, 1, height_ratios=[1.15, 1])  # type: ignore[misc]
        pixels, widths, sizes = top.subplots(1, 3, width_ratios=[1, 1, 1.35])
        draw_pixels(pixels, small, "")
        title = f"{report.weights_before:,} weights to {report.weights_after:,}"
        draw_architecture(widths, report.layers, report.architecture_before, report.architecture, title)
        draw_parts(sizes, parts, report.file_bytes or 0)
        for axes, layer in zip(np.atleast_1d(bottom.subplots(1, len(layers))), layers, strict=True):
            draw_weights(axes, layer)
        return figure


def draw_parts(axes: Axes, parts: Sequence[Part], size: int) -> None:
    """The bytes of a file by what they are for."""
    totals: dict[str, float] = {}
    for part in parts:
        totals[part.name] = totals.get(part.name, 0.0) + part.bytes
    names = sorted(totals, key=lambda name: totals[name])
    axes.barh(names, [totals[name] for name in names], color=KEPT, height=0.6)
    for row, name in enumerate(names):
        axes.text(totals[name], row, f" {totals[name]:,.0f}", va="center", fontsize=8)
    axes.set_xlim(0, 1.25 * max(totals.values(), default=1))
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(length=0)
    axes.set_title(f"{size:,} bytes in all" if parts else "bytes by part are not known of this version", loc="left")


def draw_weights(axes: Axes, layer: StoredLayer) -> None:
    """How often each code of a layer occurs; of a float layer, its weights."""
    codes = layer.weight
    if codes is None:
        axes.hist(layer.module.weight.numpy().ravel(), bins=40, color=KEPT)
    else:
        values, counts = np.unique(codes.codes, return_counts=True)
        axes.bar(values, counts, width=0.9, color=KEPT)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(f"{layer.name}: {layer.bits} bits")
    step = "" if codes is None else f"; code x {codes.step:.2g} is a weight"
    axes.set_xlabel(f"{layer.num_weights:,} weights{step}", fontsize=8)


def draw_trade_off(axes: Axes, training: dict[str, Any], threshold: float, task: Task | None = None) -> None:
    """Error against ratio: of all that a run offers with its spread over contexts; of the hypernetwork alone, before
    and after consolidation, where it offers nothing else."""
    curves, whole = training["curves"], training.get("size_curve")
    if whole is None:
        worst = _draw_generated(axes, curves, threshold)
    else:
        worst = _draw_size_curve(axes, SizeCurve.from_dict(whole), curves["after"])
    if training["original_error"] is not None and whole is None:
        axes.axhline(training["original_error"], color="black", lw=0.8, ls=":", label="pretrained network")
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=1.0, linscale=0.6)
    ticks = [0, 0.5, 1, 2, 5, 10, 20, 50, 100]
    shown = ticks[: 1 + next(place for place, tick in enumerate(ticks) if tick >= worst)]
    axes.set_yticks(shown, [f"{tick:g}" for tick in shown])
    axes.minorticks_off()
    axes.set_xlabel("times smaller (weights, harmonic mean over contexts)")
    name = "error" if task is None else f"{'100 less the ' if task.higher_is_better else ''}{task.error_name}"
    axes.set_ylabel(f"validation {name}, %")
    axes.set_title("what size costs")
    low, high = axes.get_xlim()
    marks = [mark * 10**power for power in range(7) for mark in (1, 2, 5)]
    axes.set_xticks([mark for mark in marks if low <= mark <= high])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.legend(frameon=False)


def _draw_generated(axes: Axes, curves: dict[str, Any], threshold: float) -> float:
    """The hypernetwork's curves; the highest error of them."""
    stage = "consolidation" if "before" in curves else "training"
    for name, colour in (("before", BEFORE), ("after", AFTER)):
        if points := curves.get(name):
            ratios = [point["ratio_harmonic"] for point in points]
            axes.plot(ratios, [point["error"] for point in points], "o-", ms=3, color=colour, label=f"{name} {stage}")
    for point in curves["after"]:
        if point["threshold"] == threshold:
            at = point["ratio_harmonic"], point["error"]
            axes.plot(*at, "o", ms=9, mfc="none", color=LINE, label=f"threshold {threshold:g}")
    return max(point["error"] for points in curves.values() for point in points)


def _draw_size_curve(axes: Axes, curve: SizeCurve, generated: Sequence[dict[str, float]]) -> float:
    """All sizes, a band from the context that loses least to the one that loses most; the highest error of these."""
    ratios, errors = ([getattr(point, name) for point in curve.points] for name in ("ratio", "error"))
    original = errors[0] - curve.points[0].lost
    least, most = ([max(0.0, original + getattr(point, name)) for point in curve.points] for name in LOST)
    axes.fill_between(ratios, least, most, color=AFTER, alpha=0.15, lw=0, label=f"{curve.contexts} contexts")
    axes.plot(ratios, errors, "o-", ms=3, color=AFTER, label="what is emitted, mean")
    own = [point for point in generated if point["error"] <= max(most)]
    axes.plot(
        [point["ratio_harmonic"] for point in own],
        [point["error"] for point in own],
        color=BEFORE,
        lw=1,
        label="the hypernetwork's alone",
    )
    axes.axhline(original, color="black", lw=0.8, ls=":", label="pretrained network")
    if curve.default_ratio is not None:
        axes.axvline(curve.default_ratio, color=LINE, lw=1, label="by default")
    return max(most)


def draw_architecture(
    axes: Axes, names: Sequence[str], before: Sequence[int], after: Sequence[int], title: str
) -> None:
    """Each layer's width as a bar, what is kept of it filled."""
    rows = np.arange(len(names))[::-1]
    axes.barh(rows, [1.0] * len(names), color=CUT, height=0.5)
    axes.barh(rows, [b / a for a, b in zip(before, after, strict=True)], color=KEPT, height=0.5)
    for row, width, kept in zip(rows, before, after, strict=True):
        axes.text(0, row + 0.36, f"{kept} of {width}", va="bottom", ha="left", fontsize=8)
    axes.set_yticks(rows, names)
    axes.set_xticks([])
    axes.set_xlim(0, 1)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_title(title, pad=12)


def draw_branches(axes: Axes, cuts: Sequence[BranchCut]) -> None:
    """Branches as boxes above the stream that they add to, heights roots of units: outlined what was, filled what is
    kept, dashed what went."""
    places = np.arange(len(cuts))
    # Of boxes and of the stream, before and after.
    tall, filled, wide, kept = np.sqrt([(*cut.units, *cut.stream) for cut in cuts]).T
    middle = -0.75 * wide.max()
    axes.bar(places, tall, 0.7, color=CUT)
    axes.bar(places, filled, 0.7, color=KEPT, alpha=0.5)
    axes.bar(places, wide, 1.0, middle - wide / 2, color=CUT)
    axes.bar(places, kept, 1.0, middle - kept / 2, color=KEPT, alpha=0.5)
    gone = [cut.gone for cut in cuts]
    axes.bar(places[gone], tall[gone], 0.7, color="white", edgecolor=BEFORE, linestyle="--")
    for place, cut in enumerate(cuts):
        heads = f"\n{sum(head.alive for head in cut.heads)} of {len(cut.heads)} heads" if cut.heads else ""
        text = "gone" if cut.gone else f"{cut.units.after} of {cut.units.before}{heads}"
        axes.text(place, tall[place], text, ha="center", va="bottom", fontsize=7)
        axes.text(place, middle, f"{cut.stream.after} of {cut.stream.before}", ha="center", va="center", fontsize=7)
    axes.set_xlim(-0.5, len(cuts) - 0.5)
    axes.set_ylim(middle - wide.max() / 2, 1.25 * tall.max())
    axes.set_xticks(places, [cut.name for cut in cuts], rotation=20, ha="right", fontsize=7)
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_title(f"{len(cuts) - sum(gone)} of {len(cuts)} branches stay beside the stream")


def draw_pixels(axes: Axes, small: Compressed, title: str) -> None:
    """The inputs that an emitted network reads, as a picture."""
    read = np.zeros(small.input_shape, dtype=float)
    modules = (step.module for step in small.network.graph.steps)
    first = next((module for module in modules if hasattr(module, "weight") or isinstance(module, Select)), None)
    if isinstance(first, Select):
        read.reshape(-1)[first.index.numpy()] = 1.0
    else:
        read[...] = 1.0
    # Channels one over the other; what has no rows is a strip.
    picture = read.max(0) if read.ndim > 2 else np.repeat(np.atleast_2d(read), max(1, read.size // STRIP), axis=0)
    axes.imshow(picture, cmap=matplotlib.colors.ListedColormap([CUT, KEPT]), vmin=0, vmax=1)
    axes.set_title(title)
    several = len(small.network.signature) > 1
    what = "several inputs" if several else "pixels it reads" if read.ndim > 2 else "inputs it reads"
    axes.set_xlabel(what, fontsize=8)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def draw_histogram(axes: Axes, title: str, rates: np.ndarray, threshold: float) -> None:
    """Log dropout rates of one group of scales; left of the line is kept."""
    axes.hist(np.clip(rates, -12, 12), bins=np.linspace(-12, 12, 49).tolist(), color=AFTER)
    axes.axvline(threshold, color=LINE, lw=1.2)
    kept = int((rates < threshold).sum())
    axes.set_title(title)
    axes.set_xlabel(f"log dropout rate; left of the line: {kept} of {len(rates)}", fontsize=8)


@torch.no_grad()
def _scale_groups(network: ConditionalNetwork, context: Context) -> list[tuple[str, np.ndarray]]:
    """Every group of rates in this context, by its layer and what it is about."""
    batch = ContextBatch.of([context], network.num_classes)
    return [
        (f"{layer.name} {RATES_OF[which]}", rates.numpy())
        for layer, dropout in zip(network.layers, network.dropouts(batch), strict=True)
        for which, rates in rate_groups(dropout)
    ]
