"""A speaker left out of all training: a network from a few unlabelled recordings, against one for everybody."""

from dataclasses import replace
from typing import Any

import torch

import bhc
from bhc.contexts import ContextBatch, Spectrum
from bhc.data import DataSet, Split, with_voices
from bhc.training.evaluation import threshold_for
from questions.bench import Bench, most_accurate, thresholds_of

DRAWS = 5  # samples of the new speaker's recordings
STEP = 1e-3  # how finely thresholds of a size are found


def answer(bench: Bench) -> dict[str, Any]:
    """Each speaker in turn; thresholds from those that are known."""
    return {"speakers": [_speaker(bench, name) for name in bench.config.asked["speakers"]]}


def space_of(dataset: DataSet) -> bhc.InputDomains:
    """Domains of one voice, told by how it sounds."""
    return bhc.InputDomains(
        dataset.image_shape,
        bhc.RandomSubsets((1,)),
        dataset.full_scale,
        summary=Spectrum(),
        num_sources=len(dataset.source_names),
    )


def _speaker(bench: Bench, name: str) -> dict[str, Any]:
    dataset, new = bench.dataset.without_source(name)
    known, voices = replace(bench, dataset=dataset), with_voices(dataset, bench.config.asked["speeds"])
    told = known.train(f"{name}-told", space_of(voices), taught=voices)
    learn = bhc.Learn(**bench.config.learn)
    size = {"contexts": 1, "examples": learn.contexts * learn.examples}
    recipe = bench.config.recipe(**size)
    untold = known.train(f"{name}-untold", bhc.SingleContext(), recipe=recipe, taught=voices)
    cases = [
        ({"domain": dataset.train.from_sources([source]).inputs}, dataset.validation.from_sources([source]))
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


def _no_smaller(untold: bhc.Compressor, ratio: float) -> float:
    """The lowest threshold, to a thousandth, at which the network for everybody is no smaller."""
    context = ContextBatch.of([untold.space.resolve({})], untold.network.num_classes)
    return threshold_for(untold.network, context, ratio) + STEP


def _draw(
    bench: Bench, told: bhc.Compressor, untold: bhc.Compressor, new: Split, threshold: float, seed: int
) -> dict[str, Any]:
    """Some recordings are shown without their labels, the others are tried."""
    count = bench.config.asked["recordings"]
    order = torch.randperm(len(new), generator=torch.Generator().manual_seed(seed))
    sample, others = new.at(order[:count]), new.at(order[count:])
    (own,) = bench.trials(told, {"domain": sample.inputs}, others, [threshold])
    beside, full = bench.trials(untold, {}, others, [_no_smaller(untold, own.ratio), float("inf")])
    return {
        "images": len(others),
        "ratio": own.ratio,
        "wrong": own.wrong,
        "untold_ratio": beside.ratio,
        "untold_wrong": beside.wrong,
        "uncut_wrong": full.wrong,
        "distance": told.model.domains.distance(told.space.resolve({"domain": sample.inputs}), told.space)
        if told.model.domains is not None
        else None,
    }
