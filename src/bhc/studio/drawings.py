"""Inputs as the studio draws them, whatever they are.

What an input is, nobody says: it is told once for a validation sample, by the shape of an example, its dtype, and what
the network does with it. Every example is then drawn by the scale of the sample, so that they can be compared.

``words``     (T,) whole numbers by which an embedding picks rows: words where a vocabulary knows them.
``image``     (1 or 3, H, W), or (H, W, 3). uint8 are pixels; all else is stretched, channel by channel, to the range of
              99 % of the sample's values, since nobody knows how it was normalised.
``waveform``  (C, T) or (T, C) with one or two channels, of int16 or 1,000 steps or more; (T,) with 1,000 or more.
``series``    (C, T) or (T, C) else. The shorter axis are the channels; the first, where both are equal.
``row``       (F,) else, or a number alone: a row of a table.
``several``   several inputs, each drawn as what it is.
``none``      all else, with the reason in words.

Two axes are told apart by their sizes: (3, 32) are three channels, (28, 28) is an image without channels. They are an
image where they are equal and 8 or more, or both 16 or more and neither more than four times the other. An axis of
size 1 beside two others is left out first, as of (6, 1, 128) and (28, 28, 1); that of (1, H, W) only where one side is
more than 16 times the other, as in recordings and not in pictures.
"""

import base64
import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from bhc.examples import UNKNOWN, AnyVocabulary

LONG = 1000  # steps of a waveform
LEAST_SIDE, USUAL_SIDE, MOST_OBLONG, STRIP = 8, 16, 4, 16  # of images without a channel axis; of what is no image
POINTS, MOST_LINES, MOST_VALUES, MOST_PIXELS = 240, 16, 64, 256  # that go out as JSON
LOOKED_AT, TAIL = 1 << 20, 0.005  # values that tell a range, and the part of them at either end that does not count
GREY, COLOUR = 0, 2
SIGNATURE = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Image:
    """A PNG file in base64, of at most 256 pixels along a side: of larger ones rows and columns are left out."""

    png: str
    kind: Literal["image"] = "image"


@dataclass(frozen=True)
class Lines:
    """At most 16 channels over time, null where not finite, each with the range of 99 % of its values in the sample.

    A line of more than 240 values is the least and the greatest of each of 120 stretches. Other channels are left out.
    """

    kind: Literal["series", "waveform"]
    steps: int
    lines: list[list[float | None]]
    ranges: list[tuple[float, float]]
    left_out: int


@dataclass(frozen=True)
class Words:
    """At most 64 words, or their numbers where no vocabulary knows them; those beyond are left out."""

    words: list[str]
    left_out: int
    kind: Literal["words"] = "words"


@dataclass(frozen=True)
class Row:
    """At most 64 values of a row of a table, null where they are not finite; those beyond are left out.

    Columns have names or numbers. A size is where in the range of its column a value lies, from 0 to 1.
    """

    columns: list[str]
    values: list[float | None]
    sizes: list[float | None]
    left_out: int
    kind: Literal["row"] = "row"


@dataclass(frozen=True)
class Several:
    """What is drawn of each input, by its name."""

    parts: dict[str, "Drawing"]
    kind: Literal["several"] = "several"


@dataclass(frozen=True)
class Nothing:
    """An input that the studio cannot draw."""

    reason: str
    kind: Literal["none"] = "none"


Drawing = Image | Lines | Words | Row | Several | Nothing


class Renderer(ABC):
    """A way to draw the examples of a sample."""

    kind: ClassVar[str]
    reason: str | None = None  # why nothing is drawn
    names: tuple[str, ...] | None = None  # of columns, or of several inputs

    def __init__(self, sample: Tensor) -> None:
        self.sample = sample

    @abstractmethod
    def draw(self, place: int) -> Drawing:
        """The example at a place."""


class ImageRenderer(Renderer):
    """Images, (N, 1 or 3, H, W)."""

    kind = "image"

    def __init__(self, sample: Tensor) -> None:
        super().__init__(sample)
        self.are_pixels = sample.dtype == torch.uint8
        if self.are_pixels or not len(sample):
            self.ranges = [(0.0, max(float(sample.max()), 1.0) if len(sample) else 255.0)]
        else:
            self.ranges = list(map(_range, sample.unbind(1)))

    def pixels(self, place: int) -> Tensor:  # (1 or 3, H, W) uint8
        image = self.sample[place]
        if self.are_pixels:
            return image
        low, high = torch.tensor(self.ranges).T[..., None, None]
        return (255 * ((image.float().nan_to_num() - low) / (high - low)).clamp(0, 1)).round().byte()

    def draw(self, place: int) -> Image:
        image = self.pixels(place) * (255 / self.ranges[0][1] if self.are_pixels else 1.0)
        step = ceil(max(image.shape[1:]) / MOST_PIXELS)
        return Image(base64.b64encode(png(image[:, ::step, ::step].round().byte())).decode())


class LineRenderer(Renderer):
    """Signals over time, (N, C, T)."""

    kind: ClassVar[Literal["series", "waveform"]] = "series"

    def __init__(self, sample: Tensor) -> None:
        super().__init__(sample)
        self.ranges = list(map(_range, sample[:, :MOST_LINES].unbind(1)))

    def draw(self, place: int) -> Lines:
        channels, steps = self.sample[place].shape
        lines = list(map(_thinned, self.sample[place][:MOST_LINES]))
        return Lines(self.kind, steps, lines, self.ranges, channels - len(lines))


class WaveformRenderer(LineRenderer):
    """Sounds: as far below zero as above."""

    kind = "waveform"

    def __init__(self, sample: Tensor) -> None:
        super().__init__(sample)
        peaks = [max(-low, high) for low, high in self.ranges]
        self.ranges = [(-peak, peak) for peak in peaks]


