"""Priors and range coding as ``docs/format.md`` specifies them, for the second reader: whole numbers alone."""

from bisect import bisect_right
from math import isqrt
from typing import Any

STATE = (1 << 64) - 1  # the largest 64-bit number
PRECISION = 24
TOTAL = 1 << 16
ONE = 1 << 31


def prior_weights(prior: list[Any]) -> tuple[int, list[int]]:
    """The lowest code and the relative weights of the codes from there on."""
    kind, lowest, *rest = prior
    if kind == 0:
        return lowest, [1] * rest[0]
    if kind == 1:
        count, shape, centre = rest
        curve = bell_curve(shape, count)
        return lowest, [curve[abs(place - centre)] for place in range(count)]
    if kind == 2:
        count, pairs = rest
        levels = [level for pair in pairs for level in (pair >> 4, pair & 15)][:count]
        return lowest, [power(8 * level - 7) if level else 0 for level in levels]
    return lowest, [power(level) if level else 0 for level in rest[0]]


def bell_curve(shape: int, count: int) -> list[int]:
    width = isqrt(isqrt(256 << (shape % 40)))
    laplace = shape < 40
    ratio = ONE * width // (width + 16) if laplace else ONE * width * width // (width * width + 128)
    narrowing = ONE if laplace else ratio
    curve = [ONE]
    while len(curve) < count:
        curve.append(curve[-1] * ratio // ONE)
        ratio = ratio * narrowing // ONE * narrowing // ONE
    return curve


def power(level: int) -> int:
    """``floor(2^(8 + (level - 1) / 16))``, by four square roots."""
    number = 1 << (128 + level - 1)
    for _ in range(4):
        number = isqrt(number)
    return number


def boundaries(weights: list[int]) -> list[int]:
    """Where each symbol's share of the 24-bit interval begins, and its end."""
    count, total = len(weights), sum(weights)
    frequencies = [1 + weight * (TOTAL - count) // total for weight in weights]
    frequencies[weights.index(max(weights))] += TOTAL - sum(frequencies)
    result, before = [], 0
    for place, frequency in enumerate(frequencies):
        result.append(before * ((1 << PRECISION) - count) // TOTAL + place)
        before += frequency
    return [*result, 1 << PRECISION]


class RangeDecoder:
    """Symbols from words."""

    def __init__(self, stream: bytes) -> None:
        self.stream, self.at = stream, 0
        self.lower, self.range = 0, STATE
        self.point = self.word() << 32
        self.point |= self.word()

    def word(self) -> int:
        """The next four bytes; behind the end there are zeros."""
        word = self.stream[self.at : self.at + 4]
        self.at += 4
        return int.from_bytes(word + bytes(4 - len(word)), "big")

    def symbols(self, count: int, weights: list[int]) -> list[int]:
        if len(weights) == 1:
            return [0] * count
        edges = boundaries(weights)
        return [self.symbol(edges) for _ in range(count)]

    def symbol(self, edges: list[int]) -> int:
        scale = self.range >> PRECISION
        quantile = ((self.point - self.lower) & STATE) // scale
        if quantile >= 1 << PRECISION:
            raise ValueError("the stream is damaged")
        symbol = bisect_right(edges, quantile) - 1
        self.lower = (self.lower + scale * edges[symbol]) & STATE
        self.range = scale * (edges[symbol + 1] - edges[symbol])
        if self.range < 1 << 32:
            self.lower = (self.lower << 32) & STATE
            self.range <<= 32
            self.point = (self.point << 32) & STATE | self.word()
        return symbol


class RangeEncoder:
    """Words from symbols. The words written so far and the state are one whole number, so carries need no care."""

    def __init__(self) -> None:
        self.lower, self.range, self.words = 0, STATE, 0

    def write(self, symbols: list[int], weights: list[int]) -> None:
        edges = boundaries(weights)
        for symbol in symbols if len(weights) > 1 else []:
            scale = self.range >> PRECISION
            self.lower += scale * edges[symbol]
            self.range = scale * (edges[symbol + 1] - edges[symbol])
            if self.range < 1 << 32:
                self.lower, self.range, self.words = self.lower << 32, self.range << 32, self.words + 1

    def to_bytes(self) -> bytes:
        if self.range == STATE:
            return b""
        top = (self.lower + (1 << 32) - 1) >> 32
        return top.to_bytes(4 * (self.words + 1), "big").rstrip(b"\0")
