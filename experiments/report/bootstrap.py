"""How far a number would move had other cases been drawn: bootstrap intervals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .numbers import Text

RESAMPLES, SEED = 2000, 0
LEVELS = (2.5, 97.5)
Statistic = Callable[..., np.ndarray]  # of columns (..., n), over the last axis


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % interval."""

    value: float
    low: float
    high: float

    def text(self, number: Text) -> str:
        return f"{number(self.value)} ({number(self.low)} to {number(self.high)})"


def estimate(statistic: Statistic, *columns: Sequence[float]) -> Estimate:
    """A statistic of columns of equal length; cases are drawn anew with all of their columns, always the same draws."""
    values = [np.asarray(column, dtype=float) for column in columns]
    count = len(values[0])
    draws = np.random.default_rng(SEED).integers(count, size=(RESAMPLES, count))
    low, high = np.percentile(statistic(*(column[draws] for column in values)), LEVELS)
    return Estimate(float(statistic(*values)), float(low), float(high))


def mean(column: np.ndarray) -> np.ndarray:
    return column.mean(-1)
