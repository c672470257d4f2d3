"""When an input is taken to lie outside the context: a score of the logits, and a threshold on it."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bhc.errors import BhcError

NAME = "alarm"  # of its entry in a file's card
QUARTERS = (0, 1, 2, 3, 4)
USUAL = 2  # where nothing was there to choose by


def outside_score(logits: Tensor, quarters: int = USUAL) -> Tensor:  # (N, C) -> (N,)
    """``quarters / 4`` of the second largest logit, less the largest: larger means more likely outside.

    With 0 quarters it is the size of the largest logit that counts, with 4 its lead. Of one class there is one logit.
    """
    if logits.shape[1] == 1:
        return -logits[:, 0]
    first, second = logits.topk(2, dim=1).values.unbind(1)
    return quarters / 4 * second - first


@dataclass(frozen=True)
class Alarm:
    """Flags inputs whose score is above a threshold."""

    quarters: int
    threshold: float
    rate: float  # of false alarms: at most this part of the inputs it was set by is flagged

    def score(self, logits: Tensor) -> Tensor:
        return outside_score(logits, self.quarters)

    def flags(self, logits: Tensor) -> Tensor:
        """True where an input is taken to lie outside."""
        return self.score(logits) > self.threshold

    @classmethod
    def set_by(cls, scores: Tensor, quarters: int, rate: float) -> "Alarm":
        """The lowest threshold, of few bits, that keeps the rate by the scores of inputs from inside.

        It is the conformal quantile, the ``ceil((n + 1) (1 - rate))``-th of ``n`` scores: an input drawn as these
        were is above it with a probability of at most ``rate``.
        """
        allowed = int((len(scores) + 1) * as_fraction(rate))
        assert allowed >= 1, "too few scores for this rate"
        return cls(quarters, _round_up(float(scores.sort().values[-allowed])), rate)

    def to_card(self) -> list[Any]:
        """What a file stores: most often eight bytes."""
        return [self.quarters, self.threshold, float(np.float16(self.rate)) or self.rate]

    @classmethod
    def of(cls, card: Mapping[str, Any]) -> "Alarm | None":
        """That of a card, None if it has none; ValueError if it is damaged."""
        match card.get(NAME):
            case None:
                return None
            case [int(quarters), float(threshold), float(rate)] if (
                quarters in QUARTERS and isfinite(threshold) and 0 < rate <= 1
            ):
                return cls(quarters, threshold, float(f"{rate:.3g}"))
        raise ValueError("its alarm is not one")


def as_fraction(rate: float) -> Fraction:
    """The rate as it was meant: 0.05 is not a binary fraction."""
    return Fraction(str(float(rate)))


def check_rate(rate: float) -> None:
    """Raise unless it is a part of inputs that can be flagged."""
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1:
        raise BhcError(
            f"flag_outside is a rate of false alarms between 0 and 1, given {rate!r}", hint="0.05 means 5 % of inputs"
        )


def _round_up(score: float) -> float:
    """To a 16-bit float, or a 32-bit one where that is too small: up, so that no more inputs are flagged."""
    for kind in (np.float16, np.float32):
        with np.errstate(over="ignore"):
            rounded = kind(score)
        if float(rounded) < score:  # numpy would round the score too
            rounded = np.nextafter(rounded, kind(np.inf))
        if np.isfinite(rounded):
            return float(rounded)
    raise BhcError(f"a score of {score} cannot be a threshold", hint="are there infinite or missing numbers in inputs?")


def auroc(inside: Tensor, outside: Tensor) -> float:  # (N,), (M,)
    """The area under the ROC curve: how often an input from outside has the higher score.

    Over all pairs of one input from inside and one from outside; a tie counts half. 0.5 tells nothing, 1 all.
    """
    values, places = torch.unique(torch.cat([inside, outside]), return_inverse=True)
    here = torch.bincount(places[: len(inside)], minlength=len(values))
    there = torch.bincount(places[len(inside) :], minlength=len(values))
    halves = int((there * (2 * here.cumsum(0) - here)).sum())  # two for each pair in order, one for each tie
    return halves / (2 * len(inside) * len(outside))
