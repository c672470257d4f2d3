"""How the files of a data set become its splits. A layout always gives train, validation, test."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from bhc.data.dataset import Split
from bhc.data.idx import parse_idx
from bhc.data.rows import parse_rows
from bhc.data.table import parse_table
from bhc.data.vocabulary import Vocabulary
from bhc.errors import BhcError

TRAIN_IMAGES = "train-images-idx3-ubyte.gz"
TRAIN_LABELS = "train-labels-idx1-ubyte.gz"
TEST_IMAGES = "t10k-images-idx3-ubyte.gz"
TEST_LABELS = "t10k-labels-idx1-ubyte.gz"
DIGITS_TABLE = "digits.csv.gz"
TRAIN_ROWS = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_ROWS = "test_batch.bin"


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


@dataclass(frozen=True)
class IdxLayout:
    """The four files of MNIST: the last ``validation`` images of the training file are held back."""

    validation: int

    def splits(self, contents: Mapping[str, bytes]) -> Splits:
        known = _idx_split(contents, TRAIN_IMAGES, TRAIN_LABELS)
        train, validation = _end_held_back(known, self.validation, where=TRAIN_IMAGES)
        return Splits(train, validation, _idx_split(contents, TEST_IMAGES, TEST_LABELS))


@dataclass(frozen=True)
class RowsLayout:
    """The six files of CIFAR-10: the last ``validation`` images of the fifth are held back."""

    validation: int

    def splits(self, contents: Mapping[str, bytes]) -> Splits:
        known = _rows_split(contents, TRAIN_ROWS)
        train, validation = _end_held_back(known, self.validation, where=", ".join(TRAIN_ROWS))
        return Splits(train, validation, _rows_split(contents, (TEST_ROWS,)))


@dataclass(frozen=True)
class TableLayout:
    """One table, a row with the pixels and then the label: train first, validation next, the rest is test."""

    image_size: tuple[int, int]
    train: int
    validation: int

    def splits(self, contents: Mapping[str, bytes]) -> Splits:
        height, width = self.image_size
        values = parse_table(contents[DIGITS_TABLE], columns=height * width + 1, where=DIGITS_TABLE)
        known = self.train + self.validation
        if len(values) <= known:
            raise BhcError(f"{DIGITS_TABLE} has {len(values):,} images; over {known:,} are needed")
        every = _split(values[:, :-1].reshape(-1, height, width), values[:, -1])
        return Splits(_part(every, 0, self.train), _part(every, self.train, known), _part(every, known, len(every)))


def _idx_split(contents: Mapping[str, bytes], images: str, labels: str) -> Split:
    return _split(
        parse_idx(contents[images], dimensions=3, where=images),
        parse_idx(contents[labels], dimensions=1, where=labels),
    )


def _rows_split(contents: Mapping[str, bytes], names: Sequence[str]) -> Split:
    images, labels = zip(*(parse_rows(contents[name], where=name) for name in names), strict=True)
    return Split(
        torch.from_numpy(np.concatenate(images)),
        torch.from_numpy(np.concatenate(labels).astype(np.int64)),
    )


def _end_held_back(known: Split, validation: int, *, where: str) -> tuple[Split, Split]:
    train = len(known) - validation
    if train < 1:
        raise BhcError(f"{where} has {len(known):,} images; over {validation:,} are needed")
    return _part(known, 0, train), _part(known, train, len(known))


def _split(
    images: NDArray[np.uint8],  # (N, H, W)
    labels: NDArray[np.uint8],  # (N,)
) -> Split:
    return Split(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels.astype(np.int64)))


def _part(split: Split, start: int, stop: int) -> Split:
    return split.at(slice(start, stop))
