"""Promises about new data: so much error at most, with so much confidence; and which inputs lie outside the context.

Networks are tested in an order that was fixed before any calibration image was looked at, each at the full level, and
the first that is not proved ends it. Then the choice costs nothing: to emit a network that breaks the promise, the
first such network of the order must have passed its test, and that is one test. An input is taken to lie outside the
context where a score of its logits is over a threshold, which is set so that a given part of those inside are.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, e, exp, fsum, isfinite, lgamma, log, log1p
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from bhc.contexts import Context
from bhc.emission.judge import Judge, classes_of, logits_of
from bhc.errors import BhcError
from bhc.examples import Split
from bhc.graph import Graph
from bhc.training import TrainedModel

NEGLIGIBLE = 1e-18  # of the largest term
HALVINGS = 60
LOWEST_RATE = 1e-300  # under which one over it is no number


def at_most(wrong: int, images: int, rate: float) -> float:
    """The probability of ``wrong`` or fewer mistakes where each image is one with probability ``rate``."""
    if wrong < 0 or rate >= 1:
        return float(wrong >= images)
    if wrong >= images or rate <= 0:
        return 1.0
    # The smaller tail is summed, from its largest term outwards.
    if wrong <= images * rate:
        return _tail(wrong, images, rate)
    return 1.0 if 1 - rate == 1 else 1 - _tail(images - wrong - 1, images, 1 - rate)


def _tail(count: int, images: int, rate: float) -> float:
    """The probability of ``count`` or fewer, where that is no more than the mean."""
    choices = lgamma(images + 1) - lgamma(count + 1) - lgamma(images - count + 1)
    largest = exp(choices + count * log(rate) + (images - count) * log1p(-rate))
    terms, term = [1.0], 1.0
    for place in range(count, 0, -1):
        term *= place / (images - place + 1) * (1 - rate) / rate
        terms.append(term)
        if term < NEGLIGIBLE:
            break
    return largest * fsum(terms)


def proves(wrong: float, images: int, rate: float, *, confidence: float) -> bool:
    """Whether so few mistakes would be rarer than one minus ``confidence`` if there were more than ``rate`` of them.

    The images may be drawn class by class: Hoeffding (1956) has it that the count is then no more often as low, as
    long as it is one or more under the mean. With a confidence of three quarters or more, and a rate that is not within
    1 / images of 1, that is so by itself.
    """
    return wrong + 1 <= images * rate and at_most(int(wrong), images, rate) <= 1 - confidence


def proves_mean(total: float, images: int, rate: float, *, confidence: float) -> bool:
    """The same of errors between 0 and 1 that come to ``total``, whatever their distribution.

    Independent errors whose mean is over ``rate`` have so small a mean m with a probability of at most
    ``exp(-n KL(m, rate))`` (Hoeffding 1963) and ``e P(Bin(n, rate) <= ceil(n m))`` (Bentkus 2004); the smaller counts.
    """
    mean = total / images
    if mean >= rate or rate >= 1:
        return rate >= 1
    hoeffding = exp(-images * _divergence(mean, rate))
    return min(hoeffding, e * at_most(ceil(total), images, rate)) <= 1 - confidence


def _divergence(mean: float, rate: float) -> float:
    """That of one coin from another."""
    first = mean * log(mean / rate) if mean else 0.0
    return first + (1 - mean) * (log1p(-mean) - log1p(-rate))


class Test(Protocol):
    """Whether errors prove a rate: ``proves`` of counts, ``proves_mean`` of others."""

    def __call__(self, wrong: float, images: int, rate: float, /, *, confidence: float) -> bool: ...


def upper_bound(wrong: float, images: int, *, confidence: float, test: Test = proves) -> float:
    """The lowest rate that is proved, of counts Clopper and Pearson's bound; 1 if none is."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if test(wrong, images, middle, confidence=confidence) else (middle, high)
    return high


