"""How the files of a data set become its splits: IDX files, rows of bytes, tables of text."""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from bhc.errors import BhcError
from bhc.examples import Split, Vocabulary

_UNSIGNED_BYTE = 0x08  # the third byte of the magic number: the type of the elements


def format_idx(array: NDArray[np.uint8]) -> bytes:
    """Write an array of unsigned bytes as the content of an IDX file."""
    magic = struct.pack(">HBB", 0, _UNSIGNED_BYTE, array.ndim)
    return magic + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def parse_idx(content: bytes, *, dimensions: int, where: str) -> NDArray[np.uint8]:
    """Read the content of an IDX file of unsigned bytes; the array is the caller's own copy.

    The magic number, the number of dimensions and the exact length are checked.
    """
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise BhcError(
            f"{where} has {len(content):,} bytes; the header of an IDX file of "
            f"{dimensions} dimension(s) alone has {header}"
        )
    zero, kind, found = struct.unpack_from(">HBB", content)
    if zero != 0 or kind != _UNSIGNED_BYTE:
        raise BhcError(
            f"{where} starts with 0x{content[:4].hex()}, which is not the magic number "
            f"of an IDX file of unsigned bytes: 0x000008{dimensions:02x}"
        )
    if found != dimensions:
        raise BhcError(f"{where} has {found} dimension(s) instead of {dimensions}")
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    expected = header + math.prod(shape)
    if len(content) != expected:
        raise BhcError(
            f"{where} has {len(content):,} bytes; {expected:,} are expected for its dimensions "
            + " x ".join(str(length) for length in shape)
        )
    # Copied because the bytes are read-only, which a tensor on top of them could not honour.
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape).copy()


IMAGE_SHAPE = (3, 32, 32)
PIXELS = prod(IMAGE_SHAPE)


def format_rows(
    images: NDArray[np.uint8],  # (N, 3072)
    labels: NDArray[np.uint8],  # (N,)
) -> bytes:
    """Write labels and pixels as the content of a binary file."""
    return np.concatenate([labels[:, None], images], axis=1).tobytes()


def parse_rows(content: bytes, *, where: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read the content of a binary file: images (N, 3, 32, 32) and labels (N,)."""
    if not content or len(content) % (1 + PIXELS):
        raise BhcError(f"{where} has {len(content):,} bytes; expected are whole rows of {1 + PIXELS:,} bytes")
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, 1 + PIXELS)
    return rows[:, 1:].reshape(-1, *IMAGE_SHAPE), rows[:, 0]


# A block and its temporaries stay in the processor's cache: faster than one long pass, and far less memory.
_BLOCK = 1 << 18
_LONGEST = 3  # digits of the largest value, 255
_COMMA, _RETURN, _NEWLINE = b",\r\n"


def parse_table(content: bytes, *, columns: int, where: str) -> NDArray[np.uint8]:
    """Read whole numbers 0..255 into an array (rows, columns).

    Lines end in ``\\n`` or ``\\r\\n``, and a header line is not part of ``content``. It is meant for
    tables of a hundred megabytes, which it reads in about a second. What it checks is the characters,
    the range and the number of values; a wrong order of separators is left to the file's checksum.
    """
    # The commas in front let the first value look back; the newline ends a last line that lacks one.
    text = np.frombuffer(b"," * _LONGEST + content + b"\n", dtype=np.uint8)
    blocks = [
        _values(text[start - _LONGEST : start + _BLOCK], where=where) for start in range(_LONGEST, len(text), _BLOCK)
    ]
    values = np.concatenate(blocks)
    if values.size == 0 or values.size % columns:
        raise BhcError(f"{where} holds {values.size:,} values; expected whole rows of {columns:,} values")
    return values.reshape(-1, columns)


def _values(text: NDArray[np.uint8], *, where: str) -> NDArray[np.uint8]:
    """Give the values that end right before a separator of ``text``, its first three bytes aside."""
    digit = text - np.uint8(ord("0"))  # what is no digit wraps around to far above 9
    is_digit = digit <= 9
    separates = (text == _COMMA) | (text == _NEWLINE) | (text == _RETURN)
    if not (is_digit | separates).all():
        raise BhcError(f"{where} is not a table of whole numbers: only digits, commas and line ends may occur")
    # At every byte, what the one, two or three digits right before it are worth.
    two = is_digit[2:-1] & is_digit[1:-2]
    three = two & is_digit[:-3]
    hundreds = digit[:-3] * three.view(np.uint8)
    values = digit[2:-1] + 10 * (digit[1:-2] * two.view(np.uint8)) + 100 * hundreds
    # 256..299 have wrapped around to 0..43; four digits in a row are too many.
    too_large = (hundreds > 2) | ((hundreds == 2) & (values < 200)) | (three & is_digit[3:])
    if too_large.any():
        raise BhcError(f"{where} holds a value above 255")
    return values[is_digit[2:-1] & ~is_digit[3:]]


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
