"""What is asked: the contexts a network can be made for."""

from typing import Any

from bhc.contexts.budgets import Budgets
from bhc.contexts.classes import ClassSubsets
from bhc.contexts.context import Context, ContextBatch
from bhc.contexts.domains import InputDomains
from bhc.contexts.joint import Joint
from bhc.contexts.likelihoods import Bernoulli, Gaussian, Likelihood, PooledGaussian
from bhc.contexts.single import SingleContext
from bhc.contexts.space import ContextSpace
from bhc.contexts.subsets import (
    ConsecutivePairs,
    RandomSubsets,
    SubsetSampler,
    all_subsets,
    sampler_from_dict,
)
from bhc.errors import BhcError


def from_dict(data: dict[str, Any]) -> ContextSpace:
    """The space that a ``to_dict`` described."""
    match data.get("kind"):
        case "classes":
            names = data["class_names"]
            return ClassSubsets(
                data["num_classes"],
                sampler_from_dict(data["sampler"]),
                None if names is None else tuple(names),
                data["concentration"],
            )
        case "domain":
            return InputDomains.from_dict(data)
        case "budget":
            low, high = data["kl_weights"]
            return Budgets((low, high))
        case "single":
            classes = data["classes"]
            return SingleContext(None if classes is None else tuple(classes))
        case "joint":
            return Joint(*(from_dict(space) for space in data["spaces"]))
        case other:
            raise BhcError(f"unknown kind of context: {other!r}")


__all__ = [
    "Bernoulli",
    "Budgets",
    "ClassSubsets",
    "ConsecutivePairs",
    "Context",
    "ContextBatch",
    "ContextSpace",
    "Gaussian",
    "InputDomains",
    "Joint",
    "Likelihood",
    "PooledGaussian",
    "RandomSubsets",
    "SingleContext",
    "SubsetSampler",
    "all_subsets",
    "from_dict",
]
