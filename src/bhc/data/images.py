"""How files of images become splits: IDX files, rows of bytes, tables of text, and pickles, of which nothing is run."""

import io
import pickle
import pickletools
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bhc.data.dataset import Splits
from bhc.data.sources import Form, PackedFile
from bhc.errors import BhcError
from bhc.examples import Split

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
    expected = header + prod(shape)
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
        every = _split(values[:, :-1].reshape(-1, 1, height, width), values[:, -1])
        ends = ((0, self.train), (self.train, known), (known, None))
        train, validation, test = (every.at(slice(*pair)) for pair in ends)
        return Splits(train, validation, test)


def _idx_split(contents: Mapping[str, bytes], images: str, labels: str) -> Split:
    pixels = np.expand_dims(parse_idx(contents[images], dimensions=3, where=images), 1)
    return _split(pixels, parse_idx(contents[labels], dimensions=1, where=labels))


def _rows_split(contents: Mapping[str, bytes], names: Sequence[str]) -> Split:
    images, labels = zip(*(parse_rows(contents[name], where=name) for name in names), strict=True)
    return _split(np.concatenate(images), np.concatenate(labels))


def _end_held_back(known: Split, validation: int, *, where: str) -> tuple[Split, Split]:
    train = len(known) - validation
    if train < 1:
        raise BhcError(f"{where} has {len(known):,} images; over {validation:,} are needed")
    return known.at(slice(train)), known.at(slice(train, None))


def _split(images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> Split:  # (N, C, H, W), (N,)
    return Split(torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64)))


# The python version of CIFAR-10 is pickles. A pickle is a program, and unpickling runs it. Three things keep it from
# doing more than hold data: the operations are looked through beforehand, the only names it may use are those of an
# array of bytes, and behind these names stand objects of ours that note what they are given: numpy is never called.
_RECONSTRUCT, _ARRAY, _TYPE = "_reconstruct", "ndarray", "dtype"
_NAMES = {
    ("numpy.core.multiarray", _RECONSTRUCT),  # as the official files have it
    ("numpy._core.multiarray", _RECONSTRUCT),  # as numpy 2 writes it
    ("numpy", _ARRAY),
    ("numpy", _TYPE),
}
_TUPLES = {"EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
_OPERATIONS = _TUPLES | {
    *("PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1"),
    *("BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINUNICODE", "SHORT_BINUNICODE"),
    *("EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "APPEND", "APPENDS", "GLOBAL", "STACK_GLOBAL"),
    *("REDUCE", "BUILD", "BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET"),
}
_MOST_OPERATIONS = 1 << 17  # an official file has fewer than 50,000
_MOST_TUPLES = 16  # it has 6; tuples of tuples of tuples can take for ever to compare
_SLACK = 1 << 19  # bytes for labels and the names of the pictures


@dataclass(frozen=True)
class PickledRows(Form):
    """A batch as a pickled dictionary: ``data_batch_1`` for what is ``data_batch_1.bin`` elsewhere."""

    def stored_name(self, file: PackedFile) -> str:
        return file.name.removesuffix(".bin")

    def limit(self, file: PackedFile) -> int:
        return file.size + _SLACK

    def content(self, stored: bytes, file: PackedFile, *, where: str) -> bytes:
        content = format_rows(*parse_pickled_rows(stored, where=where))
        file.check(content, where=f"{file.name}, made from {where},")
        return content


def parse_pickled_rows(content: bytes, *, where: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read the images (N, 3072) and the labels (N,) of a pickled batch."""
    try:
        _look_through(content)
        batch = _Reader(io.BytesIO(content), fix_imports=False, encoding="bytes").load()
        # Strings of Python 2 arrive as bytes, those of Python 3 as text.
        entries = {name.decode() if isinstance(name, bytes) else name: value for name, value in batch.items()}
        images, labels = _images(entries["data"]), np.array(_labels(entries["labels"]), dtype=np.uint8)
    except Exception as error:  # a damaged pickle can make its reader raise anything
        why = str(error) if isinstance(error, pickle.UnpicklingError) else f"{type(error).__name__}: {error}"
        raise BhcError(
            f"{where} is no pickled batch of CIFAR-10: {why}",
            hint="replace it by the original, or use the binary version of CIFAR-10",
        ) from error
    if len(images) != len(labels):
        raise BhcError(f"{where} has {len(images):,} images and {len(labels):,} labels")
    return images, labels


def _look_through(content: bytes) -> None:
    """Raise unless every operation is known and harmless; nothing is carried out."""
    tuples = 0
    for count, (operation, argument, _) in enumerate(pickletools.genops(content)):
        tuples += operation.name in _TUPLES
        if operation.name not in _OPERATIONS:
            raise pickle.UnpicklingError(f"it uses the operation {operation.name}")
        # Places in the reader's memory are numbered one after the other; it makes room for the largest number.
        if operation.name == "LONG_BINPUT" and int(argument or 0) > _MOST_OPERATIONS:
            raise pickle.UnpicklingError(f"it uses place {argument:,} of the memory")
        if count >= _MOST_OPERATIONS or tuples > _MOST_TUPLES:
            raise pickle.UnpicklingError("it has more operations than such a batch needs")


class _Reader(pickle.Unpickler):
    """Knows the names that an array of bytes consists of, and no others."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _Name(name)


class _Name:
    """Stands where a pickle names something of numpy."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *arguments: object) -> object:
        if self.name == _RECONSTRUCT:
            return _Array()
        if self.name == _TYPE and arguments and arguments[0] in (b"u1", "u1"):
            return _UnsignedByte()
        raise pickle.UnpicklingError(f"it calls {self.name} for something else than an array of bytes")


class _UnsignedByte:
    """Stands for the type of the elements; the byte order that is set is none."""

    def __setstate__(self, state: object) -> None:
        pass


class _Array:
    """Stands for an array: keeps what would become its shape, type, order and elements."""

    state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


def _images(array: Any) -> NDArray[np.uint8]:  # (N, 3072)
    """The array that was described, if it is one of pictures."""
    match getattr(array, "state", None):
        case (_, (int(rows), int(columns)), _UnsignedByte(), bool(by_column), bytes(elements)):
            if columns == PIXELS and rows * columns == len(elements):
                return np.frombuffer(elements, dtype=np.uint8).reshape(rows, columns, order="F" if by_column else "C")
    raise pickle.UnpicklingError(f"its data is not an array of bytes with {PIXELS:,} columns")


def _labels(labels: Any) -> list[int]:
    if isinstance(labels, list) and all(type(label) is int and 0 <= label <= 255 for label in labels):
        return labels
    raise pickle.UnpicklingError("its labels are not a list of small whole numbers")
