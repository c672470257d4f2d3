"""Figures of error against ratio: fronts of several models in one panel."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bhc.cli.plots import AFTER, LINE, STYLE

from ..curves import Point
from ..pictures import rate_scale, say_nothing
from .ablations import title, variants_of
from .answers import Answers, Case
from .budgets import RIVALS, rivals_of, stops_of
from .fronts import RATIO, front_of
from .joint import KINDS, NOTHING_SAID, budgets_of, curves_of

Look = tuple[str, str, str]  # colour, dashes, marker
# Told apart by lightness and marker too, not by hue alone.
LOOKS: tuple[Look, ...] = (
    ("#000000", "-", "o"),
    ("#d55e00", "-", "s"),
    ("#56b4e9", "-", "^"),
    ("#009e73", "-", "D"),
    ("#cc79a7", "--", "v"),
    ("#0072b2", "--", "P"),
    ("#b58900", "--", "X"),
    ("#6b7280", ":", "<"),
)
JOINT: dict[str, Look] = {"joint": (AFTER, "-", "o"), "alone": (LINE, "--", "^")}
DIAL: Look = ("#000000", "-", "o")
SHADES = ("#e69f00", "#d55e00", "#7a2f00"), ("#7cc4f0", "#0072b2", "#003a63")  # by rising budget: of the rivals
STYLES = ("--", "s"), (":", "^")
TICKS = (0, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50)
MARGIN = 2.5  # the largest error shown, over the smallest and a point
JOINT_PANELS = 6  # five budgets and nothing said


def panels(rows: int, columns: int, width: float, height: float) -> tuple[Figure, np.ndarray]:
    """A figure and its panels; a row a configuration."""
    figure = Figure(figsize=(width, height * max(rows, 1) + 0.5))
    return figure, figure.subplots(max(rows, 1), columns, squeeze=False)


def joint_figure(answers: Answers) -> Figure:
    """A row a network: each budget, then nothing said."""
    cases = answers.of("joint")
    with matplotlib.rc_context(STYLE):
        figure, grid = panels(len(cases), JOINT_PANELS, 15, 2.9)
        for row, case in zip(grid, cases, strict=False):
            _draw_joint(row, case)
        labels = [f"{kind}: harmonic ratio and test error" for kind in KINDS]
        _legend(figure, [JOINT[kind] for kind in KINDS], labels)
        return figure


def _draw_joint(row: Sequence[Axes], case: Case) -> None:
    row[0].set_title(case.title)
    if not case.answers:
        for axes in row:
            say_nothing(axes)
        return
    for axes, budget in zip(row, [*budgets_of(case)[: JOINT_PANELS - 1], None], strict=False):
        points = [
            point
            for kind in KINDS
            for curves in curves_of(case, budget, kind)
            for point in draw_front(axes, curves, JOINT[kind])
        ]
        scale(axes, points)
        name = NOTHING_SAID if budget is None else f"budget {budget:g}"
        axes.set_title(f"{case.title}\n{name}" if axes is row[0] else f"\n{name}")
        if axes is not row[0]:
            axes.set_ylabel("")
        axes.set_xlabel("times fewer weights")


def budgets_figure(answers: Answers) -> Figure:
    """A panel a network: the dial and its rivals."""
    cases = answers.of("budgets")
    with matplotlib.rc_context(STYLE):
        figure, grid = panels(1, max(len(cases), 1), 11, 4.8)
        for axes, case in zip(grid[0], cases, strict=False):
            _each(axes, case, _draw_dial)
        names = [name for case in cases if case.answers for name in _dial_looks(case)]
        looks = {name: look for case in cases if case.answers for name, look in _dial_looks(case).items()}
        _legend(figure, [looks[name] for name in dict.fromkeys(names)], list(dict.fromkeys(names)))
        return figure


def _dial_looks(case: Case) -> dict[str, Look]:
    looks = {"the dial: budget 0 to 1 at one threshold": DIAL}
    for kind, shades, style in zip(RIVALS, SHADES, STYLES, strict=True):
        own = [budget for known, budget in rivals_of(case) if known == kind]
        looks |= {f"{RIVALS[kind]} {budget}": (shades[n % len(shades)], *style) for n, budget in enumerate(own)}
    return looks


def _draw_dial(axes: Axes, case: Case) -> None:
    looks, points = _dial_looks(case), []
    for kind, budget in rivals_of(case):
        for value in case.values:
            points += draw_front(axes, value[kind][budget], looks[f"{RIVALS[kind]} {budget}"])
    stops = stops_of(case)
    dial = [
        {RATIO: stop.ratios[seed], "error": stop.errors[seed]} for seed in range(len(case.values)) for stop in stops
    ]
    for seed in range(len(case.values)):
        own = [stop.ratios[seed] for stop in stops], [stop.errors[seed] for stop in stops]
        axes.plot(*own, "-", marker="o", color=DIAL[0], lw=2.2, ms=4.5, zorder=3)
    scale(axes, [*points, *dial])


def ablations_figure(answers: Answers) -> Figure:
    """A panel a network: the front of every variant."""
    cases = answers.of("ablations")
    with matplotlib.rc_context(STYLE):
        figure, grid = panels(1, max(len(cases), 1), 11, 4.8)
        names = list(dict.fromkeys(name for case in cases if case.answers for name in variants_of(case)))
        looks = {name: LOOKS[place % len(LOOKS)] for place, name in enumerate(names)}
        for axes, case in zip(grid[0], cases, strict=False):
            _each(axes, case, lambda axes, case: _draw_variants(axes, case, looks))
        _legend(figure, list(looks.values()), [title(name) for name in looks])
        return figure


def _draw_variants(axes: Axes, case: Case, looks: Mapping[str, Look]) -> None:
    points = []
    for name in variants_of(case):
        for value in case.values:
            if name in value["variants"]:
                points += draw_front(axes, value["variants"][name], looks[name])
    scale(axes, points)


def draw_front(axes: Axes, curves: Mapping[str, Any], look: Look) -> list[Point]:
    """What validation would choose, as it does on test data; the points drawn."""
    colour, dashes, marker = look
    front = front_of(curves)
    ratios, errors = [point[RATIO] for point in front], [point["error"] for point in front]
    axes.plot(ratios, errors, dashes, marker=marker, color=colour, lw=1.4, ms=4, mew=0)
    return front


def scale(axes: Axes, points: Sequence[Point]) -> None:
    """The errors that are of use, and the ratios up to there; small errors have most of the room."""
    if not points:
        say_nothing(axes)
        return
    errors = [point["error"] for point in points]
    low = min(errors)
    top = min(max(errors), max(MARGIN * low, low + 1.5))
    axes.set_yscale("symlog", linthresh=1.0, linscale=0.8)
    bottom, top = max(0.0, 0.92 * low - 0.03), 1.05 * top
    axes.set_ylim(bottom, top)
    marks = [mark for mark in TICKS if bottom <= mark <= top]
    axes.set_yticks(marks, [f"{mark:g}" for mark in marks])
    axes.set_ylabel("test error, %")
    rate_scale(axes, [point[RATIO] for point in points if point["error"] <= top])
    axes.minorticks_off()
    axes.grid(alpha=0.25, lw=0.6)


def _each(axes: Axes, case: Case, draw: Any) -> None:
    axes.set_title(case.title)
    if case.answers:
        draw(axes, case)
    else:
        say_nothing(axes)


def _legend(figure: Figure, looks: Sequence[Look], labels: Sequence[str]) -> None:
    handles = [Line2D([], [], color=colour, ls=dashes, marker=marker, ms=5, lw=1.6) for colour, dashes, marker in looks]
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), frameon=False)
