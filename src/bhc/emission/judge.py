"""How good a candidate is on the validation sample: errors, and whether probabilities mean what they say."""

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, sqrt
from operator import is_not
from typing import Any

import torch
from torch import Tensor, nn

from bhc.contexts import Context, ContextBatch
from bhc.errors import BhcError
from bhc.examples import Inputs, Split, batches, each
from bhc.formats import unrolled
from bhc.graph import Graph
from bhc.layers import Normalise, Select
from bhc.tasks import checked_errors, widened
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
    """Answers of one network. Where classes appear unequally often, an example counts as much as its class appears."""

    wrong: float  # errors of all examples together: a count, where each is one or none and counts for one
    loss: float  # mean loss, of a classification at temperature 1: finer than a count of errors
    logits: Tensor


@dataclass(frozen=True)
class Judged:
    """The validation examples of a context as its networks are judged by them."""

    inputs: Inputs
    targets: Tensor
    of_kept: bool  # whether targets are for the outputs that are kept alone (``Task.of_kept``), or for all
    outputs: tuple[int, ...]  # those that are kept, in the original's numbering
    labels: Tensor | None  # places in the context's classes; None where there are no classes
    weights: Tensor | None = None  # what an example of each class counts; None: each counts one
    as_stored: bool = True  # whether the examples are those of the run, nothing in them missing

    def comparable(self, outputs: Tensor, num_outputs: int) -> Tensor:
        """Outputs as targets are numbered; of all that the original has."""
        return outputs if self.of_kept else widened(outputs, self.outputs, num_outputs)

    def at(self, places: Tensor, *, as_stored: bool) -> "Judged":
        labels = None if self.labels is None else self.labels[places]
        inputs = each(self.inputs, lambda tensor: tensor.index_select(0, places))
        return replace(self, inputs=inputs, targets=self.targets[places], labels=labels, as_stored=as_stored)


class Judge:
    """The validation examples of one context, and what the run's task says of answers to them."""

    def __init__(self, model: TrainedModel, examples: Judged, classes: tuple[int, ...] | None = None) -> None:
        self.model, self.examples, self.classes = model, examples, classes
        self.task, self.inputs, self.labels = model.network.task, examples.inputs, examples.labels
        self.weights, self.num_images = examples.weights, len(examples.targets)
        self.num_outputs = model.network.num_outputs

    @classmethod
    def of(cls, model: TrainedModel, context: Context) -> "Judge | None":
        """None where there is nothing to judge by: no sample, or a domain, of which the labelled examples are not."""
        if model.validation is None or context.domain is not None:
            return None
        if model.validation.labels is None and model.validation.targets is None:
            return None  # nobody has said what is right
        classes = classes_of(model, context)
        if model.validation.labels is not None and not set(classes) <= set(model.validation.present):
            return None  # of some class there is no example: the others would say too little
        return cls.on(model, context, model.validation)

    @classmethod
    def on(cls, model: TrainedModel, context: Context, sample: Split) -> "Judge":
        """By the examples of a sample that belong to a context."""
        network, classes = model.network, classes_of(model, context)
        own = sample if sample.labels is None else sample.restricted_to(classes)
        outputs = outputs_of(model, context)
        targets = network.task.of_kept(own.wanted, torch.tensor(outputs))
        labels = None if own.labels is None else torch.searchsorted(torch.tensor(classes), own.labels)
        # With zeros, or unknown words, for what is missing: all that the pretrained network would be given.
        inputs = own.inputs
        if context.inputs is not None:
            inputs = network.space.presence.zero_absent(own.tensor, context.inputs)
        weights = None if labels is None else _weights(labels, context.frequencies)
        wanted = own.wanted if targets is None else targets
        judged = Judged(inputs, wanted, targets is not None, outputs, labels, weights, as_stored=context.inputs is None)
        return cls(model, judged, classes)

    def logits_of(self, graph: Graph) -> Tensor:
        return logits_of(graph, self._images)

    def judge(self, graph: Graph) -> Verdict:
        logits = self.logits_of(graph)
        losses = self.task.loss(self.examples.comparable(logits, self.num_outputs), self.examples.targets)
        if self.weights is None or self.labels is None:
            return Verdict(self._wrong(logits), float(losses.mean()), logits)
        counts = self.weights.to(losses.dtype)[self.labels]
        return Verdict(self._wrong(logits), float(losses @ counts / counts.sum()), logits)

    def wrong_of(self, graph: Graph) -> float:
        return self._wrong(self.logits_of(graph))

    @cached_property
    def _images(self) -> "Batches":
        return Batches(self.inputs)

    def let_go(self) -> None:
        """Forget what was worked out of the examples; it is larger than they are."""
        for judge in (self, vars(self).get("hard", self)):
            vars(judge).pop("_images", None)

    def _wrong(self, logits: Tensor) -> float:
        """Errors, each with the weight of its class; the sum is rounded as files store it."""
        errors = checked_errors(self.task, self.examples.comparable(logits, self.num_outputs), self.examples.targets)
        if self.weights is None or self.labels is None:
            return int(errors.sum(dtype=torch.float64)) if self.task.counts_mistakes else _stored(errors.double().sum())
        # Class by class in one order: no part of the examples can so come to more than all of them.
        by_class = self.labels.bincount(errors.double(), minlength=len(self.weights))
        return _stored((by_class * self.weights).sum())

    @cached_property
    def base_logits(self) -> Tensor | None:
        """The pretrained network's, restricted to the outputs; None if it was not trained."""
        answers, validation = self.model.base_logits, self.model.validation
        if answers is None or validation is None:
            return None
        kept = torch.tensor(self.examples.outputs)
        if not self.examples.as_stored:
            return logits_of(self.model.network.base_model, self.inputs).index_select(1, kept)
        places = torch.arange(len(validation)) if self.labels is None else validation.places_of(self.classes or ())
        return answers.index_select(0, places).index_select(1, kept)

    @property
    def wrong_before(self) -> float | None:
        return None if self.base_logits is None else self._wrong(self.base_logits)

    @cached_property
    def hard(self) -> "Judge":
        """The examples that the pretrained network finds hardest: where rounding does harm, it shows here first."""
        if self.base_logits is None or self.num_images <= HARD_IMAGES:
            return self
        if self.task.has_answers and self.labels is not None and len(self.labels):
            own = self.labels[:, None]
            ease = self.base_logits.gather(1, own)[:, 0] - self.base_logits.scatter(1, own, -torch.inf).amax(1)
        else:
            ease = -self.task.loss(self.examples.comparable(self.base_logits, self.num_outputs), self.examples.targets)
        hardest = ease.argsort(stable=True)[:HARD_IMAGES]
        return Judge(self.model, self.examples.at(hardest, as_stored=self.examples.as_stored), self.classes)

    def sample(self, count: int) -> "Judge":
        """At most ``count`` of the examples, evenly spread."""
        if self.num_images <= count:
            return self
        places = torch.arange(count) * self.num_images // count
        return Judge(self.model, self.examples.at(places, as_stored=False), self.classes)

    def calibrate(self, logits: Tensor) -> float:
        """The temperature of probabilities; 1 where a task has none."""
        if not self.task.has_answers or self.labels is None:
            return 1.0
        return best_temperature(logits, self.labels, self.weights)

    def calibration_error(self, logits: Tensor) -> float | None:
        """The expected calibration error of the probabilities that logits stand for, percent; None without them."""
        if not self.task.has_answers or self.labels is None:
            return None
        return expected_calibration_error(torch.softmax(logits, dim=1), self.labels, self.weights)