class WordRenderer(Renderer):
    """Numbers of words, (N, T)."""

    kind = "words"

    def __init__(self, sample: Tensor, vocabulary: AnyVocabulary | None) -> None:
        super().__init__(sample)
        self.vocabulary = vocabulary

    def draw(self, place: int) -> Words:
        row = self.sample[place]
        if self.vocabulary is None:
            words = list(map(str, row.tolist()))
        else:
            words = self.vocabulary.decode(row.where((row >= 0) & (row < len(self.vocabulary)), UNKNOWN))
        return Words(words[:MOST_VALUES], max(len(words) - MOST_VALUES, 0))


class RowRenderer(Renderer):
    """Rows of a table, (N, F)."""

    kind = "row"

    def __init__(self, sample: Tensor, names: Sequence[str]) -> None:
        super().__init__(sample)
        self.names = tuple(names) if len(names) == sample.shape[1] else None
        self.ranges = list(map(_range, sample[:, :MOST_VALUES].unbind(1)))

    def draw(self, place: int) -> Row:
        values = self.sample[place].tolist()
        columns = self.names or tuple(map(str, range(len(values))))
        pairs = zip(values, self.ranges, strict=False)
        sizes = [plain(min(max((value - low) / (high - low), 0.0), 1.0)) for value, (low, high) in pairs]
        shown = slice(len(sizes))
        return Row(list(columns[shown]), list(map(plain, values[shown])), sizes, len(values) - len(sizes))


class SeveralRenderer(Renderer):
    """Inputs by their names."""

    kind = "several"

    def __init__(self, parts: Mapping[str, Renderer]) -> None:
        self.parts, self.names = parts, tuple(parts)

    def draw(self, place: int) -> Several:
        return Several({name: part.draw(place) for name, part in self.parts.items()})


class NoRenderer(Renderer):
    """What has no drawing."""

    kind = "none"

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def draw(self, place: int) -> Nothing:
        return Nothing(self.reason or "")


def _range(values: Tensor) -> tuple[float, float]:
    """Where all but a hundredth of some values lie; or all of them, where those are equal."""
    some = values[:: max(ceil(values.numel() / LOOKED_AT), 1)].double()
    known = some[some.isfinite()].sort().values
    last = len(known) - 1
    if last < 0:
        return 0.0, 1.0
    low, high = float(known[int(TAIL * last)]), float(known[ceil((1 - TAIL) * last)])
    if low == high:
        low, high = float(known[0]), float(known[-1])
    return (low, high) if low < high else (low, low + 1.0)


def plain(value: float) -> float | None:
    """As JSON has it, with the digits that can be seen."""
    if isinstance(value, int):
        return int(value)
    return float(f"{value:.5g}") if isfinite(value) else None


def _thinned(line: Tensor) -> list[float | None]:
    """A line of few points with the peaks of one with many."""
    values = line.double().numpy()
    if len(values) > POINTS:
        parts = np.array_split(values, POINTS // 2)
        values = np.concatenate([part[sorted((part.argmin(), part.argmax()))] for part in parts])
    return list(map(plain, values.tolist()))


def png(image: Tensor) -> bytes:  # (1 or 3, H, W) uint8
    """The PNG file of an image."""
    channels, height, width = image.shape
    rows = image.permute(1, 2, 0).reshape(height, width * channels).numpy()
    lines = b"".join(b"\0" + row.tobytes() for row in rows)  # each begins with the filter: none
    head = struct.pack(">IIBBBBB", width, height, 8, GREY if channels == 1 else COLOUR, 0, 0, 0)
    chunks = (b"IHDR", head), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b"")
    return SIGNATURE + b"".join(_chunk(*chunk) for chunk in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def renderer_of(
    sample: Tensor, *, names: Sequence[str] = (), words: bool = False, known: AnyVocabulary | None = None
) -> Renderer:
    """How to draw an input, (N, ...): by names of its columns, or as words, of which some may be known."""
    shape = tuple(sample.shape[1:])
    match shape:
        case _ if 0 in shape or sample.is_complex():
            pass
        case (_,) if (words or known is not None) and not sample.is_floating_point():
            return WordRenderer(sample, known)
        case () | (_,):
            row = sample if shape else sample[:, None]
            return RowRenderer(row, names) if row.shape[1] < LONG else WaveformRenderer(row[:, None])
        case (_, 1, _):
            return _of_two_axes(sample[:, :, 0])
        case (_, _, 1):
            return _of_two_axes(sample[..., 0])
        case (1, rows, columns) if max(rows, columns) > STRIP * min(rows, columns):
            return _of_two_axes(sample[:, 0])
        case (1 | 3, _, _):
            return ImageRenderer(sample)
        case (_, _, 3):
            return ImageRenderer(sample.movedim(3, 1))
        case (_, _):
            return _of_two_axes(sample)
    return NoRenderer(f"the studio cannot draw inputs of shape {shape}")


def _of_two_axes(sample: Tensor) -> Renderer:
    """How to draw (N, H, W), (N, C, T) or (N, T, C)."""
    less, more = sorted(sample.shape[1:])
    if LEAST_SIDE <= less == more or (less >= USUAL_SIDE and more <= MOST_OBLONG * less):
        return ImageRenderer(sample[:, None])
    channels = sample if sample.shape[1] == less else sample.transpose(1, 2)
    is_sound = less <= 2 and (more >= LONG or sample.dtype == torch.int16)
    return WaveformRenderer(channels) if is_sound else LineRenderer(channels)
