"""Few bytes: plain data as the part of CBOR (RFC 8949) that a header needs, in its one shortest form; and whole numbers
as a stream of bytes: range coding under frequency tables (priors) made with whole numbers alone.

A prior is what is expected of a layer's codes before they are read.
Every table adds up to ``TOTAL`` and has no zero in it. Four kinds, from cheap to say to exact:

``Flat``     all codes equally often
``Bell``     falls off from a centre, by one factor (Laplace) or ever faster (Gauss)
``Nibbles``  the frequency of each code, as a power of two in steps of a half
``Bytes``    the same in steps of a sixteenth

Costs are counted in whole numbers too, so every machine makes the same choice and thereby the same file.
"""

import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import isqrt
from typing import Any, ClassVar

import numpy as np

DEEPEST = 12
MOST_VALUES = 1 << 17  # a header of real use has some hundreds, that of a deep transformer tens of thousands
_FLOATS = {25: ">e", 26: ">f", 27: ">d"}  # additional information: struct format
_SIMPLE = {20: False, 21: True, 22: None}
_SIZES = {24: 1, 25: 2, 26: 4, 27: 8}


def dumps(value: Any) -> bytes:
    """The shortest encoding of numbers, text, bytes, lists and dicts; a dict keeps its order."""
    match value:
        case None | bool():
            return bytes([0xE0 | next(code for code, simple in _SIMPLE.items() if simple is value)])
        case int():
            return _head(0, value) if value >= 0 else _head(1, -1 - value)
        case float():
            return _float(value)
        case bytes():
            return _head(2, len(value)) + value
        case str():
            text = value.encode()
            return _head(3, len(text)) + text
        case list() | tuple():
            return _head(4, len(value)) + b"".join(map(dumps, value))
        case dict():
            pairs = b"".join(dumps(key) + dumps(item) for key, item in value.items())
            return _head(5, len(value)) + pairs
    raise TypeError(f"cannot store a {type(value).__name__}")


def loads(content: bytes) -> Any:
    """Read one value that fills ``content``; ValueError for anything else. What it allocates, the bytes contain."""
    value, end = _Reader(content).value(0, 0)
    if end != len(content):
        raise ValueError("bytes follow the header's value")
    return value


def brief(value: Any) -> str:
    """A value for an error message, which must not grow with what a file holds."""
    if isinstance(value, list) and len(value) <= 5 and all(isinstance(part, int | float | None) for part in value):
        return str(value)
    if isinstance(value, list | dict | bytes | str):
        return f"a {type(value).__name__} of {len(value)}"
    return str(value)


def _head(major: int, number: int) -> bytes:
    if number < 24:
        return bytes([major << 5 | number])
    for code, size in _SIZES.items():
        if number < 1 << (8 * size):
            return bytes([major << 5 | code]) + number.to_bytes(size, "big")
    raise ValueError(f"{number} does not fit into eight bytes")


def _float(value: float) -> bytes:
    for code, form in _FLOATS.items():
        try:
            packed = struct.pack(form, value)
        except OverflowError:
            continue
        if struct.unpack(form, packed)[0] == value or code == 27:
            return bytes([0xE0 | code]) + packed
    raise AssertionError("a double fits into eight bytes")


class _Reader:
    def __init__(self, content: bytes) -> None:
        self.content = content
        self.values = 0

    def value(self, at: int, depth: int) -> tuple[Any, int]:
        """The value at a place, and the place after it."""
        self.values += 1
        if depth > DEEPEST or self.values > MOST_VALUES:
            raise ValueError("values are too many, or nested too deeply")
        major, code = divmod(self.bytes(at, 1)[0], 32)
        if major == 7:
            return self.simple(code, at + 1)
        number, at = self.number(code, at + 1)
        if major < 2:
            return (number if major == 0 else -1 - number), at
        # Every byte, letter or item takes a byte of the file or more, so no size can be a lie.
        if number > len(self.content) - at:
            raise ValueError("a value is cut off")
        if major == 2:
            return self.bytes(at, number), at + number
        if major == 3:
            return self.bytes(at, number).decode(), at + number
        if major not in (4, 5):
            raise ValueError(f"an unknown kind of value, {major}")
        items = []
        for _ in range(number * (major - 3)):
            item, at = self.value(at, depth + 1)
            items.append(item)
        return (items if major == 4 else self.pairs(items)), at

    def pairs(self, items: list[Any]) -> dict[Any, Any]:
        keys = items[::2]
        if not all(type(key) in (int, str) for key in keys) or len(set(keys)) < len(keys):  # a bool is an int
            raise ValueError("a key is neither a number nor text, or stands twice")
        return dict(zip(keys, items[1::2], strict=True))

    def number(self, code: int, at: int) -> tuple[int, int]:
        if code < 24:
            return code, at
        if code not in _SIZES:
            raise ValueError(f"an unknown size of a number, {code}")
        return int.from_bytes(self.bytes(at, _SIZES[code]), "big"), at + _SIZES[code]

    def simple(self, code: int, at: int) -> tuple[Any, int]:
        if code in _SIMPLE:
            return _SIMPLE[code], at
        if code not in _FLOATS:
            raise ValueError(f"an unknown simple value, {code}")
        return struct.unpack(_FLOATS[code], self.bytes(at, _SIZES[code]))[0], at + _SIZES[code]

    def bytes(self, at: int, count: int) -> bytes:
        if count > len(self.content) - at:
            raise ValueError("a value is cut off")
        return self.content[at : at + count]


