"""Which contexts a run is judged on."""

from collections.abc import Sequence
from itertools import product
from typing import TypeVar

from bhc.contexts import Budgets, ClassSubsets, Context, ContextSpace, InputDomains, Joint, SingleContext
from bhc.data import Split
from bhc.errors import BhcError
from bhc.training.evaluation import Probe

T = TypeVar("T")


def find_probes(space: ContextSpace, train: Split, *, num_classes: int, limit: int = 24) -> tuple[Probe, ...]:
    """Contexts spread evenly over those that training can draw, at most ``limit`` of them."""
    return tuple(_spread(_all_probes(space, train, num_classes), limit))


def _all_probes(space: ContextSpace, train: Split, num_classes: int) -> Sequence[Probe]:
    everything = tuple(range(num_classes))
    match space:
        case ClassSubsets():
            return [Probe(Context(classes=s), s) for s in space.sampler.subsets(num_classes)]
        case InputDomains():
            # The mean of training images, as at use: the examples judged on stay unseen.
            subsets = space.sampler.subsets(num_classes)
            means = [train.restricted_to(s).images.float().mean(0) for s in _spread(subsets, 64)]
            return [Probe(Context(domain=m), s) for m, s in zip(means, _spread(subsets, 64), strict=True)]
        case SingleContext():
            return [Probe(Context(classes=space.classes), space.classes or everything)]
        case Budgets():
            return [Probe(Context(budget=budget), everything) for budget in (0.0, 1.0)]
        case Joint():
            return _joint_probes(space, train, num_classes)
    raise BhcError(f"no probes for contexts of type {type(space).__name__}")


def _joint_probes(space: Joint, train: Split, num_classes: int) -> Sequence[Probe]:
    """Every combination; with classes given, a domain is that of those classes."""
    names = space.conditions
    classes = next((s for s in space.spaces if isinstance(s, ClassSubsets)), None)
    budgets: Sequence[float | None] = (0.0, 1.0) if "budget" in names else (None,)
    if classes is not None:
        subsets: Sequence[tuple[int, ...]] = classes.sampler.subsets(num_classes)
    else:
        domains = next(s for s in space.spaces if isinstance(s, InputDomains))
        subsets = domains.sampler.subsets(num_classes)
    return [
        Probe(
            Context(
                classes=subset if classes is not None else None,
                domain=train.restricted_to(subset).images.float().mean(0) if "domain" in names else None,
                budget=budget,
            ),
            subset,
        )
        for subset, budget in product(_spread(subsets, 32), budgets)
    ]


def _spread(items: Sequence[T], limit: int) -> Sequence[T]:
    if len(items) <= limit:
        return items
    return [items[index * len(items) // limit] for index in range(limit)]
