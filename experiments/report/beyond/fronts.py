"""Fronts of curves as a question recorded them, and two models at equal error."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..curves import Point, pareto, read_on_test
from ..equal_error import ERRORS, AtError, Front, covered, quotients

RATIO = "ratio_harmonic"
LARGEST = ERRORS[-1]  # percent; nobody would use a network that errs more
STEPS = 100  # of the covered errors, close enough together to stand for all


def front_of(curves: Mapping[str, Any]) -> list[Point]:
    """The thresholds that no other beats on validation data, read on test data."""
    return pareto(read_on_test(curves), RATIO)


@dataclass(frozen=True)
class Comparison:
    """One model's ratios over another's on the errors that both cover."""

    low: float
    high: float
    middle: AtError
    smallest: AtError


def compare(first: Sequence[Front], second: Sequence[Front]) -> Comparison | None:
    """Nothing where no error of use lies on all fronts."""
    span = covered(first, second)
    if span is None or span[0] > LARGEST:
        return None
    low, high = span[0], min(span[1], LARGEST)
    grid = [low + (high - low) * step / STEPS for step in range(STEPS)]
    rows = [row for row in quotients(first, second, ratio=RATIO, extra=[*grid, high]) if low <= row.error <= high]
    middle = next(row for row in rows if row.error == grid[STEPS // 2])
    return Comparison(low, high, middle, min(rows, key=lambda row: row.quotient))
