"""How good a network for a context is, on the run's validation sample."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from bhc.contexts import Context
from bhc.emission.calibration import best_temperature, expected_calibration_error
from bhc.formats import unrolled
from bhc.graph import Graph
from bhc.training import TrainedModel

HARD_IMAGES = 128
CHUNK = 500


@dataclass(frozen=True)
class Verdict:
    """Answers of one network. Where classes appear unequally often, an image counts as much as its class appears."""

    wrong: float  # a count, unless images count for more or less than one
    loss: float  # mean cross-entropy at temperature 1: finer than a count of errors
    logits: Tensor


class Judge:
    """The labelled examples of one context."""

    def __init__(
        self,
        model: TrainedModel,
        images: Tensor,
        labels: Tensor,  # places in ``classes``
        classes: tuple[int, ...],
        weights: Tensor | None = None,  # what an image of each class counts; None: each counts one
        *,
        as_stored: bool = True,  # whether the images are those of the run, nothing in them missing
    ) -> None:
        self.model, self.classes = model, classes
        self.images, self.labels, self.weights = images, labels, weights
        self.as_stored = as_stored

    @classmethod
    def of(cls, model: TrainedModel, context: Context) -> "Judge | None":
        """None where there is nothing to judge by: no sample, or a domain, of which the labelled images are not."""
        if model.validation is None or context.domain is not None:
            return None
        classes = context.classes or tuple(range(model.network.num_classes))
        if not set(classes) <= set(model.validation.labels.unique().tolist()):
            return None  # of some class there is no example: the others would say too little
        examples = model.validation.restricted_to(classes)
        labels = torch.searchsorted(torch.tensor(classes), examples.labels)
        # With zeros, or unknown words, for what is missing: all that the pretrained network would be given.
        images = model.network.space.as_met(examples.images, context.inputs)
        weights = _weights(labels, context.frequencies)
        return cls(model, images, labels, classes, weights, as_stored=context.inputs is None)

    @property
    def num_images(self) -> int:
        return len(self.labels)

    def judge(self, graph: Graph) -> Verdict:
        """Run the network on all examples."""
        logits = logits_of(graph, self.images)
        weight = None if self.weights is None else self.weights.to(logits.dtype)
        loss = nn.functional.cross_entropy(logits, self.labels, weight=weight)
        return Verdict(self._wrong(logits), float(loss), logits)

    def _wrong(self, logits: Tensor) -> float:
        """Wrong answers, each with the weight of its class; the sum is rounded as files store it."""
        missed = logits.argmax(1) != self.labels
        if self.weights is None:
            return int(missed.sum())
        # Class by class in one order: no part of the images can so come to more than all of them.
        counts = self.labels[missed].bincount(minlength=len(self.classes))
        return float((counts * self.weights).sum().float())

    @cached_property
    def base_logits(self) -> Tensor | None:
        """The pretrained network's, restricted to the classes; None if it was not trained."""
        answers, validation = self.model.base_logits, self.model.validation
        if answers is None or validation is None:
            return None
        if not self.as_stored:
            return logits_of(self.model.network.base_model, self.images)[:, list(self.classes)]
        return answers[torch.isin(validation.labels, torch.tensor(self.classes))][:, list(self.classes)]

    @property
    def wrong_before(self) -> float | None:
        """Wrong answers of the pretrained network."""
        return None if self.base_logits is None else self._wrong(self.base_logits)

    @cached_property
    def hard(self) -> "Judge":
        """The examples that the pretrained network finds hardest: where rounding does harm, it shows here first."""
        if self.base_logits is None or self.num_images <= HARD_IMAGES:
            return self
        own = self.labels[:, None]
        margin = self.base_logits.gather(1, own)[:, 0] - self.base_logits.scatter(1, own, -torch.inf).amax(1)
        hardest = margin.argsort(stable=True)[:HARD_IMAGES]
        return Judge(
            self.model, self.images[hardest], self.labels[hardest], self.classes, self.weights, as_stored=self.as_stored
        )

    def calibrate(self, logits: Tensor) -> float:
        """The temperature with the lowest cross-entropy."""
        return best_temperature(logits, self.labels, self.weights)

    def calibration_error(self, logits: Tensor) -> float:
        """The expected calibration error of the probabilities that logits stand for, percent."""
        return expected_calibration_error(torch.softmax(logits, dim=1), self.labels, self.weights)


@torch.no_grad()
def logits_of(graph: Graph, images: Tensor) -> Tensor:
    """What a network answers to images."""
    fast = unrolled(graph)
    return torch.cat([fast(part) for part in images.split(CHUNK)])


def _weights(labels: Tensor, frequencies: tuple[float, ...] | None) -> Tensor | None:  # (classes,)
    """What an image of each class counts, so that a class counts as often as it appears and all images come to n."""
    if frequencies is None:
        return None
    return torch.tensor(frequencies, dtype=torch.float64) * len(labels) / labels.bincount()
