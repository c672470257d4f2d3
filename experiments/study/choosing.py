"""Choosing a threshold and the steps of the weights, on validation data and nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

import bhc
from bhc.contexts import Context, ContextBatch
from bhc.emission import FINER_SCALES, CandidateFactory, Cut, Cutter, Slimmer, assemble, scales_for
from bhc.posterior import Family
from bhc.results import answers, exact_convolutions, logits
from bhc.training import Point, ThresholdTrial, largest_within, pooled, try_thresholds
from study.config import Choice
from study.methods import Case, Sample, request
from study.training import Member

CURVE_POINTS = 49
UNITS = (-8.0, 4.0)  # thresholds tried where units go
CONTEXTS_ROUNDED = 40  # contexts that the steps are tried on; only random batches are more
SINGLE_WEIGHTS = (-3.0, 9.0)  # and where single weights do

Asked = tuple[Member, Case]


@dataclass(frozen=True)
class Chosen:
    """What was settled for one group of contexts."""

    threshold: float
    scale: float
    validation_error: float
    validation_error_bits: float


def thresholds_of(asked: Sequence[Asked]) -> list[float]:
    """Where a curve is drawn: a log dropout rate means the same everywhere, so steps are equal and fine.

    Where training was told which ratios are wanted, the thresholds of those.
    """
    models = [member.model.model for member, _ in asked]
    told = any(stage.get("ratios") for model in models for stage in model.training["recipe"])
    ranges = [model.thresholds for model in models if told and model.thresholds]
    usual = SINGLE_WEIGHTS if _family(asked).cuts_weights else UNITS
    low, high = min((low for low, _ in ranges), default=usual[0]), max((high for _, high in ranges), default=usual[1])
    return np.linspace(low, high, CURVE_POINTS).tolist()


def curve(
    asked: Sequence[Asked], thresholds: Sequence[float], *, on: str, device: str | torch.device = "cpu"
) -> list[Point]:
    """Error against ratio over all contexts of a group, ``on`` validation or test images."""
    place = torch.device(device)
    return pooled(thresholds, [_trials(member, getattr(case, on), thresholds, place) for member, case in asked])


def _trials(member: Member, sample: Sample, thresholds: Sequence[float], device: torch.device) -> list[ThresholdTrial]:
    """One context at each threshold: what is emitted there, or on a GPU, to which every new shape is a burden, the
    masked network that is equal to it."""
    if device.type == "cpu":
        return _emitted_trials(member, sample, thresholds, device)
    network = member.model.network.to(device)
    try:
        with exact_convolutions():
            return try_thresholds(network, _context(member, sample), sample.examples, thresholds)
    finally:
        network.to("cpu")


@torch.no_grad()
def _emitted_trials(
    member: Member, sample: Sample, thresholds: Sequence[float], device: torch.device
) -> list[ThresholdTrial]:
    """The same cut runs once."""
    network = member.model.network
    images, labels = sample.examples.inputs, sample.examples.labels
    cutter = Cutter(network, _context(member, sample))
    slimmer = Slimmer(cutter.scales)
    known: dict[tuple[int, ...], ThresholdTrial] = {}
    trials = []
    for threshold in thresholds:
        cut = cutter.cut(threshold)
        signature = (*cut.widths, *(int(kept.sum()) for kept in _kept_weights(cut)))
        if signature not in known:  # a falling threshold only ever removes, so the counts tell
            small = assemble(network, cut, slimmer.layers(cut))
            wrong = torch.tensor(cut.classes)[logits(small, images, device=device).argmax(1)] != labels
            known[signature] = ThresholdTrial(network.num_weights / cut.num_weights, int(wrong.sum()), len(labels))
        trials.append(known[signature])
    return trials


def _kept_weights(cut: Cut) -> list[torch.Tensor]:
    return [layer.kept_weights for layer in cut.layers if layer.kept_weights is not None]


def choose(
    asked: Sequence[Asked], points: Sequence[Point], choice: Choice, group: int, *, device: str | torch.device = "cpu"
) -> Chosen:
    """Apply the study's rule to one group."""
    most, most_rounded = choice.limits(group, min(point.error for point in points))
    if choice.threshold is not None:
        threshold = choice.threshold
        error = min(points, key=lambda point: abs(point.threshold - threshold)).error
    else:
        assert most is not None
        best = largest_within(points, most, ratio="ratio_mean")  # as the paper's tables have it
        threshold, error = best.threshold, best.error
    by_scale: dict[float, float] = {}
    for scales in (scales_for(_family(asked)), FINER_SCALES):
        new = [scale for scale in scales if scale not in by_scale]
        by_scale |= rounded_errors(asked, threshold, new, device=torch.device(device))
        fitting = [scale for scale, wrong in by_scale.items() if wrong <= most_rounded]
        if fitting:
            break
    scale = max(fitting) if fitting else min(by_scale, key=lambda scale: by_scale[scale])
    return Chosen(threshold, scale, error, by_scale[scale])


def rounded_errors(
    asked: Sequence[Asked], threshold: float, scales: Sequence[float], *, device: torch.device
) -> dict[float, float]:
    """Validation error with weights in steps of each scale, pooled, percent."""
    wrong, images = dict.fromkeys(scales, 0), 0
    for member, case in asked[:CONTEXTS_ROUNDED]:
        examples = case.validation.examples
        cutter = Cutter(member.model.network, _context(member, case.validation))
        floats = CandidateFactory(member.model.model, cutter).at(threshold)
        for scale in scales:
            rounded = floats.rounded(scale).network
            wrong[scale] += int((answers(rounded, examples.inputs, device=device) != examples.labels).sum())
        images += len(examples)
    return {scale: 100 * misses / images for scale, misses in wrong.items()}


def emit(member: Member, sample: Sample, threshold: float, precision: bhc.VarianceBits | bhc.Float32) -> bhc.Compressed:
    """The network for a sample's context."""
    return member.model.compress(threshold=threshold, quantisation=precision, **request(member.model.space, sample))


def _family(asked: Sequence[Asked]) -> Family:
    return asked[0][0].model.network.hypernet.family


def _context(member: Member, sample: Sample) -> Context:
    return member.model.space.resolve(request(member.model.space, sample))


@torch.no_grad()
def log_dropout(member: Member, case: Case) -> list[tuple[str, torch.Tensor]]:
    """Log dropout rates of every group of more than one scale."""
    network = member.model.network
    batch = ContextBatch.of([_context(member, case.validation)], network.num_classes)
    return [
        (f"{layer.name} {side}", rates[0])
        for layer, dropout in zip(network.layers, network.dropouts(batch), strict=True)
        for side, rates in (("inputs", dropout.in_log_dropout), ("outputs", dropout.out_log_dropout))
        if rates is not None and rates.shape[1] > 1
    ]
