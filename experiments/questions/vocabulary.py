"""Networks for a part of the vocabulary: how much smaller their embedding is, and what is lost on texts within it."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

import bhc
from bhc.contexts import WordsOfTexts
from bhc.data import UNKNOWN, DataSet, Split
from bhc.formats import packed_parts
from bhc.pretraining import error_of
from bhc.results import answers
from questions.bench import Bench, thresholds_of

CHOOSING, JUDGED = 10, 20  # contexts that the threshold is chosen on, and others that are measured


def answer(bench: Bench) -> dict[str, Any]:
    """The words of some training questions are a context; one threshold for all, chosen on validation data."""
    dataset, asked = bench.dataset, bench.config.asked
    assert dataset.vocabulary is not None
    count = len(dataset.vocabulary)
    space = bhc.VocabularySubsets((count,), WordsOfTexts.among(dataset.train.inputs, count))
    model = bench.train("model", space)
    contexts = [words_of_questions(dataset, asked["part"], seed) for seed in range(CHOOSING + JUDGED)]
    threshold, error = _choose(bench, model, contexts[:CHOOSING])
    return {
        "words": count,
        "threshold": threshold,
        "validation_error": error,
        "full_error": error_of(model.network.base_model, dataset.test),
        "contexts": [_row(bench, model, mask, threshold) for mask in contexts[CHOOSING:]],
    }


def words_of_questions(dataset: DataSet, part: float, seed: int) -> Tensor:  # (words,) bool
    """The words of training questions in a random order, until they are such a part of all."""
    assert dataset.vocabulary is not None
    mask = torch.zeros(len(dataset.vocabulary), dtype=torch.bool)
    mask[: UNKNOWN + 1] = True
    for place in torch.randperm(len(dataset.train), generator=torch.Generator().manual_seed(seed)).tolist():
        grown = mask.clone()
        grown[dataset.train.inputs[place].long()] = True
        if int(grown.sum()) > part * len(mask):
            return mask
        mask = grown
    return mask


def within(split: Split, mask: Tensor) -> Split:
    """The texts all of whose words are there; words that the vocabulary has not are unknown before and after."""
    return split.at(mask[split.inputs.long()].all(1))


def _choose(bench: Bench, model: bhc.Compressor, contexts: Iterable[Tensor]) -> tuple[float, float]:
    """The threshold with the smallest error among those whose embeddings are small enough, harmonic over contexts."""
    thresholds, cases = thresholds_of(model), [({"features": mask}, mask) for mask in contexts]
    validation = bench.dataset.validation
    points = bench.curve(model, [(asked, within(validation, mask)) for asked, mask in cases], thresholds)
    shares = [[_embedding_share(model, mask, point.threshold) for _, mask in cases] for point in points]
    least = bench.config.asked["embedding_ratio"]
    enough = [point for point, own in zip(points, shares, strict=True) if sum(own) / len(own) <= 1 / least]
    best = min(enough, key=lambda point: point.error) if enough else points[0]
    return best.threshold, best.error


def _embedding_share(model: bhc.Compressor, mask: Tensor, threshold: float) -> float:
    """Numbers of the embedding that stay over those of the full one."""
    small = model.compress(features=mask, threshold=threshold, quantisation=bhc.Float32())
    return small.network.layers[0].num_weights / model.network.layers[0].num_weights


def _row(bench: Bench, model: bhc.Compressor, mask: Tensor, threshold: float) -> dict[str, Any]:
    examples = within(bench.dataset.test, mask)
    (trial,) = bench.trials(model, {"features": mask}, examples, [threshold])
    small = model.compress(features=mask, threshold=threshold)
    full = model.network.base_model(examples.inputs).argmax(1)
    before = 4 * model.network.layers[0].num_weights
    stored = [part.bytes for part in packed_parts(small.network) if part.layer == small.network.layers[0].name]
    return {
        "words": int(mask.sum()),
        "images": len(examples),
        "ratio": trial.ratio,
        "embedding_bytes_before": before,
        "embedding_bytes": 4 * small.network.layers[0].num_weights,
        "embedding_bytes_in_file": sum(stored),
        "rows": small.network.layers[0].width,
        "wrong": trial.wrong,
        "file_wrong": int((answers(small.network, examples.inputs) != examples.labels).sum()),
        "full_wrong": int((full != examples.labels).sum()),
        "file_bytes": small.report.file_bytes,
    }
