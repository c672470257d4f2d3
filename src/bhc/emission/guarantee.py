"""A promise about new data: at most so much error, with so much confidence.

Networks are tested in an order that was fixed before any calibration image was looked at, each at the full level, and
the first that is not proved ends it. Then the choice costs nothing: to emit a network that breaks the promise, the
first such network of the order must have passed its test, and that is one test.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil
from typing import TypeVar

import torch
from torch import Tensor

from bhc.contexts import Context
from bhc.data import Split
from bhc.emission.binomial import images_needed, proves, upper_bound
from bhc.emission.judge import Judge
from bhc.errors import BhcError
from bhc.graph import Graph
from bhc.training import TrainedModel

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


class Calibration:
    """The images of one context that guarantees rest on: of each class as many as its appearance asks for."""

    def __init__(self, judge: Judge, share: float, *, max_error: float, confidence: float) -> None:
        self.judge, self.share = judge, share
        self.max_error, self.confidence = max_error, confidence

    @classmethod
    def of(cls, model: TrainedModel, context: Context, *, max_error: float, confidence: float) -> "Calibration":
        """The run's calibration images for a context, if they can prove anything."""
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
        own = cls(Judge(model, examples.images, labels, classes), share, max_error=max_error, confidence=confidence)
        if not own._proves(0):
            needed = images_needed(own._rate, confidence=confidence)
            raise BhcError(
                f"{own.guarantee(0).promise} takes {needed:,} calibration images of {context} without a mistake, and"
                f" there are {own.judge.num_images:,}",
                hint=f"{MORE_IMAGES}; these could prove {own.lowest_error(0):g} % at best",
            )
        return own

    def last_proved(self, networks: Iterable[T], graph_of: Callable[[T], Graph]) -> tuple[T, Guarantee] | None:
        """The last of the networks before the first that is not proved; None if there is no network at all."""
        proved = None
        for network in networks:
            wrong = round(self.judge.judge(graph_of(network)).wrong)
            if not self._proves(wrong):
                if proved is None:
                    raise self._failure(wrong)
                break
            proved = network, self.guarantee(wrong)
        return proved

    def guarantee(self, wrong: int) -> Guarantee:
        """What so many mistakes prove."""
        return Guarantee(self.max_error, self.confidence, self.judge.num_images, wrong)

    def lowest_error(self, wrong: int) -> float:
        """What else could be promised, percent, rounded up."""
        bound = upper_bound(wrong, self.judge.num_images, confidence=self.confidence) / self.share
        return min(100.0, ceil(1e5 * bound) / 1e3)

    @property
    def _rate(self) -> float:
        """What is tested: the share of the error that these images have."""
        return self.max_error / 100 * self.share

    def _proves(self, wrong: int) -> bool:
        return proves(wrong, self.judge.num_images, self._rate, confidence=self.confidence)

    def _failure(self, wrong: int) -> BhcError:
        return BhcError(
            f"the largest network answers {wrong:,} of {self.judge.num_images:,} calibration images wrong, which does"
            f" not prove {self.guarantee(wrong).promise}; the lowest that could be promised for it is"
            f" {self.lowest_error(wrong):g} %",
            hint=f"allow a higher max_error, or {MORE_IMAGES}",
        )


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
    counts = _whole_counts(weights * (there / weights).min()).clamp(max=there)
    kept = torch.cat([own[: int(count)] for own, count in zip(places, counts, strict=True)]).sort().values
    share = float((counts / weights).min() * weights.sum() / counts.sum())
    return split.at(kept), min(share, 1.0)


def _whole_counts(counts: Tensor) -> Tensor:
    """Rounded up, but for what is over a whole number by the last bits alone."""
    return (counts - 1e-9).ceil()
