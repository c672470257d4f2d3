"""The inputs that an alarm is set by, and those it is tried on."""

from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

from bhc.contexts import Context
from bhc.data import Split
from bhc.emission.alarm import QUARTERS, USUAL, Alarm, as_fraction, auroc, check_rate, outside_score
from bhc.emission.guarantee import stratified
from bhc.emission.judge import Judge, logits_of
from bhc.errors import BhcError
from bhc.graph import Graph
from bhc.training import TrainedModel


@dataclass(frozen=True)
class Watch:
    """A rate of false alarms, inputs of the context, and inputs that are not."""

    rate: float
    inside: Tensor
    outside: Tensor | None  # None: there are no examples of what lies outside

    @classmethod
    def of(cls, model: TrainedModel, context: Context, rate: float, *, sample: Tensor | None = None) -> "Watch":
        """``sample`` is that of a domain; other contexts have the run's validation sample."""
        check_rate(rate)
        judge = Judge.of(model, context)
        inside = sample if context.domain is not None else None if judge is None else _as_they_appear(judge, context)
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

    def settle(self, graph: Graph) -> tuple[Alarm, float | None]:
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


def _as_they_appear(judge: Judge, context: Context) -> Tensor:
    """The context's images; where its classes appear unequally often, as many of each as that says."""
    if context.frequencies is None:
        return judge.inputs
    places = tuple(range(len(judge.classes)))
    return stratified(Split(judge.inputs, judge.labels), places, context.appearance)[0].inputs


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
