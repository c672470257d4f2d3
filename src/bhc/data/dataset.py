"""Labelled examples, images most often, and the three splits of them that make a data set."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from bhc.data.vocabulary import Vocabulary
from bhc.errors import BhcError

# What an example is stored as: its type, and its dimensions with that of the batch.
STORED = {
    torch.uint8: ("(N, C, H, W) uint8", 4),  # pixels
    torch.int16: ("(N, C, T) int16", 3),  # samples of sound
    torch.int32: ("(N, T) int32", 2),  # words of a vocabulary
}
FULL_SCALE_OF_SOUND = 32_768.0


@dataclass(frozen=True)
class Split:
    """Examples with their labels: pixels, samples of sound, or the numbers of words."""

    inputs: Tensor  # (N, C, H, W) uint8, (N, C, T) int16 or (N, T) int32
    labels: Tensor  # (N,) int64
    sources: Tensor | None = None  # (N,) int64, where each is from: who speaks

    def __post_init__(self) -> None:
        form, dimensions = STORED.get(self.inputs.dtype, ("", 0))
        if self.inputs.ndim != dimensions:
            allowed = form or " or ".join(form for form, _ in STORED.values())
            raise BhcError(f"inputs must be {allowed}, not {_described(self.inputs)}")
        for name, numbers in (("labels", self.labels), ("sources", self.sources)):
            if numbers is None:
                continue
            if numbers.ndim != 1 or numbers.dtype != torch.int64:
                raise BhcError(f"{name} must be (N,) int64, not {_described(numbers)}")
            if len(self.inputs) != len(numbers):
                raise BhcError(f"{len(self.inputs):,} inputs cannot have {len(numbers):,} {name}")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def images(self) -> Tensor:
        """The old name of ``inputs``."""
        warnings.warn("Split.images is Split.inputs now", DeprecationWarning, stacklevel=2)
        return self.inputs

    @cached_property
    def present(self) -> tuple[int, ...]:
        """The classes of which there are images."""
        return tuple(self.labels.unique().tolist())

    def places_of(self, classes: Iterable[int]) -> Tensor:
        """Where the images of these classes are."""
        wanted = torch.zeros(int(self.labels.max()) + 1, dtype=torch.bool, device=self.labels.device)
        wanted[list(classes)] = True
        return wanted[self.labels].nonzero().flatten()

    def restricted_to(self, classes: Iterable[int]) -> "Split":
        """Keep the images of these classes, in their order and with their labels as they are."""
        wanted = sorted(set(classes))
        if not wanted or not set(wanted) <= set(self.present):
            raise BhcError(
                f"cannot restrict the images to the classes {wanted}; there are images of {list(self.present)}",
                hint="name one or more of the classes there are",
            )
        if wanted == list(self.present):
            return self
        return self.at(self.places_of(wanted))

    def from_sources(self, sources: Iterable[int]) -> "Split":
        """Keep the examples from these sources, in their order."""
        wanted = sorted(set(sources))
        present = [] if self.sources is None else self.sources.unique().tolist()
        if self.sources is None or not wanted or not set(wanted) <= set(present):
            raise BhcError(
                f"there are no examples from the sources {wanted}; there are those of {present}",
                hint="name one or more of the sources there are",
            )
        return self.at(torch.isin(self.sources, torch.tensor(wanted, device=self.sources.device)))

    def at(self, places: Tensor | slice) -> "Split":
        """The examples at some places: a mask, numbers, or a slice."""
        if isinstance(places, Tensor) and places.dtype == torch.int64:
            inputs = self.inputs.index_select(0, places)  # several times faster
        else:
            inputs = self.inputs[places]
        return Split(inputs, self.labels[places], None if self.sources is None else self.sources[places])

    def to(self, device: torch.device) -> "Split":
        """The same examples on a device."""
        return Split(
            self.inputs.to(device),
            self.labels.to(device),
            None if self.sources is None else self.sources.to(device),
        )


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
            shape = tuple(split.inputs.shape[1:])
            if shape != self.image_shape:
                raise BhcError(f"the {part} images are {shape}, the train images {self.image_shape}")
            if ((split.labels < 0) | (split.labels >= self.num_classes)).any():
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
        train, validation, test = others
        names = tuple(other for other in self.source_names if other != name)
        left_out = Split(torch.cat([each.inputs for each in own]), torch.cat([each.labels for each in own]))
        rest = replace(
            self,
            name=f"{self.name}-without-{name}",
            source_names=names,
            train=train,
            validation=validation,
            test=test,
        )
        return rest, left_out

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def full_scale(self) -> float:
        """The largest value: 255 where pixels use a byte whole, 16 for the small digits; of texts the last word."""
        if self.vocabulary is not None:
            return float(len(self.vocabulary) - 1)
        return FULL_SCALE_OF_SOUND if self.train.inputs.dtype == torch.int16 else float(self.train.inputs.max())

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Of one example: channels, height and width; channels and samples; or the most words."""
        return tuple(self.train.inputs.shape[1:])


def _apart(split: Split, source: int) -> tuple[Split, Split]:
    """What other sources gave, those after this one moved up, and what it gave itself."""
    assert split.sources is not None
    others = split.at(split.sources != source)
    assert others.sources is not None
    return replace(others, sources=others.sources - (others.sources > source).long()), split.at(split.sources == source)


def _described(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype}".replace("torch.", "")
