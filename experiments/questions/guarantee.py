"""How often a promised error is exceeded, over a hundred random contexts."""

from typing import Any

import torch

import bhc
from bhc.contexts import all_subsets
from bhc.data import Split
from bhc.emission import upper_bound
from bhc.results import answers
from questions.bench import Bench

CONTEXTS = 100


def answer(bench: Bench) -> dict[str, Any]:
    """Each context's network with its promise, and its errors on test images."""
    asked, dataset = bench.config.asked, bench.dataset
    sizes = tuple(asked["sizes"])
    space = bhc.ClassSubsets(dataset.num_classes, bhc.RandomSubsets(sizes))
    model = bench.train("model", space, calibration=asked["calibration"])
    subsets = list(all_subsets(dataset.num_classes, sizes))
    order = torch.randperm(len(subsets), generator=torch.Generator().manual_seed(0))[:CONTEXTS]
    rows = [_row(model, dataset.test, subsets[place], asked) for place in order.tolist()]
    kept = [row for row in rows if "refused" not in row]
    return {
        "contexts": rows,
        "refused": len(rows) - len(kept),
        "exceeded": sum(row["error"] > row["max_error"] for row in kept),
        "surely_exceeded": sum(row["lower_bound"] > row["max_error"] for row in kept),
    }


def _row(model: bhc.Compressor, test: Split, subset: tuple[int, ...], asked: dict[str, Any]) -> dict[str, Any]:
    limit, confidence = asked["max_error"], asked["confidence"]
    row = {"classes": list(subset), "max_error": limit}
    try:
        small = model.compress(classes=list(subset), max_error=limit, confidence=confidence)
    except bhc.BhcError as error:
        return row | {"refused": error.problem}
    examples = test.restricted_to(subset)
    wrong = int((answers(small.network, examples.inputs) != examples.labels).sum())
    report = small.report
    return row | {
        "ratio": report.pruning_ratio,
        "file_bytes": report.file_bytes,
        "images": len(examples),
        "wrong": wrong,
        "error": 100 * wrong / len(examples),
        "lower_bound": 100 * (1 - upper_bound(len(examples) - wrong, len(examples), confidence=0.95)),
    }