def images_needed(rate: float, *, confidence: float) -> int:
    """How many images prove ``rate`` if there is no mistake among them."""
    if rate >= 1:
        return 1
    rate = max(rate, LOWEST_RATE)
    images = ceil(max(log(1 - confidence) / log1p(-rate), 1 / rate))
    # Logarithms are rounded: one too many, or as many too few as floats of this size are apart.
    if proves(0, images - 1, rate, confidence=confidence):
        return images - 1
    while not proves(0, images, rate, confidence=confidence):
        images += max(1, images >> 50)
    return images


MORE_IMAGES = "hold out more: bhc train --calibration N, or bhc.fit(..., calibration_set=...)"

T = TypeVar("T")


@dataclass(frozen=True)
class Guarantee:
    """What was proved of a network, and by what."""

    max_error: float  # percent, on new images of the context
    confidence: float
    images: int  # calibration images of the context
    wrong: float  # how many of them it got wrong, or what errors between 0 and 1 come to

    @property
    def promise(self) -> str:
        return f"at most {self.max_error:.12g} % error with {100 * self.confidence:.12g} % confidence"

    def __str__(self) -> str:
        return f"{self.promise} ({self.images:,} images)"


@dataclass(frozen=True)
class Calibration:
    """The images of one context that guarantees rest on: of each class as many as its appearance asks for."""

    judge: Judge
    share: float  # of the error that these images have
    max_error: float
    confidence: float

    @classmethod
    def of(cls, model: TrainedModel, context: Context, *, max_error: float, confidence: float) -> "Calibration":
        """The run's calibration images for a context."""
        if model.calibration is None:
            raise BhcError(
                "confidence needs calibration images, and the run has none",
                hint="train with some: bhc train --calibration 5000, or bhc.fit(..., calibration_set=...)",
            )
        if context.domain is not None:
            raise BhcError(
                "no error can be promised for a domain: the run's calibration images are not of it",
                hint="leave confidence and max_error out",
            )
        examples, share = stratified(model.calibration, classes_of(model, context), context.appearance)
        even = replace(context, appearance=None)  # the proportions are those of the examples
        return cls(Judge.on(model, even, examples), share, max_error, confidence)

    def last_proved(self, networks: Iterable[T], graph_of: Callable[[T], Graph]) -> tuple[T, Guarantee] | None:
        """The last of the networks before the first that is not proved; None if that is the first of all."""
        proved = None
        for network in networks:
            wrong = self.wrong_of(graph_of(network))
            if not self.proves(wrong):
                break
            proved = network, self.guarantee(wrong)
        return proved

    def wrong_of(self, graph: Graph) -> float:
        return self.judge.wrong_of(graph)

    @property
    def _test(self) -> Test:
        return proves if self.judge.task.counts_mistakes else proves_mean

    @property
    def longest(self) -> Guarantee:
        """The one that takes the most bytes of a file."""
        return self.guarantee(self.judge.num_images)

    def guarantee(self, wrong: float) -> Guarantee:
        """What so many mistakes prove."""
        return Guarantee(self.max_error, self.confidence, self.judge.num_images, wrong)

    def lowest_error(self, wrong: float) -> float | None:
        """What else so many mistakes prove, percent, rounded up; None if they prove nothing."""
        bound = upper_bound(wrong, self.judge.num_images, confidence=self.confidence, test=self._test) / self.share
        thousandths = ceil(1e5 * bound)
        for error in (thousandths / 1e3, (thousandths + 1) / 1e3):  # what was rounded may be a last bit too low
            if error <= 100 and replace(self, max_error=error).proves(wrong):
                return error
        return None

    @property
    def images_needed(self) -> int:
        """How many images it takes if there is no mistake among them."""
        return images_needed(self._rate, confidence=self.confidence)

    @property
    def _rate(self) -> float:
        """What is tested: the share of the error that these images have."""
        return self.max_error / 100 * self.share

    def proves(self, wrong: float) -> bool:
        """Whether so many mistakes prove what is asked."""
        return self._test(wrong, self.judge.num_images, self._rate, confidence=self.confidence)


