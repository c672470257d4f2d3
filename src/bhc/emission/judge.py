"""How good a candidate is on the validation sample: errors, and whether probabilities mean what they say."""

from dataclasses import dataclass
from functools import cached_property
from operator import is_not

import torch
from torch import Tensor, nn

from bhc.contexts import Context
from bhc.formats import unrolled
from bhc.graph import Graph
from bhc.layers import Normalise, Select
from bhc.training import TrainedModel

BINS = 15
COLDEST, HOTTEST = -1.0, 1.4  # powers of ten
CANDIDATES, LOOKS = 9, 3  # each look goes between the neighbours of the best so far; at last 4 % apart


def expected_calibration_error(
    probabilities: Tensor, labels: Tensor, weights: Tensor | None = None
) -> float:  # (N, C), (N,), (C,)
    """How far the highest probability lies from the part of right answers, in percent.

    Both are averaged in 15 bins of equal width, ``(0, 1/15]`` to ``(14/15, 1]``, and a bin counts with its examples,
    each with the weight of its class.
    """
    confidence, answer = probabilities.double().max(1)
    counts = torch.ones_like(confidence) if weights is None else weights.double()[labels]
    edges = torch.arange(1, BINS, dtype=torch.double) / BINS
    gaps = torch.zeros(BINS, dtype=torch.double)
    gaps.index_add_(0, torch.bucketize(confidence, edges), counts * ((answer == labels).double() - confidence))
    return 100 * float(gaps.abs().sum() / counts.sum())


