"""Which contexts a run is judged on."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from torch import Generator, Tensor

from bhc.contexts import (
    BinaryBudget,
    Budgets,
    ClassSubsets,
    Context,
    ContextBatch,
    ContextSpace,
    FeatureSubsets,
    InputDomains,
    SingleContext,
)
from bhc.examples import Split
from bhc.training.evaluation import Probe, spread

Subset = tuple[int, ...]

SUBSETS, MASKS = 32, 8  # at most so many of each are combined with other conditions


def find_probes(space: ContextSpace, train: Split, *, num_classes: int, limit: int = 24) -> tuple[Probe, ...]:
    """Contexts spread evenly over those that training can draw, at most ``limit`` of them.

    Where conditions may be left out, one more leaves out all.
    """
    alone = len(space.parts) == 1
    combined = product(
        _subsets(space, num_classes, limit if alone else SUBSETS),
        _sources(space, limit if alone else SUBSETS),
        _masks(space, limit if alone else MASKS),
        _budgets(space),
    )
    probes = [_probe(space, train, *parts) for parts in spread(list(combined), limit)]
    if space.optional:
        probes.append(Probe(space.resolve({}), tuple(range(num_classes))))
    return tuple(probes)


def _probe(
    space: ContextSpace,
    train: Split,
    subset: Subset,
    sources: Subset | None,
    mask: Tensor | None,
    budget: float | None,
) -> Probe:
    context = Context(features=mask, budget=budget)
    for part in space.parts:
        match part:
            case ClassSubsets():
                context = replace(context, classes=subset)
            case SingleContext():
                context = replace(context, classes=part.classes)
            case InputDomains():
                # The mean of training images, as at use: the examples judged on stay unseen.
                images = Probe(context, subset, sources).examples(train).inputs
                context = replace(context, domain=_mean(space, part, images, mask), domain_size=len(images))
    return Probe(context, subset, sources)


def _mean(space: ContextSpace, domains: InputDomains, images: Tensor, mask: Tensor | None) -> Tensor:
    """What images tell in the mean, with nothing where features are missing."""
    mean = domains.summarise(images).mean(0)
    there = space.there(None if mask is None else mask[None], tuple(mean.shape))
    return mean if there is None else mean * there[0]


def _subsets(space: ContextSpace, num_classes: int, limit: int) -> Sequence[Subset]:
    """Classes whose examples are judged on: those that are named, or else those of the domains."""
    everything = tuple(range(num_classes))
    by_kind = {type(part): part for part in space.parts}
    match by_kind.get(ClassSubsets) or by_kind.get(InputDomains) or by_kind.get(SingleContext):
        case InputDomains(num_sources=int()):
            return [everything]
        case ClassSubsets(sampler=sampler) | InputDomains(sampler=sampler):
            return sampler.examples(num_classes, limit)
        case SingleContext(classes=classes):
            return [classes or everything]
    return [everything]


def _sources(space: ContextSpace, limit: int) -> Sequence[Subset | None]:
    for part in space.parts:
        if isinstance(part, InputDomains) and part.num_sources is not None:
            return part.sampler.examples(part.num_sources, limit)
    return [None]


def _masks(space: ContextSpace, limit: int) -> Sequence[Tensor | None]:
    for part in space.parts:
        if isinstance(part, FeatureSubsets):
            empty = ContextBatch.unconditioned(limit, 1)
            drawn = part.refine(empty, rng=Generator().manual_seed(0)).inputs
            assert drawn is not None
            return list(drawn)
    return [None]


def _budgets(space: ContextSpace) -> Sequence[float | None]:
    for part in space.parts:
        if isinstance(part, Budgets):
            return (0.0, 1.0) if isinstance(part, BinaryBudget) else (0.0, 0.25, 0.5, 0.75, 1.0)
    return (None,)
