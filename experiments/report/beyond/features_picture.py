"""Errors mask by mask beside pictures of the masks."""

from collections.abc import Sequence
from statistics import fmean

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure, SubFigure
from questions.features import masks_of

from bhc.cli.plots import AFTER, CUT, KEPT, LINE, STYLE

from ..numbers import ratio_text
from ..pictures import say_nothing
from .answers import Answers, Case
from .features import Row, counted, drawn_rows, named_rows

SHAPES = {"mnist": (1, 28, 28)}  # of images; a data set that is not here has no pictures of masks
OURS, ZEROS = "for these features", "full network, zeros"
LOOKS = {OURS: (AFTER, None), ZEROS: (LINE, "///")}


def features_figure(answers: Answers) -> Figure:
    """A row a network."""
    cases = answers.of("features")
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 4.2 * max(len(cases), 1)))
        parts = figure.subfigures(max(len(cases), 1), 1, squeeze=False)
        for part, case in zip(parts.flat, cases, strict=False):
            _draw(part, case)
        return figure


def _draw(part: SubFigure, case: Case) -> None:
    if not case.answers:
        axes = part.subplots()
        axes.set_title(case.title)
        say_nothing(axes)
        return
    part.suptitle(case.title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    named = named_rows(case)
    grid = part.add_gridspec(max(len(named), 1), 3, width_ratios=[0.45, 1.6, 1.5])
    masks = masks_of(SHAPES[case.config.data]) if case.config.data in SHAPES else {}
    most = max((error for row in named for error in (row.error, row.full_error)), default=1.0)
    for place, row in enumerate(named):
        if row.mask in masks:
            _draw_mask(part.add_subplot(grid[place, 0]), masks[row.mask].numpy().max(0))
        axes = part.add_subplot(grid[place, 1])
        _draw_bars(axes, row, most)
        axes.set_title(f"{row.mask}: {row.features} features there, {ratio_text(fmean(row.ratios))} x{counted(case)}")
        if place == len(named) - 1:
            axes.set_xlabel("test error, %")
        else:
            axes.set_xticklabels([])
    drawn = drawn_rows(case)
    if drawn:
        axes = part.add_subplot(grid[:, 2])
        _draw_drawn(axes, drawn)
        axes.set_title(f"{len(drawn)} drawn masks\nunder the line: better than zeros")


def _draw_mask(axes: Axes, mask: np.ndarray) -> None:
    """What is there is dark."""
    axes.imshow(mask, cmap=ListedColormap([CUT, KEPT]), vmin=0, vmax=1)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def _draw_bars(axes: Axes, row: Row, most: float) -> None:
    for place, (name, error) in enumerate(((OURS, row.error), (ZEROS, row.full_error))):
        colour, hatch = LOOKS[name]
        axes.barh(-place, error, 0.7, color=colour, alpha=0.8, hatch=hatch, edgecolor="white", lw=0)
        axes.text(error + 0.01 * most, -place, f"{error:.2f} %", va="center")
    axes.set_yticks([0, -1], [OURS, ZEROS])
    axes.set_xlim(0, 1.18 * most)
    axes.tick_params(axis="y", length=0)


def _draw_drawn(axes: Axes, rows: Sequence[Row]) -> None:
    """Under the diagonal the network for these features errs less."""
    full, ours = [row.full_error for row in rows], [row.error for row in rows]
    low, high = 0.8 * min(*full, *ours, 100.0) + 1e-3, min(1.25 * max(*full, *ours), 110.0)
    axes.plot([low, high], [low, high], color="black", lw=0.8)
    axes.plot(full, ours, "o", color=AFTER, ms=6, mew=0, alpha=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    marks = [mark for mark in (0.5, 1, 2, 5, 10, 20, 50, 100) if low <= mark <= high]
    axes.set_xticks(marks, [f"{mark:g}" for mark in marks])
    axes.set_yticks(marks, [f"{mark:g}" for mark in marks])
    axes.minorticks_off()
    axes.set_aspect("equal")
    axes.grid(alpha=0.25, lw=0.6)
    axes.set_xlabel("full network with zeros: test error, %")
    axes.set_ylabel("for these features: test error, %")
