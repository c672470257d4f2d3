"""A speaker left out of all training: a network from a few unlabelled recordings, against one for everybody."""

from dataclasses import replace
from typing import Any

import torch

import bhc
from bhc.contexts import Spectrum
from bhc.data import DataSet, Split
from questions.bench import Bench, most_accurate, thresholds_of

DRAWS = 5  # samples of the new speaker's recordings
FINE = 200  # thresholds among which one of equal size is found


def answer(bench: Bench) -> dict[str, Any]:
    """Each speaker in turn; thresholds from those that are known."""
    return {"speakers": [_speaker(bench, name) for name in bench.config.asked["speakers"]]}


def space_of(dataset: DataSet) -> bhc.InputDomains:
    """Domains of one speaker or two, told by how a voice sounds."""
    return bhc.InputDomains(
        dataset.image_shape,
        bhc.RandomSubsets((1, 2)),
        dataset.full_scale,
        summary=Spectrum(),
        num_sources=len(dataset.source_names),
    )


def _speaker(bench: Bench, name: str) -> dict[str, Any]:
    dataset, new = bench.dataset.without_source(name)
    known = replace(bench, dataset=dataset)
    told = known.train(f"{name}-told", space_of(dataset))
    learn = bhc.Learn(**bench.config.learn)
    size = {"contexts": 1, "examples": learn.contexts * learn.examples}
    untold = known.train(f"{name}-untold", bhc.SingleContext(), recipe=bench.config.recipe(**size))
    cases = [
        ({"domain": dataset.train.from_sources([source]).images}, dataset.validation.from_sources([source]))
        for source in range(len(dataset.source_names))
    ]
    points = known.curve(told, cases, thresholds_of(told))
    chosen = most_accurate(points, ratio=bench.config.asked["ratio"])
    return {
        "speaker": name,
        "threshold": chosen.threshold,
        "validation_error": chosen.error,
        "draws": [_draw(known, told, untold, new, chosen.threshold, seed) for seed in range(DRAWS)],
    }


def _draw(
    bench: Bench, told: bhc.Compressor, untold: bhc.Compressor, new: Split, threshold: float, seed: int
) -> dict[str, Any]:
    """Some recordings are shown without their labels, the others are tried."""
    count = bench.config.asked["recordings"]
    order = torch.randperm(len(new), generator=torch.Generator().manual_seed(seed))
    sample, others = new.at(order[:count]), new.at(order[count:])
    (own,) = bench.trials(told, {"domain": sample.images}, others, [threshold])
    low, high = thresholds_of(untold)[0], thresholds_of(untold)[-1]
    trials = bench.trials(untold, {}, others, torch.linspace(low, high, FINE).tolist())
    # The smallest for everybody that is no smaller than the speaker's own; failing that, the largest.
    fair = [trial for trial in trials if trial.ratio <= own.ratio]
    beside = max(fair, key=lambda trial: trial.ratio) if fair else min(trials, key=lambda trial: trial.ratio)
    full = bench.trials(untold, {}, others, [float("inf")])[0]
    return {
        "images": len(others),
        "ratio": own.ratio,
        "wrong": own.wrong,
        "untold_ratio": beside.ratio,
        "untold_wrong": beside.wrong,
        "uncut_wrong": full.wrong,
        "distance": told.model.domains.distance(told.space.resolve({"domain": sample.images}), told.space)
        if told.model.domains is not None
        else None,
    }