TOTAL = 1 << 16
ONE = 1 << 31  # the largest relative weight of a bell, and 1.0 as its factors count
WIDTHS = 40  # of bells, from a quarter of a code to some two hundred codes
LARGEST_BELL = 1 << 12
BIT = 1 << 8  # costs are counted in 1/256 bit
WORD = 4  # bytes; the coder works in 32-bit words, stored with the highest byte first


class Prior(ABC):
    """Expected frequencies of the codes ``lowest``, ``lowest + 1``, ..."""

    lowest: int

    @property
    @abstractmethod
    def weights(self) -> np.ndarray:
        """Relative frequencies: whole numbers, one a code."""

    @cached_property
    def frequencies(self) -> np.ndarray:
        """The same, adding up to ``TOTAL``."""
        return to_frequencies(self.weights)


@dataclass(frozen=True)
class Counted(Prior):
    """The true counts, where the reader knows them from elsewhere."""

    counts: tuple[int, ...]
    lowest = 0

    @property
    def weights(self) -> np.ndarray:
        return np.array(self.counts, dtype=np.int64)


class StatedPrior(Prior):
    """A prior that the file describes."""

    kind: ClassVar[int]
    count: int  # of different codes

    @abstractmethod
    def to_list(self) -> list[Any]:
        """Plain data, from which ``prior_from_list`` makes the same prior."""


@dataclass(frozen=True)
class Flat(StatedPrior):
    """All codes equally often."""

    lowest: int
    count: int
    kind = 0

    @property
    def weights(self) -> np.ndarray:
        return np.ones(self.count, dtype=np.int64)

    def to_list(self) -> list[Any]:
        return [self.kind, self.lowest, self.count]


@dataclass(frozen=True)
class Bell(StatedPrior):
    """``shape`` below 40 is a Laplace bell, from there on a Gauss bell; see ``bell_curves``."""

    lowest: int
    count: int
    shape: int
    centre: int  # counted from the lowest code
    kind = 1

    @property
    def weights(self) -> np.ndarray:
        return bell_curves(self.count)[self.shape, np.abs(np.arange(self.count) - self.centre)]

    def to_list(self) -> list[Any]:
        return [self.kind, self.lowest, self.count, self.shape, self.centre]


@dataclass(frozen=True)
class Levels(StatedPrior):
    """A level a code, on a scale of powers of two; 0 for a weight of nothing."""

    lowest: int
    levels: tuple[int, ...]

    @property
    def count(self) -> int:  # type: ignore[override]
        return len(self.levels)


class Nibbles(Levels):
    """Levels of 0 to 15, two in a byte: ``2^(level / 2)``."""

    kind = 2

    @property
    def weights(self) -> np.ndarray:
        levels = np.array(self.levels)
        return powers()[np.where(levels > 0, 8 * levels - 7, 0)]

    def to_list(self) -> list[Any]:
        padded = [*self.levels, *[0] * (len(self.levels) % 2)]
        pairs = bytes(16 * first + second for first, second in zip(padded[::2], padded[1::2], strict=True))
        return [self.kind, self.lowest, len(self.levels), pairs]


class Bytes(Levels):
    """Levels of 0 to 255, one in a byte: ``2^(level / 16)``."""

    kind = 3

    @property
    def weights(self) -> np.ndarray:
        return powers()[np.array(self.levels)]

    def to_list(self) -> list[Any]:
        return [self.kind, self.lowest, bytes(self.levels)]


def coding_cost(prior: Prior, counts: np.ndarray) -> int:
    """What the codes, ``counts`` of each, cost under ``prior``, in 1/256 bit."""
    return int((counts * bits_of(prior.frequencies)).sum())


def description_cost(prior: StatedPrior) -> int:
    """What saying the prior costs, in 1/256 bit."""
    return 8 * BIT * len(dumps(prior.to_list()))


