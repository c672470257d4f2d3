"""Ratio and error of seen and unseen subsets by size, and each subset's error both ways."""

from collections.abc import Callable, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bhc.cli.plots import AFTER, LINE, STYLE

from ..bootstrap import Estimate
from ..numbers import ratio_text
from ..pictures import say_nothing
from .answers import Answers, Case
from .pairs import Pair, Side, harmonic_ratio, pairs_of, pooled_error
from .pictures import panels
from .subsets import by_size

SIDES: dict[str, tuple[str, Callable[[Pair], Side]]] = {
    "seen": (AFTER, lambda pair: pair.seen),
    "unseen": (LINE, lambda pair: pair.unseen),
}
SIZES = ("#000000", "#0072b2", "#e69f00", "#cc79a7", "#56b4e9", "#009e73"), "os^DvP"
WIDTH = 0.36


def subsets_figure(answers: Answers) -> Figure:
    """A row a network."""
    cases = answers.of("subsets")
    with matplotlib.rc_context(STYLE):
        figure, grid = panels(len(cases), 3, 12, 3.3)
        for row, case in zip(grid, cases, strict=False):
            _draw(row, case)
        return figure


def _draw(row: Sequence[Axes], case: Case) -> None:
    row[0].set_title(case.title)
    if not case.answers:
        for axes in row:
            say_nothing(axes)
        return
    groups = by_size(pairs_of(case))
    _bars(row[0], groups, harmonic_ratio, ratio_text)
    row[0].set_title(f"{case.title}: ratio")
    row[0].set_ylabel("harmonic ratio (times fewer weights)")
    _bars(row[1], groups, pooled_error, lambda value: f"{value:.2f}")
    row[1].set_title("test error")
    row[1].set_ylabel("pooled test error, %")
    _scatter(row[2], groups)


def _bars(
    axes: Axes,
    groups: dict[int, list[Pair]],
    statistic: Callable[[Sequence[Side]], Estimate],
    text: Callable[[float], str],
) -> None:
    highest = 0.0
    for number, (name, (colour, side)) in enumerate(SIDES.items()):
        found = [statistic([side(pair) for pair in pairs]) for pairs in groups.values()]
        places = np.arange(len(groups)) + (number - 0.5) * (WIDTH + 0.04)
        values = [estimate.value for estimate in found]
        reach = [[max(e.value - e.low, 0.0) for e in found], [max(e.high - e.value, 0.0) for e in found]]
        hatch = None if name == "seen" else "///"
        axes.bar(places, values, WIDTH, color=colour, alpha=0.75, label=name, hatch=hatch, edgecolor="white", lw=0)
        axes.errorbar(places, values, reach, fmt="none", ecolor="black", elinewidth=1, capsize=2.5)
        for place, estimate in zip(places, found, strict=True):
            axes.annotate(text(estimate.value), (place, estimate.high), (0, 3), textcoords="offset points", ha="center")
        highest = max(highest, *(estimate.high for estimate in found))
    axes.set_xticks(range(len(groups)), [f"{size} classes" for size in groups])
    axes.set_ylim(0, 1.28 * highest)  # room for the names
    axes.legend(frameon=False, ncols=2, loc="upper right")


def _scatter(axes: Axes, groups: dict[int, list[Pair]]) -> None:
    """On the diagonal nothing is lost."""
    most = 0.0
    colours, markers = SIZES
    for number, (size, pairs) in enumerate(groups.items()):
        seen, unseen = [pair.seen.error for pair in pairs], [pair.unseen.error for pair in pairs]
        place = number % len(colours)
        axes.plot(seen, unseen, markers[place], color=colours[place], ms=4, mew=0, alpha=0.55, label=f"{size} classes")
        most = max(most, *seen, *unseen)
    axes.plot([0, 1.05 * most], [0, 1.05 * most], color="black", lw=0.8)
    axes.set_xlim(0, 1.05 * most)
    axes.set_ylim(0, 1.05 * most)
    axes.set_aspect("equal")
    axes.set_xlabel("test error seen, %")
    axes.set_ylabel("test error unseen, %")
    axes.set_title("each subset")
    axes.legend(frameon=False, loc="lower right", fontsize=8, handletextpad=0.2)  # what is worse unseen lies above
