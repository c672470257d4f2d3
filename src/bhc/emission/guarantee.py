"""A promise about new data: at most so much error, with so much confidence.

Networks are tested in an order that was fixed before any calibration image was looked at, each at the full level, and
the first that is not proved ends it. Then the choice costs nothing: to emit a network that breaks the promise, the
first such network of the order must have passed its test, and that is one test.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import ceil, exp, fsum, lgamma, log, log1p
from typing import TypeVar

import torch

from bhc.contexts import Context
from bhc.emission.judge import Judge
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


def proves(wrong: int, images: int, rate: float, *, confidence: float) -> bool:
    """Whether so few mistakes would be rarer than one minus ``confidence`` if there were more than ``rate`` of them.

    The images may be drawn class by class: Hoeffding (1956) has it that the count is then no more often as low, as
    long as it is one or more under the mean. With a confidence of three quarters or more, and a rate that is not within
    1 / images of 1, that is so by itself.
    """
    return wrong + 1 <= images * rate and at_most(wrong, images, rate) <= 1 - confidence


def upper_bound(wrong: int, images: int, *, confidence: float) -> float:
    """The lowest rate that is proved, Clopper and Pearson's bound; 1 if none is."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if proves(wrong, images, middle, confidence=confidence) else (middle, high)
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
    wrong: int  # how many of them it got wrong

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
        classes = context.classes or tuple(range(model.network.num_classes))
        examples, share = stratified(model.calibration, classes, context.appearance)
        labels = torch.searchsorted(torch.tensor(classes), examples.labels)
        return cls(Judge(model, examples.inputs, labels, classes), share, max_error, confidence)

    def last_proved(self, networks: Iterable[T], graph_of: Callable[[T], Graph]) -> tuple[T, Guarantee] | None:
        """The last of the networks before the first that is not proved; None if that is the first of all."""
        proved = None
        for network in networks:
            wrong = self.wrong_of(graph_of(network))
            if not self.proves(wrong):
                break
            proved = network, self.guarantee(wrong)
        return proved

    def wrong_of(self, graph: Graph) -> int:
        return round(self.judge.judge(graph).wrong)

    @property
    def longest(self) -> Guarantee:
        """The one that takes the most bytes of a file."""
        return self.guarantee(self.judge.num_images)

    def guarantee(self, wrong: int) -> Guarantee:
        """What so many mistakes prove."""
        return Guarantee(self.max_error, self.confidence, self.judge.num_images, wrong)

    def lowest_error(self, wrong: int) -> float | None:
        """What else so many mistakes prove, percent, rounded up; None if they prove nothing."""
        bound = upper_bound(wrong, self.judge.num_images, confidence=self.confidence) / self.share
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

    def proves(self, wrong: int) -> bool:
        """Whether so many mistakes prove what is asked."""
        return proves(wrong, self.judge.num_images, self._rate, confidence=self.confidence)


def stratified(split: Split, classes: tuple[int, ...], appearance: tuple[float, ...] | None) -> tuple[Split, float]:
    """The first images of each class, as many as can be in the proportions of the appearance, and their share.

    Counts are whole numbers, so of some classes there is up to one image too many. With n_c >= m f_c images of a class
    that has frequency f_c, mistakes among the n images have a mean of at least m times the error under these
    frequencies. So the n prove an error E as they prove a rate of E m / n: ``share`` is m / n.
    """
    weights = torch.tensor(appearance or [1.0] * len(classes), dtype=torch.float64)
    places = [(split.labels == label).nonzero().flatten() for label in classes]
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