def stratified(split: Split, classes: tuple[int, ...], appearance: tuple[float, ...] | None) -> tuple[Split, float]:
    """The first images of each class, as many as can be in the proportions of the appearance, and their share.

    Counts are whole numbers, so of some classes there is up to one image too many. With n_c >= m f_c images of a class
    that has frequency f_c, mistakes among the n images have a mean of at least m times the error under these
    frequencies. So the n prove an error E as they prove a rate of E m / n: ``share`` is m / n.
    """
    if split.labels is None:
        return split, 1.0
    weights = torch.tensor(appearance or [1.0] * len(classes), dtype=torch.float64)
    places = [(split.known_labels == label).nonzero().flatten() for label in classes]
    missing = [str(label) for label, own in zip(classes, places, strict=True) if not len(own)]
    if missing:
        raise BhcError(
            f"there are no calibration images of class {', '.join(missing)}",
            hint="nothing can be proved of a class that is not there; " + MORE_IMAGES,
        )
    there = torch.tensor([len(own) for own in places], dtype=torch.float64)
    # Rounded up, but for what is over a whole number by the last bits alone.
    counts = (weights * (there / weights).min() - 1e-9).ceil().clamp(max=there)
    kept = torch.cat([own[: int(count)] for own, count in zip(places, counts, strict=True)]).sort().values
    share = float((counts / weights).min() * weights.sum() / counts.sum())
    return split.at(kept), min(share, 1.0)


NAME = "alarm"  # of its entry in a file's card
QUARTERS = (0, 1, 2, 3, 4)
USUAL = 2  # where nothing was there to choose by


def outside_score(logits: Tensor, quarters: int = USUAL) -> Tensor:  # (N, C) -> (N,)
    """``quarters / 4`` of the second largest logit, less the largest: larger means more likely outside.

    With 0 quarters it is the size of the largest logit that counts, with 4 its lead. Of one class there is one logit.
    """
    if logits.shape[1] == 1:
        return -logits[:, 0]
    first, second = logits.topk(2, dim=1).values.unbind(1)
    return quarters / 4 * second - first


@dataclass(frozen=True)
class Alarm:
    """Flags inputs whose score is above a threshold."""

    quarters: int
    threshold: float
    rate: float  # of false alarms: at most this part of the inputs it was set by is flagged

    def score(self, logits: Tensor) -> Tensor:
        return outside_score(logits, self.quarters)

    def flags(self, logits: Tensor) -> Tensor:
        """True where an input is taken to lie outside."""
        return self.score(logits) > self.threshold

    @classmethod
    def set_by(cls, scores: Tensor, quarters: int, rate: float) -> "Alarm":
        """The lowest threshold, of few bits, that keeps the rate by the scores of inputs from inside.

        It is the conformal quantile, the ``ceil((n + 1) (1 - rate))``-th of ``n`` scores: an input drawn as these
        were is above it with a probability of at most ``rate``.
        """
        allowed = int((len(scores) + 1) * as_fraction(rate))
        assert allowed >= 1, "too few scores for this rate"
        return cls(quarters, _round_up(float(scores.sort().values[-allowed])), rate)

    def to_card(self) -> list[Any]:
        """What a file stores: most often eight bytes."""
        return [self.quarters, self.threshold, float(np.float16(self.rate)) or self.rate]

    @classmethod
    def of(cls, card: Mapping[str, Any]) -> "Alarm | None":
        """That of a card, None if it has none; ValueError if it is damaged."""
        match card.get(NAME):
            case None:
                return None
            case [int(quarters), float(threshold), float(rate)] if (
                quarters in QUARTERS and isfinite(threshold) and 0 < rate <= 1
            ):
                return cls(quarters, threshold, float(f"{rate:.3g}"))
        raise ValueError("its alarm is not one")


def as_fraction(rate: float) -> Fraction:
    """The rate as it was meant: 0.05 is not a binary fraction."""
    return Fraction(str(float(rate)))


def _round_up(score: float) -> float:
    """To a 16-bit float, or a 32-bit one where that is too small: up, so that no more inputs are flagged."""
    for kind in (np.float16, np.float32):
        with np.errstate(over="ignore"):
            rounded = kind(score)
        if float(rounded) < score:  # numpy would round the score too
            rounded = np.nextafter(rounded, kind(np.inf))
        if np.isfinite(rounded):
            return float(rounded)
    raise BhcError(f"a score of {score} cannot be a threshold", hint="are there infinite or missing numbers in inputs?")