def best_temperature(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> float:
    """The temperature with the lowest cross-entropy, rounded so that it takes two bytes; classes may have weights.

    The cross-entropy has one valley, since it is convex in one over the temperature.
    """
    counts = None if weights is None else weights.to(logits.dtype)[labels]
    below = (logits - logits.amax(1, keepdim=True)).T.contiguous()  # (C, N): sums along a short last axis are slow
    own = below.gather(0, labels[None])
    low, high = COLDEST, HOTTEST
    best = 1.0
    for _ in range(LOOKS):
        powers = torch.linspace(low, high, CANDIDATES)
        temperatures = (10**powers).half().float()
        surprise = (below[:, None] / temperatures[:, None]).exp().sum(0).log() - own / temperatures[:, None]
        losses = surprise.mean(1) if counts is None else surprise @ counts
        place = int(losses.argmin())
        best = float(temperatures[place])
        low, high = float(powers[max(place - 1, 0)]), float(powers[min(place + 1, CANDIDATES - 1)])
    return best


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
        self.inputs, self.labels, self.weights = images, labels, weights
        self.as_stored = as_stored

    @classmethod
    def of(cls, model: TrainedModel, context: Context) -> "Judge | None":
        """None where there is nothing to judge by: no sample, or a domain, of which the labelled images are not."""
        if model.validation is None or context.domain is not None:
            return None
        classes = context.classes or tuple(range(model.network.num_classes))
        if not set(classes) <= set(model.validation.present):
            return None  # of some class there is no example: the others would say too little
        examples = model.validation.restricted_to(classes)
        labels = torch.searchsorted(torch.tensor(classes), examples.labels)
        # With zeros, or unknown words, for what is missing: all that the pretrained network would be given.
        images = model.network.space.presence.zero_absent(examples.inputs, context.inputs)
        weights = _weights(labels, context.frequencies)
        return cls(model, images, labels, classes, weights, as_stored=context.inputs is None)

    @property
    def num_images(self) -> int:
        return len(self.labels)

    def judge(self, graph: Graph) -> Verdict:
        logits = logits_of(graph, self._images)
        weight = None if self.weights is None else self.weights.to(logits.dtype)
        loss = nn.functional.cross_entropy(logits, self.labels, weight=weight)
        return Verdict(self._wrong(logits), float(loss), logits)

    def wrong_of(self, graph: Graph) -> float:
        return self._wrong(logits_of(graph, self._images))

    @cached_property
    def _images(self) -> "Inputs":
        return Inputs(self.inputs)

    def let_go(self) -> None:
        """Forget what was worked out of the images; it is larger than they are."""
        for judge in (self, vars(self).get("hard", self)):
            vars(judge).pop("_images", None)

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
            return logits_of(self.model.network.base_model, self.inputs)[:, list(self.classes)]
        return answers.index_select(0, validation.places_of(self.classes)).index_select(1, torch.tensor(self.classes))

    @property
    def wrong_before(self) -> float | None:
        return None if self.base_logits is None else self._wrong(self.base_logits)

    @cached_property
    def hard(self) -> "Judge":
        """The examples that the pretrained network finds hardest: where rounding does harm, it shows here first."""
        if self.base_logits is None or self.num_images <= HARD_IMAGES:
            return self
        own = self.labels[:, None]
        margin = self.base_logits.gather(1, own)[:, 0] - self.base_logits.scatter(1, own, -torch.inf).amax(1)
        hardest = margin.argsort(stable=True)[:HARD_IMAGES]
        return self._at(hardest, as_stored=self.as_stored)

    def sample(self, count: int) -> "Judge":
        """At most ``count`` of the examples, evenly spread."""
        if self.num_images <= count:
            return self
        return self._at(torch.arange(count) * self.num_images // count, as_stored=False)

    def _at(self, places: Tensor, *, as_stored: bool) -> "Judge":
        images = self.inputs.index_select(0, places)
        return Judge(self.model, images, self.labels[places], self.classes, self.weights, as_stored=as_stored)

    def calibrate(self, logits: Tensor) -> float:
        return best_temperature(logits, self.labels, self.weights)

    def calibration_error(self, logits: Tensor) -> float:
        """The expected calibration error of the probabilities that logits stand for, percent."""
        return expected_calibration_error(torch.softmax(logits, dim=1), self.labels, self.weights)


class Inputs:
    """Images for many networks that begin alike: what their first steps make of them is worked out once."""

    def __init__(self, images: Tensor) -> None:
        self.parts = images.split(CHUNK)
        self._normalised: tuple[nn.Module, list[Tensor]] | None = None
        self._begun: tuple[list[nn.Module], list[Tensor]] | None = None

    def normalised(self, first: nn.Module) -> list[Tensor]:
        """The images after a first step that normalises them."""
        if self._normalised is None or not _same(self._normalised[0], first):
            self._normalised = first, [first(part) for part in self.parts]
        return self._normalised[1]

    def begun(self, steps: list[nn.Module]) -> list[Tensor]:
        """The images after the first steps of a chain; roundings of one cut have these in common."""
        if self._begun is None or len(self._begun[0]) != len(steps) or any(map(is_not, self._begun[0], steps)):
            first, *rest = steps
            picks = Select in map(type, rest) and all(isinstance(step, Select | nn.Flatten) for step in rest)
            if picks and isinstance(first, Normalise) and not first.mean.dim():
                # One mean for all: what is picked before is the same, and less to normalise. Bytes are slow to pick.
                self._begun = steps, [first(_through(rest, part.float())) for part in self.parts]
            else:
                self._begun = steps, [_through(rest, part) for part in self.normalised(first)]
        return self._begun[1]


@torch.no_grad()
def logits_of(graph: Graph, images: Tensor | Inputs) -> Tensor:
    fast = unrolled(graph)
    inputs = images if isinstance(images, Inputs) else Inputs(images)
    modules = [step.module for step in fast.steps]
    if not isinstance(modules[0], Normalise) or not fast.is_chain:
        return torch.cat([fast(part) for part in inputs.parts])
    first = next((place for place, module in enumerate(modules) if module._parameters), len(modules))
    return torch.cat([_through(modules[first:], part) for part in inputs.begun(modules[:first])])


def _through(modules: list[nn.Module], x: Tensor) -> Tensor:
    for module in modules:
        x = module(x)
    return x


def _same(one: nn.Module, other: nn.Module) -> bool:
    return one is other or (
        isinstance(one, Normalise)
        and isinstance(other, Normalise)
        and torch.equal(one.mean, other.mean)
        and torch.equal(one.std, other.std)
    )


def _weights(labels: Tensor, frequencies: tuple[float, ...] | None) -> Tensor | None:  # (classes,)
    """What an image of each class counts, so that a class counts as often as it appears and all images come to n."""
    if frequencies is None:
        return None
    return torch.tensor(frequencies, dtype=torch.float64) * len(labels) / labels.bincount()
