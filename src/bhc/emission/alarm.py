"""When an input is taken to lie outside the context: a score of the logits, a threshold on it, and what sets that."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bhc.contexts import Context
from bhc.emission.guarantee import stratified
from bhc.emission.judge import Judge, logits_of
from bhc.errors import BhcError
from bhc.examples import Split
from bhc.graph import Graph
from bhc.training import TrainedModel

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


@dataclass(frozen=True)
class AlarmSamples:
    """A rate of false alarms, inputs of the context, and inputs that are not."""

    rate: float
    inside: Tensor
    outside: Tensor | None  # None: there are no examples of what lies outside

    @classmethod
    def of(cls, model: TrainedModel, context: Context, rate: float, *, sample: Tensor | None = None) -> "AlarmSamples":
        """``sample`` is that of a domain; other contexts have the run's validation sample."""
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1:
            raise BhcError(
                f"flag_outside is a rate of false alarms between 0 and 1, given {rate!r}",
                hint="0.05 means 5 % of inputs",
            )
        inside = sample
        if context.domain is None:
            judge = Judge.of(model, context)
            inside = None if judge is None else judge.inputs
            if judge is not None and context.frequencies is not None:  # as many of each class as that says
                examples, places = Split(judge.inputs, judge.labels), tuple(range(len(judge.classes)))
                inside = stratified(examples, places, context.appearance)[0].inputs
        if inside is None:
            raise BhcError(
                "flag_outside needs validation data for this context, and the run has none",
                hint="leave flag_outside out, or train with validation examples of every class",
            )
        needed = ceil(1 / as_fraction(rate)) - 1
        if len(inside) < needed:
            raise BhcError(
                f"flag_outside={rate:g} needs at least {needed:,} inputs of the context, there are {len(inside):,}",
                hint=f"ask for a rate of {ceil(1e6 / (len(inside) + 1)) / 1e6:g} or more"
                if context.domain is None
                else "give a larger sample of the domain, or allow a higher rate",
            )
        return cls(rate, inside, _left_out(model, context, limit=len(inside)))

    def tune(self, graph: Graph) -> tuple[Alarm, float | None]:
        """The alarm of a network; and its AUROC, where there is something outside.

        Which part of the second logit counts is then chosen too: the one with the highest AUROC.
        """
        inside = logits_of(graph, self.inside)
        if self.outside is None:
            return Alarm.set_by(outside_score(inside), USUAL, self.rate), None
        outside = logits_of(graph, self.outside)
        areas = {part: auroc(outside_score(inside, part), outside_score(outside, part)) for part in QUARTERS}
        best = max(QUARTERS, key=lambda part: areas[part])
        return Alarm.set_by(outside_score(inside, best), best, self.rate), areas[best]


def _left_out(model: TrainedModel, context: Context, *, limit: int) -> Tensor | None:
    """Validation images of the classes that are not the context's, evenly spread over them; None if there are none."""
    if model.validation is None or context.classes is None:
        return None
    labels = model.validation.labels
    left_out = (~torch.isin(labels, torch.tensor(context.classes))).nonzero().flatten()
    if not len(left_out):
        return None
    by_class = left_out[labels[left_out].argsort(stable=True)]
    count = min(limit, len(by_class))
    return model.validation.inputs[by_class[torch.arange(count) * len(by_class) // count]]