def auroc(inside: Tensor, outside: Tensor) -> float:  # (N,), (M,)
    """The area under the ROC curve: how often an input from outside has the higher score.

    Over all pairs of one input from inside and one from outside; a tie counts half. 0.5 tells nothing, 1 all.
    """
    values, places = torch.unique(torch.cat([inside, outside]), return_inverse=True)
    here = torch.bincount(places[: len(inside)], minlength=len(values))
    there = torch.bincount(places[len(inside) :], minlength=len(values))
    halves = int((there * (2 * here.cumsum(0) - here)).sum())  # two for each pair in order, one for each tie
    return halves / (2 * len(inside) * len(outside))


@dataclass(frozen=True)
class AlarmSamples:
    """A rate of false alarms, inputs of the context, and inputs that are not."""

    rate: float
    inside: Tensor
    outside: Tensor | None  # None: there are no examples of what lies outside

    @classmethod
    def of(cls, model: TrainedModel, context: Context, rate: float, *, sample: Tensor | None = None) -> "AlarmSamples":
        """``sample`` is that of a domain; other contexts have the run's validation sample."""
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1:
            raise BhcError(
                f"flag_outside is a rate of false alarms between 0 and 1, given {rate!r}",
                hint="0.05 means 5 % of inputs",
            )
        if not model.network.task.has_answers:
            raise BhcError(
                f"flag_outside: task {model.network.task.name!r} has no answers that could be doubted",
                hint="leave flag_outside out",
            )
        if len(model.network.signature) > 1:
            raise BhcError("flag_outside needs a network with one input", hint="leave flag_outside out")
        inside = sample
        if context.domain is None:
            judge = Judge.of(model, context)
            examples = None if judge is None else Split(judge.inputs, judge.labels)
            inside = None if examples is None else examples.tensor
            if examples is not None and context.frequencies is not None:  # as many of each class as that says
                places = tuple(range(len(context.classes or ())))
                inside = stratified(examples, places, context.appearance)[0].tensor
        if inside is None:
            raise BhcError(
                "flag_outside needs validation data for this context, and the run has none",
                hint="leave flag_outside out, or train with validation examples of every class",
            )
        needed = ceil(1 / as_fraction(rate)) - 1
        if len(inside) < needed:
            raise BhcError(
                f"flag_outside={rate:g} needs at least {needed:,} inputs of the context, there are {len(inside):,}",
                hint=f"ask for a rate of {ceil(1e6 / (len(inside) + 1)) / 1e6:g} or more"
                if context.domain is None
                else "give a larger sample of the domain, or allow a higher rate",
            )
        return cls(rate, inside, _left_out(model, context, limit=len(inside)))

    def tune(self, graph: Graph) -> tuple[Alarm, float | None]:
        """The alarm of a network; and its AUROC, where there is something outside.

        Which part of the second logit counts is then chosen too: the one with the highest AUROC.
        """
        inside = logits_of(graph, self.inside)
        if self.outside is None:
            return Alarm.set_by(outside_score(inside), USUAL, self.rate), None
        outside = logits_of(graph, self.outside)
        areas = {part: auroc(outside_score(inside, part), outside_score(outside, part)) for part in QUARTERS}
        best = max(QUARTERS, key=lambda part: areas[part])
        return Alarm.set_by(outside_score(inside, best), best, self.rate), areas[best]


def _left_out(model: TrainedModel, context: Context, *, limit: int) -> Tensor | None:
    """Validation images of the classes that are not the context's, evenly spread over them; None if there are none."""
    if model.validation is None or context.classes is None:
        return None
    labels = model.validation.known_labels
    left_out = (~torch.isin(labels, torch.tensor(context.classes))).nonzero().flatten()
    if not len(left_out):
        return None
    by_class = left_out[labels[left_out].argsort(stable=True)]
    count = min(limit, len(by_class))
    return model.validation.tensor[by_class[torch.arange(count) * len(by_class) // count]]
