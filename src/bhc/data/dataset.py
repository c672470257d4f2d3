"""A data set: three splits of labelled examples, and what their numbers stand for; how its files become them.

A user's own data comes in the same three parts, of which two may be missing.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from bhc.errors import BhcError
from bhc.examples import Split, Vocabulary

FULL_SCALE_OF_SOUND = 32_768.0


@dataclass(frozen=True)
class DataSet:
    """A named data set; class ``c`` is called ``class_names[c]``."""

    name: str
    class_names: tuple[str, ...]
    train: Split
    validation: Split
    test: Split
    source_names: tuple[str, ...] = ()  # source ``s`` is called ``source_names[s]``
    vocabulary: Vocabulary | None = None  # of texts: which word each number stands for

    def __post_init__(self) -> None:
        for part, split in (("train", self.train), ("validation", self.validation), ("test", self.test)):
            shape = tuple(split.tensor.shape[1:])
            if shape != self.image_shape:
                raise BhcError(f"the {part} images are {shape}, the train images {self.image_shape}")
            if ((split.known_labels < 0) | (split.known_labels >= self.num_classes)).any():
                raise BhcError(f"the {part} labels must be 0..{self.num_classes - 1}, one for each class name")

    def held_out(self, count: int) -> tuple["DataSet", Split]:
        """The data set without the last ``count`` training images, and those: new to whatever learns from the rest."""
        kept = len(self.train) - count
        if not 0 < kept < len(self.train):
            raise BhcError(
                f"cannot hold {count:,} of {len(self.train):,} training images out",
                hint=f"hold out 1 to {len(self.train) - 1:,}, and leave enough to learn from",
            )
        return replace(self, train=self.train.at(slice(kept))), self.train.at(slice(kept, None))

    def without_source(self, name: str) -> tuple["DataSet", Split]:
        """The data set without one source, those after it moved up, and all that it gave, in any split."""
        if name not in self.source_names:
            known = ", ".join(self.source_names) or "none"
            raise BhcError(f"{self.name} has no source {name!r}", hint=f"its sources are: {known}")
        place = self.source_names.index(name)
        others, own = zip(*(_apart(split, place) for split in (self.train, self.validation, self.test)), strict=True)
        names = tuple(other for other in self.source_names if other != name)
        left_out = Split(torch.cat([each.tensor for each in own]), torch.cat([each.known_labels for each in own]))
        parts = dict(zip(("train", "validation", "test"), others, strict=True))
        return replace(self, name=f"{self.name}-without-{name}", source_names=names, **parts), left_out

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def full_scale(self) -> float:
        """The largest value: 255 where pixels use a byte whole, 16 for the small digits; of texts the last word."""
        if self.vocabulary is not None:
            return float(len(self.vocabulary) - 1)
        return FULL_SCALE_OF_SOUND if self.train.tensor.dtype == torch.int16 else float(self.train.tensor.max())

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Of one example: channels, height and width; channels and samples; or the most words."""
        return tuple(self.train.tensor.shape[1:])


def _apart(split: Split, source: int) -> tuple[Split, Split]:
    """What other sources gave, those after this one moved up, and what it gave itself."""
    assert split.sources is not None
    others = split.at(split.sources != source)
    assert others.sources is not None
    return replace(others, sources=others.sources - (others.sources > source).long()), split.at(split.sources == source)


@dataclass(frozen=True)
class Splits:
    """The three splits, and what their numbers stand for where that is not said by the data set's recipe."""

    train: Split
    validation: Split
    test: Split
    source_names: tuple[str, ...] = ()
    vocabulary: Vocabulary | None = None


class Layout(Protocol):
    """The way from decompressed files to splits."""

    def splits(self, contents: Mapping[str, bytes]) -> Splits:
        """Give the train, the validation and the test split, always the same ones."""


T = TypeVar("T")
SET_ASIDE = 10  # one in so many examples


@dataclass(frozen=True)
class DatasetSplits(Generic[T]):
    """The parts of a user's own data; class ``c`` is called ``classes[c]``, where classes have names."""

    train: T
    validation: T
    test: T | None
    classes: tuple[str, ...]
    set_aside: bool = False  # whether the validation part was taken from the train part, for want of one
    calibration: T | None = None  # examples that nothing has learned from, and that guarantees rest on


def places_set_aside(
    keys: Iterable[bytes],
    labels: NDArray[np.int64],  # (N,)
    *,
    names: Sequence[str] = (),
) -> NDArray[np.bool_]:  # (N,)
    """Which training examples become the validation part where there is none: a tenth of each class, at least one.

    In each class they are those whose keys have the smallest SHA-256. A key says what an example is, and not where it
    stands, so that the same examples are set aside in any order, on any machine.
    """
    hashes = [hashlib.sha256(key).digest() for key in keys]
    aside = np.zeros(len(labels), dtype=np.bool_)
    order = np.argsort(labels, kind="stable")
    for places in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1):
        if len(places) < 2:
            label = labels[places[0]]
            who = f"class {names[label] if names else label} has" if len(labels) > 1 else "there is"
            raise BhcError(
                f"{who} one training example, and no validation part is given",
                hint="give a validation part, or more examples: a tenth of each class is set aside, at least one",
            )
        aside[sorted(places, key=hashes.__getitem__)[: max(1, len(places) // SET_ASIDE)]] = True
    return aside
