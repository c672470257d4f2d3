"""Error and size of the networks a model would emit, on labelled data it has not trained on."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bhc.contexts import Context, ContextBatch
from bhc.data import Split
from bhc.hypernet import ConditionalNetwork
from bhc.posterior import LayerDropout, LayerMask
from bhc.training.objective import restrict

CHUNK = 4096


@dataclass(frozen=True)
class Probe:
    """A context to try, and the classes, and sources where they matter, whose examples it is tried on."""

    context: Context
    classes: tuple[int, ...]
    sources: tuple[int, ...] | None = None

    def examples(self, data: Split) -> Split:
        """Those that it is tried on."""
        own = data.restricted_to(self.classes)
        return own if self.sources is None else own.from_sources(self.sources)


@dataclass(frozen=True)
class Point:
    """One threshold of a trade-off curve, over all probes."""

    threshold: float
    ratio_mean: float
    ratio_harmonic: float
    ratio_min: float
    error: float  # percent, pooled over pairs of a probe and an example
    error_max: float  # percent, the worst probe

    def to_dict(self) -> dict[str, float]:
        return dict(self.__dict__)


def count_weights(network: ConditionalNetwork, masks: Sequence[LayerMask]) -> Tensor:  # (K,)
    """Dense weights that stay: kept inputs x kept outputs x kernel, summed over the layers."""
    return torch.stack(
        [
            layer.kept_weights(mask.keep_in.sum(1), mask.keep_out.sum(1))
            for layer, mask in zip(network.layers, masks, strict=True)
        ]
    ).sum(0)


@torch.no_grad()
def pruning_ratios(network: ConditionalNetwork, batch: ContextBatch, threshold: float) -> Tensor:  # (K,)
    """Weights of the original over weights kept, for each context of a batch."""
    return _ratios(network, network.dropouts(batch), batch, threshold)


def _ratios(
    network: ConditionalNetwork, dropouts: Sequence[LayerDropout], batch: ContextBatch, threshold: float
) -> Tensor:  # (K,)
    thresholds = torch.full((len(batch), 1), threshold, device=network.device)
    fates = network.find_masks(dropouts, thresholds, batch.outputs, batch.inputs)
    return network.num_weights / count_weights(network, fates.layers)


def harmonic(values: Sequence[float]) -> float:
    """Of ratios: that of all contexts together, total before over total after."""
    return len(values) / sum(1 / value for value in values)


@torch.no_grad()
def threshold_for(network: ConditionalNetwork, batch: ContextBatch, ratio: float) -> float:
    """The largest threshold, to a thousandth, that makes the contexts of a batch this many times smaller (harmonic).

    A lower threshold removes more; where none is low enough, the lowest that changes anything.
    """
    dropouts = network.dropouts(batch)
    rates = network.find_masks.noisiest_links(dropouts, batch.outputs)
    finite = rates[rates.isfinite()]
    low, high = (float(finite.min()), float(finite.max()) + 1) if len(finite) else (0.0, 0.0)
    while high - low > 1e-3:
        middle = (low + high) / 2
        if harmonic(_ratios(network, dropouts, batch, middle).tolist()) >= ratio:
            low = middle
        else:
            high = middle
    return low


def largest_ratio(network: ConditionalNetwork, batch: ContextBatch) -> float:
    """How many times smaller the contexts of a batch can become (harmonic): one unit of everything is left."""
    return harmonic(pruning_ratios(network, batch, torch.finfo(torch.float32).min).tolist())


@torch.no_grad()
def trade_off(
    network: ConditionalNetwork, probes: Sequence[Probe], data: Split, thresholds: Sequence[float]
) -> list[Point]:
    """Error against ratio as the threshold moves."""
    examples = [probe.examples(data) for probe in probes]
    trials = [
        try_thresholds(network, probe.context, own, thresholds) for probe, own in zip(probes, examples, strict=True)
    ]
    return pooled(thresholds, trials)


@dataclass(frozen=True)
class ThresholdTrial:
    """One context at one threshold."""

    ratio: float
    wrong: int
    images: int


def pooled(thresholds: Sequence[float], trials: Sequence[Sequence[ThresholdTrial]]) -> list[Point]:
    """A curve from every context's trials at the same thresholds."""
    return [_point(threshold, at) for threshold, at in zip(thresholds, zip(*trials, strict=True), strict=True)]


def _point(threshold: float, trials: Sequence[ThresholdTrial]) -> Point:
    ratios = [trial.ratio for trial in trials]
    return Point(
        threshold=float(threshold),
        ratio_mean=sum(ratios) / len(ratios),
        ratio_harmonic=harmonic(ratios),
        ratio_min=min(ratios),
        error=100 * sum(trial.wrong for trial in trials) / sum(trial.images for trial in trials),
        error_max=100 * max(trial.wrong / trial.images for trial in trials),
    )


def largest_within(points: Sequence[Point], error: float, *, ratio: str = "ratio_harmonic") -> Point:
    """The point with the largest ratio among those within an error; failing that, the most accurate."""
    fitting = [point for point in points if point.error <= error]
    if fitting:
        return max(fitting, key=lambda point: getattr(point, ratio))
    return min(points, key=lambda point: point.error)


@torch.no_grad()
def try_thresholds(
    network: ConditionalNetwork, context: Context, examples: Split, thresholds: Sequence[float]
) -> list[ThresholdTrial]:
    """Ratio and wrong answers of one context at each threshold; what does not depend on it is generated once."""
    device = network.device
    batch = ContextBatch.of([context], network.num_classes).to(device)
    images = network.space.as_met(examples.images.to(device), batch.inputs)
    labels = examples.labels.to(device)
    dropouts, means = network.dropouts(batch), network.hypernet.means(network.space.encode(batch))
    trials = []
    for threshold in thresholds:
        limit = torch.full((1, 1), threshold, device=device)
        masks = network.find_masks(dropouts, limit, batch.outputs, batch.inputs).layers
        answers = [
            restrict(network.bayesian.masked(x, means, masks), batch.outputs).argmax(1) for x in images.split(CHUNK)
        ]
        wrong = int((torch.cat(answers) != labels).sum())
        ratio = float(network.num_weights / count_weights(network, masks))
        trials.append(ThresholdTrial(ratio, wrong, len(labels)))
    return trials


@torch.no_grad()
def base_error(network: ConditionalNetwork, probes: Sequence[Probe], data: Split) -> float:
    """Error of the pretrained network on the same probes, its outputs restricted alike, percent.

    It is given zeros where features are missing, and the unknown word for words.
    """
    wrong = seen = 0
    for probe in probes:
        batch = ContextBatch.of([probe.context], network.num_classes).to(network.device)
        examples = probe.examples(data)
        for x, labels in zip(examples.images.split(CHUNK), examples.labels.split(CHUNK), strict=True):
            images = network.space.as_met(x, probe.context.inputs)
            logits = restrict(network.base_model(images.to(network.device)), batch.outputs)
            wrong += int((logits.argmax(1) != labels.to(network.device)).sum())
            seen += len(labels)
    return 100 * wrong / seen
