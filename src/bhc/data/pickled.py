"""The python version of CIFAR-10: pickles, read without running anything that they name.

A pickle is a program, and unpickling runs it. Three things keep it from doing more than hold data: the
operations are looked through beforehand, the only names it may use are those of an array of bytes, and
behind these names stand objects of ours that note what they are given; nothing of numpy is called.
"""

import io
import pickle
import pickletools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bhc.data.layout import PIXELS, format_rows
from bhc.data.packed import PackedFile
from bhc.errors import BhcError

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
class PickledRows:
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