MARGIN, WIDEST_MARGIN = 0.5, 2.5  # points of error: what is usual, and where too little is said to go by it
QUANTILE = 1.645  # of the normal distribution, at 95 %


@dataclass(frozen=True)
class Margin:
    """By how much at most a network is worse than the original, in points: a test on the same examples.

    It holds where at 95 % confidence the difference of the two errors is under it. Where errors are mistakes, that is
    Tango's score test for paired proportions, which is right for the few mistakes that there are; otherwise the mean
    difference is taken as normal. Few examples can show little: the margin is then the least that they can.
    """

    judge: Judge
    points: float
    before: Tensor  # (N,) errors of the original

    @classmethod
    def of(cls, judge: Judge, points: float | None = None) -> "Margin | None":
        """The usual one where none is given; None where examples are too few for any that is of use."""
        assert judge.base_logits is not None
        before = errors_of(judge, judge.base_logits)
        least = 100 * QUANTILE**2 / (judge.num_images + QUANTILE**2)
        if points is not None and points < least:
            raise BhcError(
                f"a margin of {points:g} points cannot be tested on {judge.num_images:,} validation examples",
                hint=f"ask for {ceil(1e3 * least) / 1e3:g} or more, or train with more validation data",
            )
        if points is None and least > WIDEST_MARGIN:
            return None
        return cls(judge, max(MARGIN, ceil(1e3 * least) / 1e3) if points is None else points, before)

    def holds(self, graph: Graph) -> bool:
        return self.keeps(errors_of(self.judge, self.judge.logits_of(graph)))

    def keeps(self, errors: Tensor) -> bool:  # (N,)
        """The same of errors that are known."""
        worse = errors - self.before
        if self.judge.weights is None and self.judge.task.counts_mistakes:
            return (
                tango_score(int((worse > 0).sum()), int((worse < 0).sum()), len(worse), self.points / 100) < -QUANTILE
            )
        spread = float(worse.std() / len(worse) ** 0.5)
        return float(worse.mean()) + QUANTILE * spread < self.points / 100


def errors_of(judge: Judge, logits: Tensor) -> Tensor:  # (N,)
    """Each example's, where classes appear unequally often times what it counts."""
    errors = checked_errors(judge.task, judge.examples.comparable(logits, judge.num_outputs), judge.examples.targets)
    return errors.double() if judge.weights is None or judge.labels is None else errors * judge.weights[judge.labels]


def tango_score(lost: int, won: int, count: int, margin: float) -> float:
    """Of ``lost`` examples that became wrong and ``won`` that became right, for a difference of ``margin``.

    Under "the difference is the margin" it is standard normal; far below zero the difference is smaller.
    """
    linear = count * margin * 2 - margin * (lost - won) - lost - won
    won_part = (sqrt(max(linear**2 + 8 * count * won * margin * (1 - margin), 0.0)) - linear) / (4 * count)
    variance = count * (2 * won_part + margin * (1 - margin))
    return (lost - won - count * margin) / sqrt(variance)


def classes_of(model: TrainedModel, context: Context) -> tuple[int, ...]:
    """Those of a context; all, where it names none."""
    return context.classes or tuple(range(model.network.num_classes))


def outputs_of(model: TrainedModel, context: Context) -> tuple[int, ...]:
    """The outputs that a context has."""
    batch = ContextBatch.of([context], model.network.num_classes)
    return tuple(model.network.outputs_of(batch.to(model.network.device))[0].nonzero().flatten().tolist())


def _stored(total: Tensor) -> float:
    return float(total.float())


class Batches:
    """Images for many networks that begin alike: what their first steps make of them is worked out once."""

    def __init__(self, inputs: Inputs) -> None:
        self.parts: list[Any] = batches(inputs, CHUNK)
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
def logits_of(graph: Graph, images: Inputs | Batches) -> Tensor:
    fast = unrolled(graph)
    inputs = images if isinstance(images, Batches) else Batches(images)
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
