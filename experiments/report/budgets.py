"""The figure in numbers: accuracy at given compression rates, two budgets of one network against two baselines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Any

from .curves import ALL, Point, accuracy_at, pareto, read_on_test
from .load import Results
from .markdown import bullets, document, table
from .methods import TITLES
from .numbers import NOT_RUN, NOTHING, measure
from .paper import Paper

RATES = (1.5, 2, 3, 5, 8, 12, 20, 30, 50, 80, 120, 200, 300)
OURS = "bhc-cw"
BUDGETS = ("c_w = 0", "c_w = 1")
BASELINES = ("bc-gnj", "bc-ghs")
RULES = (
    "A curve is one trained network at many thresholds. Of each curve only the thresholds count that no other beats on"
    " validation data in both rate and accuracy; what is shown is their test accuracy, in percent, between two of them"
    " in proportion to the logarithm of the rate. Below its lowest rate a curve keeps that point's accuracy: the"
    " smaller network serves there too.",
    "In the picture the thick lines are these readings, means over seeds; the faint points are every threshold of every"
    " seed on test data.",
    "BHC is the better of its two budgets at that rate, chosen on validation data; the budget is named beside it."
    " With several seeds each seed chooses for itself and the mean is shown.",
    "Rates go as far as a baseline has a point. A rate that a baseline reaches and BHC does not counts as missed.",
)
Reading = tuple[float, int]  # accuracy, and the seeds it is the mean of


@dataclass(frozen=True)
class Curves:
    """All seeds of one curve, one front each: as validated, and read on test data."""

    validation: Sequence[Sequence[Point]]
    test: Sequence[Sequence[Point]]

    def at(self, rate: float) -> Reading | None:
        return _mean([accuracy_at(front, rate) for front in self.test])

    @property
    def furthest(self) -> float:
        return max((front[-1]["ratio_mean"] for front in self.test if front), default=0.0)


def curves_of(results: Results, model: str, method: str, name: str) -> Curves:
    found: list[Mapping[str, Any]] = [
        curves for run in results.of(model, method) if (curves := run.trade_off(name)) is not None
    ]
    return Curves([pareto(curves["validation"]) for curves in found], [read_on_test(curves) for curves in found])


def budgets(results: Results, paper: Paper) -> str:
    models = [_model(results, paper, model) for model in paper.models_with(OURS)]
    return document(
        f"# Accuracy against compression rate on {paper.dataset}",
        "![Accuracy against compression rate](cw.png)",
        *models,
        "## How to read it",
        bullets(RULES),
    )


def _model(results: Results, paper: Paper, model: str) -> str:
    ours = [curves_of(results, model, OURS, name) for name in BUDGETS]
    rivals = {method: curves_of(results, model, method, ALL) for method in BASELINES}
    furthest = max(curves.furthest for curves in rivals.values())
    rates = [rate for rate in RATES if rate <= furthest]
    header = ["rate", *BUDGETS, "BHC (budget)", *(TITLES[name] for name in rivals)]
    header += [f"BHC less {TITLES[name]}" for name in rivals]
    rows = [_row(rate, ours, list(rivals.values())) for rate in rates]
    limit = paper.limit("accuracy_shortfall")
    lines = [f"{TITLES[name]}: {_verdict(ours, curves, limit)}" for name, curves in rivals.items()]
    return document(f"## {paper.title(model)}", table(header, rows) if rows else "", bullets(lines)).rstrip()


def _row(rate: float, ours: Sequence[Curves], rivals: Sequence[Curves]) -> list[str]:
    best, chosen = better_budget(ours, rate)
    others = [curves.at(rate) for curves in rivals]
    return [
        f"{rate:g}",
        *(_text(curves.at(rate), len(curves.test)) for curves in ours),
        _text(best, len(ours[0].test)) + (f" ({chosen})" if chosen else ""),
        *(_text(other, len(curves.test)) for other, curves in zip(others, rivals, strict=True)),
        *(f"{best[0] - other[0]:+.2f}" if best and other else NOTHING for other in others),
    ]


def better_budget(ours: Sequence[Curves], rate: float) -> tuple[Reading | None, str]:
    """The test accuracy of the budget that is better on validation data, and which that was, seed by seed."""
    accuracies, chosen = [], []
    for seed in range(min(len(curves.test) for curves in ours)):
        validated = [accuracy_at(curves.validation[seed], rate) for curves in ours]
        known = [(accuracy, -place) for place, accuracy in enumerate(validated) if accuracy is not None]
        if known:
            # With equal accuracy the earlier budget stays: it is the one that puts accuracy first.
            place = -max(known)[1]
            accuracies.append(accuracy_at(ours[place].test[seed], rate))
            chosen.append(BUDGETS[place].removeprefix("c_w = "))
    return _mean(accuracies), ", ".join(dict.fromkeys(chosen))


def _mean(accuracies: Sequence[float | None]) -> Reading | None:
    measured = measure(accuracies)
    return None if measured is None else (measured.mean, measured.seeds)


def _text(reading: Reading | None, seeds: int) -> str:
    if reading is None:
        return NOTHING
    some = f" [{reading[1]} of {seeds} seeds]" if reading[1] < seeds else ""
    return f"{reading[0]:.2f}{some}"


def _verdict(ours: Sequence[Curves], rival: Curves, limit: float) -> str:
    """On the rates of the table, and on rates close enough together to stand for every rate."""
    if not rival.furthest or not all(curves.test for curves in ours):
        return f"{NOT_RUN}, or no curve recorded"
    low, high = log(RATES[0]), log(max(rival.furthest, RATES[0]))
    close = [exp(low + (high - low) * step / 200) for step in range(201)]
    shown = [rate for rate in RATES if rate <= rival.furthest]
    return (
        f"on the rates above {_shortfall(ours, rival, shown, limit)};"
        f" on 201 rates from {close[0]:.3g} to {close[-1]:.3g} {_shortfall(ours, rival, close, limit)}"
    )


def _shortfall(ours: Sequence[Curves], rival: Curves, rates: Sequence[float], limit: float) -> str:
    """The largest shortfall against the limit."""
    pairs = [(rate, better_budget(ours, rate)[0], rival.at(rate)) for rate in rates]
    absent = [(rate, theirs[0]) for rate, mine, theirs in pairs if mine is None and theirs is not None]
    both = [(theirs[0] - mine[0], rate) for rate, mine, theirs in pairs if mine is not None and theirs is not None]
    texts = []
    if both:
        worst, rate = max(both)
        word = "largest shortfall" if worst > 0 else "nowhere under it; smallest lead"
        texts.append(f"{word} {abs(worst):.2f} (at {rate:.3g} x; limit {limit:g})")
    if absent:
        texts.append(f"no BHC network from {absent[0][0]:.3g} x on, where it has {absent[0][1]:.2f} %")
    reached = bool(both) and not absent and max(both)[0] <= limit + 1e-9
    return f"{'reached' if reached else '**missed**'}: {'; '.join(texts) or 'nothing to compare'}"
