"""Whether a network that was told how often classes appear errs less, at equal bytes, when they do."""

from typing import Any

import bhc
from bhc.contexts import all_subsets
from bhc.results import answers
from questions.bench import Bench


def answer(bench: Bench) -> dict[str, Any]:
    """Every ordered pair: the frequent class nine times as often, told and not told."""
    asked, classes = bench.config.asked, bench.dataset.num_classes
    sampler = bhc.RandomSubsets(tuple(asked["sizes"]))
    model = bench.train("model", bhc.ClassSubsets(classes, sampler, concentration=asked["concentration"]))
    pairs = [pair[::way] for pair in all_subsets(classes, (2,)) for way in (1, -1)]
    return {"pairs": [_row(bench, model, (pair[0], pair[1])) for pair in pairs]}


def _row(bench: Bench, model: bhc.Compressor, pair: tuple[int, int]) -> dict[str, Any]:
    often, limit = bench.config.asked["often"], bench.config.asked["max_bytes"]
    rates = {pair[0]: often, pair[1]: 1 - often}
    told = model.compress(classes=rates, max_bytes=limit)
    untold = model.compress(classes=list(pair), max_bytes=limit)
    return {
        "frequent": pair[0],
        "rare": pair[1],
        "told_bytes": told.report.file_bytes,
        "untold_bytes": untold.report.file_bytes,
        "told_error": _expected_error(bench, told, rates),
        "untold_error": _expected_error(bench, untold, rates),
    }


def _expected_error(bench: Bench, small: bhc.Compressed, rates: dict[int, float]) -> float:
    """Percent on test images, each class counted as often as it appears."""
    total = 0.0
    for label, rate in rates.items():
        examples = bench.dataset.test.restricted_to((label,))
        total += rate * float((answers(small.network, examples.inputs) != label).float().mean())
    return 100 * total
