"""What is asked: the contexts a network can be made for."""

from typing import Any

from bhc.contexts.budgets import BinaryBudget, Budgets
from bhc.contexts.classes import ClassSubsets
from bhc.contexts.context import Context, ContextBatch
from bhc.contexts.domains import InputDomains, SampleMean
from bhc.contexts.features import FeatureSubsets
from bhc.contexts.joint import Joint
from bhc.contexts.likelihoods import Bernoulli, Gaussian, Likelihood, PooledGaussian
from bhc.contexts.masks import (
    BlockFeatures,
    ListedFeatures,
    MaskSampler,
    MixedFeatures,
    ScatteredFeatures,
    StripedFeatures,
    WordsOfTexts,
)
from bhc.contexts.single import SingleContext
from bhc.contexts.space import ContextSpace
from bhc.contexts.subsets import (
    ConsecutivePairs,
    ListedSubsets,
    RandomSubsets,
    SubsetSampler,
    all_subsets,
    sampler_from_dict,
)
from bhc.contexts.summaries import InputAsItIs, Spectrum, Summary
from bhc.contexts.vocabularies import VocabularySubsets
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
        case "features":
            return FeatureSubsets.from_dict(data)
        case "vocabulary":
            return VocabularySubsets.from_dict(data)
        case "budget":
            low, high = data["kl_weights"]
            return BinaryBudget((low, high))
        case "budgets":
            low, high = data["kl_weights"]
            return Budgets((low, high), data.get("margin", 0.0))
        case "single":
            classes = data["classes"]
            return SingleContext(None if classes is None else tuple(classes))
        case "joint":
            # Older runs were asked for every part.
            return Joint(*(from_dict(space) for space in data["spaces"]), missing=data.get("missing", 0.0))
        case other:
            raise BhcError(f"unknown kind of context: {other!r}")


__all__ = [
    "Bernoulli",
    "BinaryBudget",
    "BlockFeatures",
    "Budgets",
    "ClassSubsets",
    "ConsecutivePairs",
    "Context",
    "ContextBatch",
    "ContextSpace",
    "FeatureSubsets",
    "Gaussian",
    "InputAsItIs",
    "InputDomains",
    "Joint",
    "Likelihood",
    "ListedFeatures",
    "ListedSubsets",
    "MaskSampler",
    "MixedFeatures",
    "PooledGaussian",
    "RandomSubsets",
    "SampleMean",
    "ScatteredFeatures",
    "SingleContext",
    "Spectrum",
    "StripedFeatures",
    "SubsetSampler",
    "Summary",
    "VocabularySubsets",
    "WordsOfTexts",
    "all_subsets",
    "from_dict",
]