def to_frequencies(weights: np.ndarray) -> np.ndarray:
    """``f_i = 1 + floor(w_i (TOTAL - n) / sum w)`` along the last axis; the rest goes to the first largest."""
    count = weights.shape[-1]
    shares = 1 + weights * (TOTAL - count) // weights.sum(-1, keepdims=True)
    rows = shares.reshape(-1, count)
    rows[np.arange(len(rows)), weights.reshape(-1, count).argmax(-1)] += TOTAL - rows.sum(-1)
    return rows.reshape(shares.shape)


def bell_curves(count: int) -> np.ndarray:  # (2 * WIDTHS, count or more)
    """Weights at distance 0, 1, ... from the centre; of width ``m = M / 16``, ``M = floor(4 * 2^(k / 4))``.

    ``w_0 = ONE``, ``w_d = floor(w_(d-1) r_d / ONE)``. Laplace: ``r_d = floor(ONE M / (M + 16))`` throughout.
    Gauss: ``r_1 = g = floor(ONE M^2 / (M^2 + 128))``, ``r_(d+1) = floor(floor(r_d g / ONE) g / ONE)``.
    """
    return _bell_curves(1 << max(count - 1, 1).bit_length())


@cache
def _bell_curves(count: int) -> np.ndarray:
    widths = [isqrt(isqrt(256 << k)) for k in range(WIDTHS)]
    laplace = [ONE * m // (m + 16) for m in widths]
    gauss = [ONE * m * m // (m * m + 128) for m in widths]
    ratio = np.array(laplace + gauss, dtype=np.int64)
    narrowing = np.array([ONE] * WIDTHS + gauss, dtype=np.int64)
    curve = [np.full(2 * WIDTHS, ONE, dtype=np.int64)]
    for _ in range(1, count):
        curve.append(curve[-1] * ratio // ONE)
        ratio = ratio * narrowing // ONE * narrowing // ONE
    return np.stack(curve, axis=1)


@cache
def powers() -> np.ndarray:
    """``floor(2^(8 + (level - 1) / 16))`` for levels 1 to 255, and 0 for level 0."""
    roots = []
    for level in range(1, 256):
        root = 1 << (16 * 8 + level - 1)
        for _ in range(4):
            root = isqrt(root)
        roots.append(root)
    return np.array([0, *roots], dtype=np.int64)


@cache
def _bits_table() -> np.ndarray:
    return 16 * BIT - log2(np.maximum(np.arange(TOTAL + 1), 1))


def bits_of(frequencies: np.ndarray) -> np.ndarray:
    """``-log2(f / TOTAL)`` in 1/256 bit."""
    return _bits_table()[frequencies]


def log2(numbers: np.ndarray) -> np.ndarray:
    """``floor(256 log2 n)`` of whole numbers from 1 to 2^31, by squaring; no floating point."""
    numbers = np.asarray(numbers, dtype=np.int64)
    whole = np.zeros_like(numbers)
    for bit in (16, 8, 4, 2, 1):
        whole += np.where(numbers >> (whole + bit) > 0, bit, 0)
    mantissa = (numbers << 30) >> whole  # 1.0 is 2^30
    result = whole
    for _ in range(8):
        mantissa = (mantissa * mantissa) >> 30
        carry = mantissa >> 31
        mantissa >>= carry
        result = 2 * result + carry
    return result


def encode(parts: Sequence[tuple[np.ndarray, Prior]]) -> bytes:
    """One stream of several parts; zero bytes at its end are left out, the reader puts them back."""
    import constriction

    encoder = constriction.stream.queue.RangeEncoder()
    for codes, prior in parts:
        model = _model(prior)
        if model is not None and codes.size:
            encoder.encode((codes.ravel() - prior.lowest).astype(np.int32), model)
    return encoder.get_compressed().astype(">u4").tobytes().rstrip(b"\0")


class Decoder:
    """Reads the parts of a stream, in order."""

    def __init__(self, content: bytes) -> None:
        import constriction

        words = np.frombuffer(content + bytes(-len(content) % WORD), dtype=">u4")
        self._decoder = constriction.stream.queue.RangeDecoder(words.astype(np.uint32))

    def read(self, count: int, prior: Prior) -> np.ndarray:
        """The next ``count`` codes; ValueError if the stream cannot hold them."""
        model = _model(prior)
        if model is None or count == 0:
            return np.full(count, prior.lowest, dtype=np.int32)
        try:
            return self._decoder.decode(model, count) + np.int32(prior.lowest)
        except (AssertionError, ValueError) as error:
            raise ValueError("the coded numbers are damaged") from error


def _model(prior: Prior) -> Any:
    """The coder's table: exact, for a frequency over 2^16 needs no rounding. None if there is nothing to say."""
    import constriction

    if len(prior.frequencies) == 1:
        return None
    return constriction.stream.model.Categorical(prior.frequencies / TOTAL, perfect=False)
