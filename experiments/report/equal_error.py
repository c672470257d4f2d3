"""Two methods at equal error: the quotient of their ratios."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isclose
from statistics import fmean, median

from .curves import Point, ratio_at
from .numbers import error_text

ERRORS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.2, 1.5, 1.8, 2.0, 2.5, 3.0, 4.0, 5.0)
Front = Sequence[Point]


@dataclass(frozen=True)
class AtError:
    """Ratios of two methods at one error, each the mean over its seeds."""

    error: float
    first: float
    second: float

    @property
    def quotient(self) -> float:
        return self.first / self.second


def quotients(
    first: Sequence[Front], second: Sequence[Front], *, ratio: str, extra: Sequence[float] = ()
) -> list[AtError]:
    """Both methods over the errors that every front of both covers, one front a seed."""
    span = covered(first, second)
    if span is None:
        return []
    inside = sorted(error for error in {*ERRORS, *extra} if span[0] <= error <= span[1])
    return [AtError(error, _mean(first, error, ratio), _mean(second, error, ratio)) for error in inside]


def covered(first: Sequence[Front], second: Sequence[Front]) -> tuple[float, float] | None:
    """The smallest and the largest error that every front of both covers."""
    fronts = [*first, *second]
    if not first or not second or not all(fronts):
        return None
    low = max(front[0]["error"] for front in fronts)
    high = min(front[-1]["error"] for front in fronts)
    return (low, high) if low <= high else None


def _mean(fronts: Sequence[Front], error: float, ratio: str) -> float:
    return fmean(value for front in fronts if (value := ratio_at(front, error, ratio)) is not None)


def quotients_text(rows: Sequence[AtError]) -> str:
    """Smallest and median quotient."""
    if not rows:
        return "no error of the grid lies on both curves"
    worst = min(rows, key=lambda row: row.quotient)
    low, high = error_text(rows[0].error), error_text(rows[-1].error)
    span = f"at {low} %" if isclose(rows[0].error, rows[-1].error) else f"from {low} to {high} %"
    middle = median(row.quotient for row in rows)
    return f"smallest {worst.quotient:.2f} (at {error_text(worst.error)} %), median {middle:.2f}, {span}"
