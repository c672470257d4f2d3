"""How much is lost on class subsets that training never met: five folds, each subset seen and unseen."""

from collections.abc import Sequence
from typing import Any

import torch

import bhc
from bhc.contexts import all_subsets
from questions.bench import Bench, most_accurate, thresholds_of

FOLDS = 5
JUDGED = 60  # subsets that the threshold is chosen on
Subset = tuple[int, ...]


def folds_of(num_classes: int, sizes: Sequence[int]) -> list[list[Subset]]:
    """All subsets of the sizes in five parts, those of each size spread evenly, always the same."""
    order = torch.Generator().manual_seed(0)
    parts: list[list[Subset]] = [[] for _ in range(FOLDS)]
    for size in sizes:
        own = list(all_subsets(num_classes, (size,)))
        for place, index in enumerate(torch.randperm(len(own), generator=order).tolist()):
            parts[place % FOLDS].append(own[index])
    return parts


def answer(bench: Bench) -> dict[str, Any]:
    """A model a fold that has not met it; every model is asked for every subset."""
    sizes = tuple(bench.config.asked["sizes"])
    num_classes = bench.dataset.num_classes
    folds = folds_of(num_classes, sizes)
    models = []
    for number, held_out in enumerate(folds):
        space = bhc.ClassSubsets(num_classes, bhc.RandomSubsets(sizes, held_out=tuple(held_out)))
        models.append(_asked_for_all(bench, bench.train(f"fold{number}", space), sizes, set(held_out)))
    return {"folds": models}


def _asked_for_all(bench: Bench, model: bhc.Compressor, sizes: Sequence[int], unseen: set[Subset]) -> dict[str, Any]:
    subsets = list(all_subsets(bench.dataset.num_classes, sizes))
    met = [subset for subset in subsets if subset not in unseen]
    judged = [met[place * len(met) // JUDGED] for place in range(JUDGED)]
    cases = [({"classes": list(subset)}, bench.dataset.validation.restricted_to(subset)) for subset in judged]
    points = bench.curve(model, cases, thresholds_of(model))
    chosen = most_accurate(points, ratio=bench.config.asked["ratio"])
    with bench.on_device(model):
        rows = [_row(bench, model, subset, chosen.threshold) | {"seen": subset not in unseen} for subset in subsets]
    return {"threshold": chosen.threshold, "validation_error": chosen.error, "subsets": rows}


def _row(bench: Bench, model: bhc.Compressor, subset: Subset, threshold: float) -> dict[str, Any]:
    examples = bench.dataset.test.restricted_to(subset)
    (trial,) = bench.trials(model, {"classes": list(subset)}, examples, [threshold])
    return {"classes": list(subset), "ratio": trial.ratio, "wrong": trial.wrong, "images": trial.images}
