"""A data set: three splits of labelled examples, and what their numbers stand for; how its files become them.

A user's own data comes in the same three parts, of which two may be missing. Arrays in one ``.npz`` file are read
without pickle and within bounds.
"""

import hashlib
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

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


LARGEST = 4 << 30  # bytes of all arrays together
_SLACK = 1 << 20  # bytes of names and headers
_PARTS = ("", "_validation", "_test")
_CLASSES = "classes"
_NAMES = [*(f"{letter}{part}" for part in _PARTS for letter in "xy"), _CLASSES]
_HINT = "write it with numpy.savez(path, x=inputs, y=targets); beside them it may have " + ", ".join(_NAMES[2:])
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}

Pair = tuple[Tensor, Tensor]


def read_npz(path: Path | str, *, limit: int = LARGEST) -> DatasetSplits[Pair]:
    """Read inputs and targets from an ``.npz`` file, as ``numpy.savez(path, x=inputs, y=targets)`` writes it.

    ``x`` and ``y`` are the train part; ``x_validation`` with ``y_validation`` and ``x_test`` with ``y_test`` are the
    others, and ``classes`` the names of the classes. Inputs keep their type, and so do targets, except that one whole
    number an example is a label, and becomes int64. Without a validation part a tenth of the train part is set aside,
    of each class where there are labels: by what the inputs are, so in any order the same.

    The arrays may have ``limit`` bytes together, which is looked at before one is decompressed. Objects are refused,
    as only pickle could read them.

    >>> splits = bhc.data.read_npz("measurements.npz")  # doctest: +SKIP
    >>> bhc.fit(model, splits.train, splits.validation)  # doctest: +SKIP
    """
    where = str(path)
    arrays = _read(Path(path), limit=limit, needed=("x", "y"))
    pairs = {part: _pair(arrays, part, where=where) for part in _PARTS if _has(arrays, part, where=where)}
    for part, pair in pairs.items():
        _check_alike(pairs[""], pair, part, where=where)
    classes = _classes(arrays.get(_CLASSES), where=where)
    for part, (_, targets) in pairs.items():
        _check_labels(targets, part, classes, where=where)
    train, validation = pairs[""], pairs.get("_validation")
    if validation is not None:
        return DatasetSplits(train, validation, pairs.get("_test"), classes, set_aside=False)
    rest, aside = _places_apart(train[0], train[1] if _are_labels(train[1]) else None, classes)
    train, validation = ((_at(train[0], places), _at(train[1], places)) for places in (rest, aside))
    return DatasetSplits(train, validation, pairs.get("_test"), classes, set_aside=True)


def read_npz_inputs(path: Path | str, *, limit: int = LARGEST) -> DatasetSplits[Tensor]:
    """Read the inputs of an ``.npz`` file as ``read_npz`` does, for a network that is to be imitated.

    No targets are needed, and those that are there are passed over.

    >>> splits = bhc.data.read_npz_inputs("measurements.npz")  # doctest: +SKIP
    >>> bhc.fit(model, splits.train, splits.validation, task=bhc.Imitation())  # doctest: +SKIP
    """
    where = str(path)
    arrays = _read(Path(path), limit=limit, needed=("x",))
    parts = {part: _tensor(arrays[f"x{part}"], where=f"x{part} in {where}") for part in _PARTS if f"x{part}" in arrays}
    for part, inputs in parts.items():
        _check_alike((parts[""],), (inputs,), part, where=where)
    classes = _classes(arrays.get(_CLASSES), where=where)
    if "_validation" in parts:
        return DatasetSplits(parts[""], parts["_validation"], parts.get("_test"), classes, set_aside=False)
    rest, aside = _places_apart(parts[""], None, ())
    return DatasetSplits(_at(parts[""], rest), _at(parts[""], aside), parts.get("_test"), classes, set_aside=True)


def _read(path: Path, *, limit: int, needed: Sequence[str]) -> dict[str, NDArray[Any]]:
    if not path.exists():
        raise BhcError(f"there is no file {path}", hint=_HINT)
    try:
        if path.stat().st_size > limit + _SLACK:
            raise _too_large(path, path.stat().st_size, limit)
        with zipfile.ZipFile(path) as archive:
            members = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
            _check_names(list(members), needed, where=str(path))
            total = sum(entry.file_size for entry in members.values())
            if total > limit + _SLACK:
                raise _too_large(path, total, limit)
            return {name: _array(archive, entry, where=f"{name} in {path}") for name, entry in members.items()}
    # A method of compression that is not there raises a RuntimeError, as does a password.
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise BhcError(f"{path} cannot be read as an .npz file of arrays: {error}", hint=_HINT) from error


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, *, where: str) -> NDArray[Any]:
    """One array, whose header is held against the size of its member before room is made for it."""
    with archive.open(entry) as file:
        version = npy.read_magic(file)
        if version not in _HEADERS:
            raise BhcError(f"{where} has columns with names, or is of a later version of numpy", hint=_HINT)
        shape, _, dtype = _HEADERS[version](file)
        if dtype.hasobject:
            raise BhcError(
                f"{where} holds Python objects, which only pickle could read, and that may run anything",
                hint="make it an array of numbers of one shape before it is saved",
            )
        if min(shape, default=1) < 1:
            raise BhcError(f"{where} is empty: its shape is {shape}", hint="leave a part out that has no examples")
        if file.tell() + prod(shape) * dtype.itemsize != entry.file_size:
            raise BhcError(f"{where} is damaged: its size is not that of {shape} {dtype}", hint=_HINT)
    with archive.open(entry) as file:
        return npy.read_array(file, allow_pickle=False)


