"""The systems of the paper's experiments: what each is told, and on which contexts it is measured."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

import bhc
from bhc.contexts import ContextSpace
from bhc.data import DataSet, Split

MIXED_BATCHES = 100
MIXED_SEED = 0


@dataclass(frozen=True)
class Sample:
    """How a context is asked for, and labelled images of it."""

    conditions: dict[str, Any]
    examples: Split


@dataclass(frozen=True)
class Case:
    """A context to measure."""

    label: str
    validation: Sample
    test: Sample
    group: str = "all contexts"  # contexts of one group share a threshold


@dataclass(frozen=True)
class Method:
    """A row of the table."""

    name: str
    trained_on: str
    family: str
    space: Callable[[DataSet], ContextSpace]
    cases: Callable[[DataSet], Sequence[Case]]
    contexts: int = 1  # K and B of a training step
    examples: int = 256
    groups: int = 1  # of contexts, each with a threshold of its own


def pairs(dataset: DataSet) -> tuple[tuple[int, ...], ...]:
    """The paper's contexts: (0, 1), (1, 2), ..."""
    return bhc.ConsecutivePairs().subsets(dataset.num_classes)


def everything(dataset: DataSet) -> list[Case]:
    return [_case("all classes", {}, dataset)]


def class_pairs(dataset: DataSet) -> list[Case]:
    return [_case(_label(pair), {"classes": list(pair)}, dataset, pair) for pair in pairs(dataset)]


def pair_domains(dataset: DataSet) -> list[Case]:
    """The network is told the mean of the training images of two classes; all outputs stay."""
    return [
        _case(_label(pair), {"domain": dataset.train.restricted_to(pair).inputs}, dataset, pair)
        for pair in pairs(dataset)
    ]


def mixed_batches(dataset: DataSet) -> list[Case]:
    """Random batches of all classes, each with its own mean as the condition."""
    size = METHODS["bhc-cx-mixed"].examples
    draws = torch.Generator().manual_seed(MIXED_SEED)

    def batches(split: Split) -> list[Sample]:
        count = min(MIXED_BATCHES, len(split) // size)
        order = torch.randperm(len(split), generator=draws)[: count * size]
        parts = [Split(split.inputs[index], split.labels[index]) for index in order.split(size)]
        return [Sample({"domain": part.inputs}, part) for part in parts]

    seen, unseen = batches(dataset.validation), batches(dataset.test)
    return [Case(f"batch {number}", *pair) for number, pair in enumerate(zip(seen, unseen, strict=False))]


def budgets(dataset: DataSet) -> list[Case]:
    return [
        replace(_case(f"c_w = {budget}", {"budget": budget}, dataset), group=f"c_w = {budget}") for budget in (0, 1)
    ]


def _case(label: str, conditions: dict[str, Any], dataset: DataSet, classes: tuple[int, ...] | None = None) -> Case:
    """A condition that is the same while choosing and while testing."""
    wanted = range(dataset.num_classes) if classes is None else classes
    parts = [Sample(conditions, split.restricted_to(wanted)) for split in (dataset.validation, dataset.test)]
    return Case(label, *parts)


def _label(pair: tuple[int, ...]) -> str:
    return ", ".join(map(str, pair))


def _single(dataset: DataSet) -> ContextSpace:
    return bhc.SingleContext()


def _subsets(dataset: DataSet) -> ContextSpace:
    return bhc.ClassSubsets(dataset.num_classes, bhc.ConsecutivePairs())


def _domains(dataset: DataSet) -> ContextSpace:
    return bhc.InputDomains(dataset.image_shape, bhc.ConsecutivePairs(), dataset.full_scale)


def _mixed(dataset: DataSet) -> ContextSpace:
    whole = bhc.RandomSubsets((dataset.num_classes,))
    return bhc.InputDomains(dataset.image_shape, whole, dataset.full_scale)


def _budgets(dataset: DataSet) -> ContextSpace:
    return bhc.BinaryBudget()


METHODS = {
    method.name: method
    for method in (
        Method("sparsevd", "all classes", "sparse-vd", _single, everything),
        Method("bc-gnj", "all classes", "gnj", _single, everything),
        Method("bc-ghs", "all classes", "ghs", _single, everything),
        Method("bc-io-gnj", "all classes", "io-gnj", _single, everything),
        Method("bhc-cx-domain", "domains of nine consecutive pairs", "io-gnj", _domains, pair_domains, 8, 32),
        Method("bhc-cx-mixed", "random batches of all classes", "io-gnj", _mixed, mixed_batches, 8, 32),
        Method("bhc-cy", "nine consecutive pairs", "io-gnj", _subsets, class_pairs, 16, 16),
        Method("bhc-cw", "all classes, two budgets", "io-gnj", _budgets, budgets, groups=2),
        Method("per-context", "each of nine consecutive pairs alone", "io-gnj", _single, class_pairs),
    )
}


def request(space: ContextSpace, sample: Sample) -> dict[str, Any]:
    """How a model is asked for a sample's context; one that knows a single context is asked nothing."""
    return {} if isinstance(space, bhc.SingleContext) else sample.conditions
