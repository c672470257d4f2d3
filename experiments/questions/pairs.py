"""How small networks for two classes become, against the full network on the same pairs."""

from typing import Any

import bhc
from bhc.contexts import all_subsets
from bhc.pretraining import error_of
from bhc.results import answers
from questions.bench import Bench, most_accurate, thresholds_of

Pair = tuple[int, ...]


def answer(bench: Bench) -> dict[str, Any]:
    """Every pair at one threshold, the most accurate that is small enough on validation data."""
    dataset, asked = bench.dataset, bench.config.asked
    consecutive = bool(asked["consecutive"])
    sampler = bhc.ConsecutivePairs() if consecutive else bhc.RandomSubsets((2,))
    model = bench.train("model", bhc.ClassSubsets(dataset.num_classes, sampler))
    pairs = sampler.subsets(dataset.num_classes) if consecutive else all_subsets(dataset.num_classes, (2,))
    own = list(pairs)
    cases = [({"classes": list(pair)}, dataset.validation.restricted_to(pair)) for pair in own]
    chosen = most_accurate(bench.curve(model, cases, thresholds_of(model)), ratio=asked["ratio"])
    return {
        "threshold": chosen.threshold,
        "validation_error": chosen.error,
        "full_error": error_of(model.network.base_model, dataset.test),
        "pairs": [_row(bench, model, pair, chosen.threshold) for pair in own],
    }


def _row(bench: Bench, model: bhc.Compressor, pair: Pair, threshold: float) -> dict[str, Any]:
    examples = bench.dataset.test.restricted_to(pair)
    (trial,) = bench.trials(model, {"classes": list(pair)}, examples, [threshold])
    small = model.compress(classes=list(pair), threshold=threshold)
    full = model.network.base_model(examples.inputs)[:, list(pair)].argmax(1)
    report = small.report
    return {
        "classes": list(pair),
        "images": len(examples),
        "ratio": trial.ratio,
        "wrong": trial.wrong,
        "full_wrong": sum(pair[place] != label for place, label in zip(full, examples.labels.tolist(), strict=True)),
        "architecture": list(report.architecture),
        "file_bytes": report.file_bytes,
        "file_wrong": int((answers(small.network, examples.inputs) != examples.labels).sum()),
        "file_ratio": report.file_ratio,
    }
