"""Networks for inputs of which some are missing, against the full network with zeros in their place."""

from typing import Any

import torch
from torch import Tensor

import bhc
from bhc.contexts import ListedFeatures
from bhc.data import Split
from bhc.pretraining import error_of
from questions.bench import Bench, most_accurate, thresholds_of

RANDOM = 20  # more masks, drawn as training draws them


def masks_of(shape: tuple[int, ...]) -> dict[str, Tensor]:
    """The three that are asked about: the left half, every second column, a random three of ten."""
    left, second = torch.zeros(2, *shape, dtype=torch.bool)
    left[..., : shape[-1] // 2] = True
    second[..., ::2] = True
    scattered = torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.3
    return {"left half": left, "every second column": second, "random 30 %": scattered}


def answer(bench: Bench) -> dict[str, Any]:
    """For each mask the most accurate network that is small enough, chosen on validation data.

    ``known`` masks are the three themselves, for those who know what will be missing; otherwise training draws masks of
    all kinds, never meets the three, and is asked for some more of its own kinds too.
    """
    shape, known = bench.dataset.image_shape, bool(bench.config.asked["known"])
    masks = masks_of(shape)
    listed = ListedFeatures(tuple(tuple(mask.flatten().nonzero().flatten().tolist()) for mask in masks.values()))
    space = bhc.FeatureSubsets(shape, listed if known else None)
    model = bench.train("model", space)
    if not known:
        drawn = space.sample(RANDOM, bench.dataset.num_classes, rng=torch.Generator().manual_seed(1)).inputs
        assert drawn is not None
        masks |= {f"drawn {number}": mask.reshape(shape) for number, mask in enumerate(drawn)}
    return {"known": known, "masks": [_row(bench, model, name, mask) for name, mask in masks.items()]}


def _row(bench: Bench, model: bhc.Compressor, name: str, mask: Tensor) -> dict[str, Any]:
    chosen = COUNTED[bench.config.asked.get("counted", "weights")](bench, model, mask)
    zeroed = Split(bench.dataset.test.inputs * mask, bench.dataset.test.labels)
    return {
        "mask": name,
        "features": int(mask.sum()),
        **chosen,
        "zero_filled_error": error_of(model.network.base_model, zeroed),
    }


def _by_weights(bench: Bench, model: bhc.Compressor, mask: Tensor) -> dict[str, float]:
    """Small enough by how many weights are left, as 32-bit numbers."""
    asked = {"features": mask}
    points = bench.curve(model, [(asked, bench.dataset.validation)], thresholds_of(model))
    chosen = most_accurate(points, ratio=bench.config.asked["ratio"])
    (trial,) = bench.trials(model, asked, bench.dataset.test, [chosen.threshold])
    return {
        "threshold": chosen.threshold,
        "ratio": trial.ratio,
        "validation_error": chosen.error,
        "error": 100 * trial.wrong / trial.images,
    }


def _by_bytes(bench: Bench, model: bhc.Compressor, mask: Tensor) -> dict[str, float]:
    """Small enough by the bytes of the packed file, whose weights have the bit widths of the posterior."""
    least, found = bench.config.asked["ratio"], []
    for threshold in thresholds_of(model):
        small = model.compress(features=mask, threshold=threshold)
        found.append((error_of(small.module, bench.dataset.validation), threshold, small))
    enough = [one for one in found if one[2].report.file_ratio >= least]
    smallest = max(found, key=lambda one: one[2].report.file_ratio)
    error, threshold, small = min(enough, key=lambda one: one[0]) if enough else smallest
    return {
        "threshold": threshold,
        "ratio": small.report.file_ratio,
        "validation_error": error,
        "error": error_of(small.module, bench.dataset.test),
    }


COUNTED = {"weights": _by_weights, "bytes": _by_bytes}
