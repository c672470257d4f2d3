"""Labelled images, and the three splits of them that make a data set."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from bhc.errors import BhcError


@dataclass(frozen=True)
class Split:
    """Images with their labels."""

    images: Tensor  # (N, C, H, W) uint8
    labels: Tensor  # (N,) int64

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.dtype != torch.uint8:
            raise BhcError(f"images must be (N, C, H, W) uint8, not {_described(self.images)}")
        if self.labels.ndim != 1 or self.labels.dtype != torch.int64:
            raise BhcError(f"labels must be (N,) int64, not {_described(self.labels)}")
        if len(self.images) != len(self.labels):
            raise BhcError(f"{len(self.images):,} images cannot have {len(self.labels):,} labels")

    def __len__(self) -> int:
        return len(self.labels)

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
        kept = self.places_of(wanted)
        return Split(self.images.index_select(0, kept), self.labels[kept])


@dataclass(frozen=True)
class DataSet:
    """A named data set; class ``c`` is called ``class_names[c]``."""

    name: str
    class_names: tuple[str, ...]
    train: Split
    validation: Split
    test: Split

    def __post_init__(self) -> None:
        for part, split in (("train", self.train), ("validation", self.validation), ("test", self.test)):
            shape = tuple(split.images.shape[1:])
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
        images, labels = self.train.images, self.train.labels
        return replace(self, train=Split(images[:kept], labels[:kept])), Split(images[kept:], labels[kept:])

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def full_scale(self) -> float:
        """The brightest pixel: 255 where a byte is used whole, 16 for the small digits."""
        return float(self.train.images.max())

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        _, channels, height, width = self.train.images.shape
        return channels, height, width


def _described(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype}".replace("torch.", "")
