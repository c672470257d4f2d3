"""Error and size of the networks a model would emit, on labelled data it has not trained on."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bhc.contexts import Context, ContextBatch
from bhc.data import Split
from bhc.hypernet import ConditionalNetwork
from bhc.posterior import LayerMask, find_masks
from bhc.training.objective import restrict

CHUNK = 4096


@dataclass(frozen=True)
class Probe:
    """A context to try, and the classes whose examples it is tried on."""

    context: Context
    classes: tuple[int, ...]


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
            mask.keep_in.sum(1) * mask.keep_out.sum(1) * layer.kernel_area
            for layer, mask in zip(network.layers, masks, strict=True)
        ]
    ).sum(0)


@torch.no_grad()
def pruning_ratios(network: ConditionalNetwork, batch: ContextBatch, threshold: float) -> Tensor:  # (K,)
    """Weights of the original over weights kept, for each context of a batch."""
    dropouts = network.hypernet.dropouts(network.space.encode(batch))
    thresholds = torch.full((len(batch), 1), threshold, device=network.device)
    masks = find_masks(network.layers, dropouts, thresholds, batch.outputs)
    return network.num_weights / count_weights(network, masks)


@torch.no_grad()
def trade_off(
    network: ConditionalNetwork, probes: Sequence[Probe], data: Split, thresholds: Sequence[float]
) -> list[Point]:
    """Error against ratio as the threshold moves."""
    points = []
    for threshold in thresholds:
        ratios, wrong, seen = [], [], []
        for probe in probes:
            batch = ContextBatch.of([probe.context], network.num_classes).to(network.device)
            examples = data.restricted_to(probe.classes)
            wrong.append(count_errors(network, batch, examples, threshold))
            seen.append(len(examples))
            ratios.append(float(pruning_ratios(network, batch, threshold)))
        points.append(
            Point(
                threshold=float(threshold),
                ratio_mean=sum(ratios) / len(ratios),
                ratio_harmonic=len(ratios) / sum(1 / ratio for ratio in ratios),
                ratio_min=min(ratios),
                error=100 * sum(wrong) / sum(seen),
                error_max=100 * max(w / n for w, n in zip(wrong, seen, strict=True)),
            )
        )
    return points


@torch.no_grad()
def count_errors(network: ConditionalNetwork, batch: ContextBatch, data: Split, threshold: float) -> int:
    """Wrong answers of one context's masked network."""
    thresholds = torch.full((1, 1), threshold, device=network.device)
    wrong = 0
    for x, labels in zip(data.images.split(CHUNK), data.labels.split(CHUNK), strict=True):
        logits = network.masked(x.to(network.device), batch, threshold=thresholds)
        answers = restrict(logits, batch.outputs).argmax(1)
        wrong += int((answers != labels.to(network.device)).sum())
    return wrong


@torch.no_grad()
def base_error(network: ConditionalNetwork, probes: Sequence[Probe], data: Split) -> float:
    """Error of the pretrained network on the same probes, its outputs restricted alike, percent."""
    wrong = seen = 0
    for probe in probes:
        batch = ContextBatch.of([probe.context], network.num_classes).to(network.device)
        examples = data.restricted_to(probe.classes)
        for x, labels in zip(examples.images.split(CHUNK), examples.labels.split(CHUNK), strict=True):
            logits = restrict(network.base_model(x.to(network.device)), batch.outputs)
            wrong += int((logits.argmax(1) != labels.to(network.device)).sum())
            seen += len(labels)
    return 100 * wrong / seen
