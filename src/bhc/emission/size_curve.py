"""What a run offers: error against size, from the original to the smallest network, and where the default lies."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any

import numpy as np

from bhc.contexts import Context
from bhc.emission.candidate import CandidateFactory
from bhc.emission.cut import Cutter
from bhc.emission.judge import Margin, errors_of
from bhc.emission.origins import smallest_ratio
from bhc.training import TrainedModel
from bhc.training.evaluation import harmonic, spread

CONTEXTS = 12  # that are looked at
POINTS, SHOWN_EVERY = 17, 2  # budgets, from 0 to 1; every second is told
CUTS = 13  # of each origin
LOOK_FLOPS = 2e11  # that all looks together may cost
LEAST_EXAMPLES = 100


@dataclass(frozen=True)
class SizePoint:
    """One budget over some contexts: of each the network with the lowest error that is so many times smaller."""

    budget: float
    ratio: float  # harmonic over the contexts: of what there is
    error: float  # percent on validation examples before rounding, of all contexts together
    lost: float  # points over the original, in the mean
    lost_least: float  # of the context that loses least, and of the one that loses most
    lost_most: float


@dataclass(frozen=True)
class SizeCurve:
    """All of them."""

    points: tuple[SizePoint, ...]
    contexts: int
    # Harmonic over the contexts, where nothing is asked for; and points of error that the default may cost, of the
    # context where that is widest. None where examples are too few to say what is as good as the original.
    default_ratio: float | None
    margin: float | None
    error_name: str = "error"  # what the task calls it
    higher_is_better: bool = False

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "SizeCurve":
        points = tuple(SizePoint(**point) for point in data["points"])
        return cls(**{**data, "points": points})

    def __str__(self) -> str:
        heads = ("budget", "times smaller", f"{self.error_name} %", "points lost", "best to worst context")
        rows = [
            (
                f"{point.budget:.2f}",
                f"{point.ratio:,.1f}",
                f"{100 - point.error if self.higher_is_better else point.error:.2f}",
                f"{point.lost:.2f}",
                f"{point.lost_least:.2f} to {point.lost_most:.2f}",
            )
            for point in self.points[::SHOWN_EVERY]
        ]
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in (heads, *rows)
        ]
        title = f"what size costs, over {self.contexts} contexts, on validation data and before rounding to bits:"
        default = "validation data are too few to say what is as good as the original"
        if self.default_ratio is not None:
            default = (
                f"by default networks are {self.default_ratio:,.1f} times smaller, and at 95 % confidence lose less"
                f" than {self.margin:g} points on each context"
            )
        return "\n".join([title, *lines, default])

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"points": [asdict(point) for point in self.points]}


@dataclass(frozen=True)
class Look:
    """One context: what its cuts have before rounding, and how often they are wrong."""

    weights: np.ndarray  # (n,)
    flops: np.ndarray  # (n,)
    errors: np.ndarray  # (n,) percent
    original: float  # percent
    default: int | None  # weights; None where examples are too few to say what is as good as the original
    margin: float | None

    @classmethod
    def of(cls, factory: CandidateFactory, *, examples: int, cuts: int = CUTS) -> "Look | None":
        """Of some examples and cuts of each origin; None where the context has no curvature, or nothing to judge by."""
        judge = None if factory.judge is None else factory.judge.sample(examples)
        if judge is None or len(factory.origins) == 1 or judge.base_logits is None:
            return None
        found = [factory.at(threshold, own) for own in factory.origins for threshold in own.inside(cuts)]
        margin, before = Margin.of(judge), errors_of(judge, judge.base_logits)
        errors = [errors_of(judge, judge.logits_of(each.network.graph)) for each in found]
        weights = [each.cut.num_weights for each in found]
        return cls(
            weights=np.array(weights),
            flops=np.array([each.cut.num_flops for each in found]),
            errors=np.array([100 * float(own.mean()) for own in errors]),
            original=100 * float(before.mean()),
            default=None
            if margin is None
            else min(
                (size for size, own in zip(weights, errors, strict=True) if margin.keeps(own)),
                default=factory.model.network.num_weights,
            ),
            margin=None if margin is None else margin.points,
        )

    def best(self, most: float) -> int:
        """The place of the best that has no more weights; of the smallest, where all have."""
        fits = np.flatnonzero(self.weights <= most)
        return int(fits[self.errors[fits].argmin()] if len(fits) else self.weights.argmin())


def measure_size_curve(
    model: TrainedModel, *, on_look: Callable[[int, int], object] = lambda done, count: None
) -> SizeCurve | None:
    """None where a run knows no curvature, or there is nothing to judge by."""
    if model.curvature is None or model.base_logits is None:
        return None
    contexts = _contexts(model)
    looks = []
    on_look(0, len(contexts))
    for place, context in enumerate(contexts):
        factory = CandidateFactory(model, Cutter(model.network, context))
        look = Look.of(factory, examples=_affordable(model, len(contexts)))
        if look is not None:
            looks.append(look)
        on_look(place + 1, len(contexts))
    if not looks:
        return None
    total, largest = model.network.num_weights, smallest_ratio(model)
    points = [_point(budget, looks, total, largest**budget) for budget in np.linspace(0, 1, POINTS).tolist()]
    defaults = [total / look.default for look in looks if look.default is not None]
    margins = [look.margin for look in looks if look.margin is not None]
    known, task = len(defaults) == len(looks), model.network.task
    return SizeCurve(
        points=tuple(points),
        contexts=len(looks),
        default_ratio=harmonic(defaults) if known else None,
        margin=max(margins) if known else None,
        error_name=task.error_name,
        higher_is_better=task.higher_is_better,
    )


def _contexts(model: TrainedModel) -> Sequence[Context]:
    space, classes = model.network.space, model.network.num_classes
    requests = spread(space.probes(classes, CONTEXTS), CONTEXTS)
    return [space.resolve(request.asked) for request in requests]


def _affordable(model: TrainedModel, contexts: int) -> int:
    """Examples of each context; cuts are, in the geometric mean, about the root of the range smaller."""
    each = model.network.counts.flops / sqrt(smallest_ratio(model))
    return int(max(LEAST_EXAMPLES, LOOK_FLOPS / (each * 2 * CUTS * contexts)))


def _point(budget: float, looks: Sequence[Look], total: int, ratio: float) -> SizePoint:
    found = [(look, look.best(total / ratio)) for look in looks]
    errors = [float(look.errors[place]) for look, place in found]
    over = [error - look.original for error, look in zip(errors, looks, strict=True)]
    return SizePoint(
        budget=budget,
        ratio=harmonic([total / float(look.weights[place]) for look, place in found]),
        error=sum(errors) / len(errors),
        lost=sum(over) / len(over),
        lost_least=min(over),
        lost_most=max(over),
    )