def _too_large(path: Path, size: int, limit: int) -> BhcError:
    return BhcError(
        f"{path} has {size:,} bytes of arrays; {limit:,} are read", hint="read_npz(path, limit=...) takes more"
    )


def _check_names(names: list[str], needed: Sequence[str], *, where: str) -> None:
    lacking = [name for name in needed if name not in names]
    if lacking:
        hint = f"{_HINT}; without targets: bhc.data.read_npz_inputs, --labels none" if lacking == ["y"] else _HINT
        raise BhcError(f"{where} lacks {' and '.join(lacking)}; it has {', '.join(sorted(names)[:10])}", hint=hint)
    others = [name for name in names if name not in _NAMES]
    if others:
        raise BhcError(f"{where} has arrays of other names: {', '.join(sorted(others)[:10])}", hint=_HINT)


def _has(arrays: Mapping[str, NDArray[Any]], part: str, *, where: str) -> bool:
    x, y = f"x{part}", f"y{part}"
    if (x in arrays) != (y in arrays):
        given, lacking = (x, y) if x in arrays else (y, x)
        raise BhcError(f"{where} has {given} without {lacking}", hint="give both, or neither")
    return x in arrays


def _pair(arrays: Mapping[str, NDArray[Any]], part: str, *, where: str) -> Pair:
    x, y = (_tensor(arrays[f"{letter}{part}"], where=f"{letter}{part} in {where}") for letter in "xy")
    if len(x) != len(y):
        raise BhcError(f"{where} has {len(x):,} examples in x{part} and {len(y):,} in y{part}")
    return x, y.long() if _are_labels(y) else y


def _tensor(array: NDArray[Any], *, where: str) -> Tensor:
    try:
        # In the byte order of this machine, which is the one that torch knows.
        tensor = torch.from_numpy(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")))
    except TypeError as error:
        hint = "numbers or truth values are read; encode texts and dates as numbers"
        raise BhcError(f"{where} is of type {array.dtype}", hint=hint) from error
    if not array.ndim:
        raise BhcError(f"{where} is one number", hint="its first dimension is that of the examples")
    return tensor


def _are_labels(targets: Tensor) -> bool:
    """Whether targets are one whole number an example."""
    return targets.ndim == 1 and not targets.is_floating_point() and not targets.is_complex()


def _check_alike(train: Sequence[Tensor], other: Sequence[Tensor], part: str, *, where: str) -> None:
    for letter, expected, found in zip("xy", train, other, strict=False):
        if (expected.shape[1:], expected.dtype) != (found.shape[1:], found.dtype):
            raise BhcError(
                f"an example of {letter}{part} in {where} is {_one(found)}, and of {letter} {_one(expected)}"
            )


def _one(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape[1:])} {str(tensor.dtype).removeprefix('torch.')}"


def _classes(array: NDArray[Any] | None, *, where: str) -> tuple[str, ...]:
    if array is None:
        return ()
    if array.ndim != 1 or array.dtype.kind != "U" or len(set(array.tolist())) < len(array):
        raise BhcError(f"{_CLASSES} in {where} is {array.shape} {array.dtype}", hint="give a list of names, each once")
    return tuple(array.tolist())


def _check_labels(targets: Tensor, part: str, classes: tuple[str, ...], *, where: str) -> None:
    if classes and (not _are_labels(targets) or targets.min() < 0 or targets.max() >= len(classes)):
        problem = f"y{part} in {where} is not made of labels from 0 to {len(classes) - 1}, one for each class"
        raise BhcError(problem, hint=f"leave {_CLASSES} out where the targets are not labels")


def _places_apart(
    inputs: Tensor, labels: Tensor | None, classes: tuple[str, ...]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which examples are learned from, and which are set aside."""
    groups = np.zeros(len(inputs), dtype=np.int64) if labels is None else labels.numpy()
    aside = places_set_aside((row.tobytes() for row in inputs.numpy()), groups, names=classes)
    return ~aside, aside


def _at(tensor: Tensor, places: NDArray[np.bool_]) -> Tensor:
    return torch.from_numpy(tensor.numpy()[places])  # torch cannot index by place in all types
