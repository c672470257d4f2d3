"""What is asked: the contexts a network can be made for."""

from importlib import import_module
from pkgutil import iter_modules

from bhc.contexts.budgets import BinaryBudget, Budgets
from bhc.contexts.classes import ClassSubsets, parse_classes
from bhc.contexts.context import Context, ContextBatch, Presence
from bhc.contexts.domains import InputAsItIs, InputDomains, SampleMean, Spectrum, Summary, from_token, to_token
from bhc.contexts.features import FeatureSubsets, VocabularySubsets
from bhc.contexts.joint import Joint, SingleContext
from bhc.contexts.masks import (
    BlockFeatures,
    ListedFeatures,
    MaskSampler,
    MixedFeatures,
    ScatteredFeatures,
    StripedFeatures,
    WordsOfTexts,
)
from bhc.contexts.registry import (
    check_space,
    checked_draw,
    checked_encoding,
    example_request,
    from_dict,
    is_ours,
    register_context,
    request_options,
    spaces_for,
    training_options,
)
from bhc.contexts.space import (
    Bernoulli,
    BudgetEmbedder,
    ContextSpace,
    Gaussian,
    ImageEmbedder,
    JointEmbedder,
    Likelihood,
    Option,
    PooledGaussian,
    ProbeRequest,
    TrainingData,
    VectorEmbedder,
)
from bhc.contexts.subsets import (
    ConsecutivePairs,
    ListedSubsets,
    RandomSubsets,
    SubsetSampler,
    all_subsets,
    sampler_from_dict,
)

for _module in iter_modules(__path__):  # a kind of ours is one file here, which registers it
    import_module(f"{__name__}.{_module.name}")
