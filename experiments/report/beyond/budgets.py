"""A budget as the dial of one model, against moving the threshold and against models for one weight each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from ..curves import accuracy_at, read_on_test
from ..markdown import bullets, document, table
from ..numbers import NOTHING, error_text, measure, ratio_text, with_spread
from .answers import Answers, Case
from .checks import Judgement, at_most
from .page import page

RIVALS = {"thresholds_at": "threshold moved at budget", "alone": "trained for budget"}
RULES = (
    "One model for all classes and any budget, always cut at the same threshold: the dial. It is the threshold with the"
    " largest ratio at the largest budget within an error on validation data.",
    "Against it: the same model at a fixed budget with its threshold moved, and models trained for the weight of one"
    " budget alone, with their thresholds moved. Shown is the test error of each at the dial's ratio: of each curve the"
    " thresholds that no other beats on validation data, read on test data, linear in the logarithm of the ratio."
    " Under its smallest ratio a curve keeps that point's error; beyond its largest there is none.",
    "A step falls where the ratio is smaller at the larger of two neighbouring budgets.",
)


@dataclass(frozen=True)
class Stop:
    """One place of the dial, a number a seed."""

    budget: float
    ratios: Sequence[float]
    errors: Sequence[float]


def budgets(answers: Answers) -> str:
    return page("The budget as a dial", answers.of("budgets"), _section, RULES, "budgets.png")


def target(case: Case) -> str:
    limit = case.targets["falls"]
    return f"the ratio falls at {limit} steps at most" if limit else "the ratio never falls as the budget rises"


def judge(case: Case) -> Judgement:
    most = max(falls_of(value["sweep"]) for value in case.values)
    ends = [stops_of(case)[place] for place in (0, -1)]
    low, high = (f"{ratio_text(fmean(stop.ratios))} ({fmean(stop.errors):.2f} %)" for stop in ends)
    found = f"ratio (error) from {low} to {high}; {_steps(case)}"
    return Judgement(found, (at_most("steps at which the ratio falls", most, case.targets["falls"], _count),))


def _steps(case: Case) -> str:
    steps = len(case.values[0]["sweep"]) - 1
    most = max(falls_of(value["sweep"]) for value in case.values)
    some = " in the worst seed" if len(case.values) > 1 else ""
    return f"the ratio falls at {most} of {steps} steps{some}" if most else f"the ratio never falls in {steps} steps"


def falls_of(sweep: Sequence[Mapping[str, Any]]) -> int:
    """How often the ratio is smaller at the next budget."""
    ratios = [stop["ratio"] for stop in sorted(sweep, key=lambda stop: stop["budget"])]
    return sum(after < before for before, after in pairwise(ratios))


def stops_of(case: Case) -> list[Stop]:
    sweeps = [{stop["budget"]: stop for stop in value["sweep"]} for value in case.values]
    return [
        Stop(budget, [sweep[budget]["ratio"] for sweep in sweeps], [sweep[budget]["error"] for sweep in sweeps])
        for budget in sorted(set.intersection(*(set(sweep) for sweep in sweeps)))
    ]


def rivals_of(case: Case) -> list[tuple[str, str]]:
    return [(kind, budget) for kind in RIVALS for budget in case.values[0][kind]]


def _section(case: Case) -> str:
    stops, rivals = stops_of(case), rivals_of(case)
    others = [[_error_at(case, kind, budget, stop) for stop in stops] for kind, budget in rivals]
    header = ["budget", "ratio", "test error", *(f"{RIVALS[kind]} {budget}" for kind, budget in rivals)]
    rows = [
        [
            f"{stop.budget:.2f}",
            with_spread(measure(stop.ratios)),
            with_spread(measure(stop.errors), error_text),
            *(NOTHING if own[place] is None else error_text(own[place]) for own in others),
        ]
        for place, stop in enumerate(stops)
    ]
    lines = [
        f"The dial less {RIVALS[kind]} {budget}: {_difference(stops, own)}."
        for (kind, budget), own in zip(rivals, others, strict=True)
    ]
    thresholds = ", ".join(f"{value['threshold']:.2f}" for value in case.values)
    return document(
        f"The dial is cut at threshold {thresholds}.",
        table(header, rows),
        bullets([f"{target(case)}: {judge(case).verdict}; {_steps(case)}", *lines]),
    ).rstrip()


def _error_at(case: Case, kind: str, budget: str, stop: Stop) -> float | None:
    """A rival's test error at the ratio of each seed's dial; nothing unless every seed's has one."""
    found = [
        accuracy_at(read_on_test(value[kind][budget]), ratio)
        for value, ratio in zip(case.values, stop.ratios, strict=True)
    ]
    known = [100 - accuracy for accuracy in found if accuracy is not None]
    return fmean(known) if len(known) == len(found) else None


def _difference(stops: Sequence[Stop], errors: Sequence[float | None]) -> str:
    pairs = [(fmean(stop.errors) - error, stop) for stop, error in zip(stops, errors, strict=True) if error is not None]
    if not pairs:
        return "no ratio of the dial lies on its curve"
    worst, stop = max(pairs, key=lambda pair: pair[0])
    average = fmean(difference for difference, _ in pairs)
    return (
        f"mean {average:+.2f} points of error, at worst {worst:+.2f} (at {ratio_text(fmean(stop.ratios))} x),"
        f" over {len(pairs)} of {len(stops)} places"
    )


def _count(value: float | None) -> str:
    return f"{value:.0f}"
