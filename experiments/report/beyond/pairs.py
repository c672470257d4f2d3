"""Each subset in the model that never met it and in those that did."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from statistics import fmean
from typing import Any

import numpy as np

from bhc.errors import BhcError

from ..bootstrap import Estimate, estimate, mean
from .answers import Answer, Case

Subset = tuple[int, ...]


@dataclass(frozen=True)
class Side:
    """One subset in some models, of all seeds."""

    ratios: tuple[float, ...]
    wrong: int
    images: int

    @property
    def inverse(self) -> float:
        """Of its harmonic ratio."""
        return fmean(1 / ratio for ratio in self.ratios)

    @property
    def log_ratio(self) -> float:
        return fmean(log(ratio) for ratio in self.ratios)

    @property
    def error(self) -> float:
        return 100 * self.wrong / self.images


@dataclass(frozen=True)
class Pair:
    """One subset, unseen and seen."""

    classes: Subset
    unseen: Side
    seen: Side

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.unseen, self.seen

    @property
    def log_quotient(self) -> float:
        return self.unseen.log_ratio - self.seen.log_ratio

    @property
    def loss(self) -> float:
        """Percent of the ratio."""
        return float(_as_loss(np.array(self.log_quotient)))

    @property
    def rise(self) -> float:
        """Points of error."""
        return self.unseen.error - self.seen.error


def pairs_of(case: Case) -> list[Pair]:
    """Every subset, over all seeds."""
    found: dict[Subset, tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]] = {}
    for answer in case.answers:
        for subset, (unseen, seen) in _of_one(answer).items():
            sides = found.setdefault(subset, ([], []))
            sides[0].extend(unseen)
            sides[1].extend(seen)
    return [Pair(subset, _side(unseen), _side(seen)) for subset, (unseen, seen) in found.items()]


def _of_one(answer: Answer) -> dict[Subset, tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]]:
    rows: dict[Subset, tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]] = {}
    for fold in answer.value["folds"]:
        for row in fold["subsets"]:
            rows.setdefault(tuple(row["classes"]), ([], []))[row["seen"]].append(row)
    for subset, (unseen, seen) in rows.items():
        if len(unseen) != 1 or len(seen) != len(answer.value["folds"]) - 1:
            raise BhcError(
                f"{answer.path}: {list(subset)} is unseen in {len(unseen)} models and seen in {len(seen)}",
                hint="every subset is held out by one model and met by all others",
            )
    return rows


def _side(rows: Sequence[Mapping[str, Any]]) -> Side:
    return Side(
        tuple(row["ratio"] for row in rows), sum(row["wrong"] for row in rows), sum(row["images"] for row in rows)
    )


def ratio_loss(pairs: Sequence[Pair]) -> Estimate:
    """Percent: 1 less the geometric mean over subsets of unseen over seen."""
    return estimate(lambda column: _as_loss(column.mean(-1)), [pair.log_quotient for pair in pairs])


def _as_loss(log_quotient: np.ndarray) -> np.ndarray:
    return 100 * (1 - np.exp(log_quotient))


def error_loss(pairs: Sequence[Pair]) -> Estimate:
    """Points: the mean over subsets of unseen less seen."""
    return estimate(mean, [pair.rise for pair in pairs])


def harmonic_loss(pairs: Sequence[Pair]) -> Estimate:
    """Percent: 1 less the harmonic ratio of all unseen over that of all seen."""
    columns = [pair.unseen.inverse for pair in pairs], [pair.seen.inverse for pair in pairs]
    return estimate(lambda unseen, seen: 100 * (1 - seen.mean(-1) / unseen.mean(-1)), *columns)


def harmonic_ratio(sides: Sequence[Side]) -> Estimate:
    return estimate(lambda column: 1 / column.mean(-1), [side.inverse for side in sides])


def pooled_error(sides: Sequence[Side]) -> Estimate:
    """Percent, over all images of all subsets."""
    columns = [side.wrong for side in sides], [side.images for side in sides]
    return estimate(lambda wrong, images: 100 * wrong.sum(-1) / images.sum(-1), *columns)
